#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin profile_import."""

from __future__ import annotations

DOCUMENTATION = r"""
module: profile_import
short_description: Make a profile of a recipe of another tool
description:
  - Converts a recipe of sparkrun, a recipe of eugr/spark-vllm-docker, a Docker Compose file with its C(.env), or the C(docker run) commands of a
    script into a profile of your own.
  - A field that the profile does not have is listed in the result and in the notes of the profile, with what to do if you have to do something.
  - A command that decides or computes something is refused.
  - The profile is compared with the schema, and nothing is written if it is not valid. C(validate.yml) checks the rest, such as its memory.
  - Secrets are named, and their values are neither written nor printed. Nothing of the recipe is executed.
  - This is an action plugin. It runs on the controller and contacts no host. The playbook C(import.yml) runs it.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  recipe:
    description: The recipe, the Compose file, or the script.
    type: path
    required: true
  directory:
    description: The directory of your profiles, C(gb10_profiles_directory). It is made if it is missing.
    type: path
    required: true
  name:
    description:
      - The name of the profile. The default follows from the recipe's name or from the service of the Compose file.
    type: str
  env_file:
    description: The environment file. The default is C(.env) next to a Compose file, or to a script that sources it. The controller's environment is not read.
    type: path
  service:
    description: The service of the Compose file, or the container of the script. It is needed if several run vLLM. Of a pair, name that of the head.
    type: str
    default: ""
  force:
    description: Replace a file that has another content.
    type: bool
    default: false
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
"""

EXAMPLES = r"""
- name: Import a Compose file
  gb10.cluster.profile_import:
    recipe: docker-compose.yml
    env_file: .env.pair
    name: my-pair
    directory: own-profiles
"""

RETURN = r"""
document:
  description: The file, and what became of each field. M(gb10.cluster.show) prints it.
  returned: success
  type: dict
  contains:
    schema:
      description: V(gb10.cluster/import/1).
      type: str
      returned: success
    profile:
      description: The name of the profile.
      type: str
      returned: success
    path:
      description: The file.
      type: str
      returned: success
    state:
      description: V(written), V(unchanged), or V(would be written) in check mode.
      type: str
      returned: success
    recipe:
      description: The file of the recipe.
      type: str
      returned: success
    kind:
      description: The kind of the recipe.
      type: str
      returned: success
    left:
      description: The other fields that the profile does not have. The collection sets them, or a profile has no key for them.
      type: list
      elements: str
      returned: success
    unmapped:
      description: The fields that are not mapped and need you, each with C(field) and C(reason).
      type: list
      elements: dict
      returned: success
    next:
      description: The command that validates the profile. Empty in check mode if the file is not written yet.
      type: str
      returned: success
"""
