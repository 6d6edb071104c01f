#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the sources of an image complete: pull requests, cherry-picks, patches, submodules."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_sources
short_description: Prepare the sources of an image on the node that builds it
version_added: 0.2.0
description:
  - Completes a checkout of M(ansible.builtin.git). Pull requests are fetched and merged, commits are picked, patches are applied, and submodules are
    fetched, in this order. Files that are not part of the commit are removed.
  - Without O(repository), the folder is one that the user gave. It is not changed.
  - Fails if a build context or Dockerfile of O(steps) does not exist below the folder.
  - Git runs without prompts, hooks and protocols other than that of O(repository).
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
    details:
      - It predicts a change and reads nothing.
  diff_mode:
    support: none
  idempotent:
    support: partial
    details:
      - The result is the same each time, with the same commits. It always reports a change for a repository.
options:
  path:
    description:
      - Folder of the checkout, or of the unpacked archive.
    type: path
    required: true
  fault:
    description:
      - Message of a failed checkout. The module then fails with its cause and the remedy.
    type: str
    default: ''
  repository:
    description:
      - URL of the repository.
    type: str
  commit:
    description:
      - The commit that is checked out.
    type: str
  pull_requests:
    description:
      - Pull requests that are merged.
    type: list
    elements: dict
    default: []
    suboptions:
      number:
        description: Its number. C(refs/pull/NUMBER/head) is fetched.
        type: int
        required: true
      commit:
        description: The commit of it that is merged. The newest one if it is not set.
        type: str
  cherry_picks:
    description:
      - Commits that are picked.
    type: list
    elements: str
    default: []
  patches:
    description:
      - Patches below the repository that are applied.
    type: list
    elements: str
    default: []
  submodules:
    description:
      - Whether submodules are fetched.
    type: bool
    default: false
  steps:
    description:
      - Steps of M(gb10.cluster.image_get) that need these sources.
    type: list
    elements: dict
    default: []
author:
  - The gb10.cluster authors (@gb10-cluster)
seealso:
  - module: gb10.cluster.image_get
  - module: ansible.builtin.git
"""

EXAMPLES = r"""
- name: Check the commit out
  ansible.builtin.git:
    repo: https://github.com/vllm-project/vllm.git
    dest: /var/lib/gb10-cluster/build-pair1
    version: edc82b614f51f4f9ce16c7010e879571e5c46136
    refspec: edc82b614f51f4f9ce16c7010e879571e5c46136
  become: true

- name: Merge a pull request
  gb10.cluster.image_sources:
    path: /var/lib/gb10-cluster/build-pair1
    repository: https://github.com/vllm-project/vllm.git
    commit: edc82b614f51f4f9ce16c7010e879571e5c46136
    pull_requests: [{number: 41834}]
    steps: [{dockerfile: docker/Dockerfile}]
  become: true
"""

RETURN = r"""
path:
  description: Folder with the sources. For an archive with one folder and nothing else it is that folder.
  returned: success
  type: str
  sample: /var/lib/gb10-cluster/build-pair1
labels:
  description: Labels of the image that name the repository, the commit, all that was merged, picked and applied, and the resulting tree of git.
  returned: success
  type: dict
  sample: {gb10.cluster.build.commit: edc82b614f51f4f9ce16c7010e879571e5c46136}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._docker import build_sources
from ansible_collections.gb10.cluster.plugins.module_utils._docker.image_plan import ImageError


def main() -> None:
    """Prepare the sources."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "fault": {"type": "str", "default": ""},
            "repository": {"type": "str"},
            "commit": {"type": "str"},
            "pull_requests": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {"number": {"type": "int", "required": True}, "commit": {"type": "str"}},
            },
            "cherry_picks": {"type": "list", "elements": "str", "default": []},
            "patches": {"type": "list", "elements": "str", "default": []},
            "submodules": {"type": "bool", "default": False},
            "steps": {"type": "list", "elements": "dict", "default": []},
        },
        required_together=[("repository", "commit")],
        supports_check_mode=True,
    )
    params = module.params
    repository, commit, path = params["repository"], str(params["commit"]), params["path"]
    if module.check_mode:
        module.exit_json(changed=bool(repository), path=path, labels={})
    try:
        if params["fault"]:
            absent = f"{repository} has no commit {commit}, which image.build.commit of the profile names: correct it"
            raise ImageError(build_sources.fetch_fault(params["fault"], repository, absent))
        if repository:
            labels = build_sources.Checkout(build_sources.runner(repository), path, params).prepare()
        else:
            path, labels = build_sources.unpacked(path), {}
        what = f"{repository} at {commit[:12]}" if repository else "image_build_context"
        build_sources.check_steps(path, params["steps"], what)
    except ImageError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename} cannot be read ({error.strerror}): run with become")
    module.exit_json(changed=bool(repository), path=path, labels=labels)


if __name__ == "__main__":
    main()
