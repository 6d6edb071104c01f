#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work with the images and models of a node, mostly long: pull, build, save or load an image, download a model, copy files from rank to rank, remove."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job
short_description: Get, copy and remove images and models, and show the progress
description:
  - V(pull) pulls an image by digest if one is given, and tags the result. V(build) builds the Dockerfile of a folder, with BuildKit if the node has it.
    Either leaves the image of this name as it is if it fails.
  - V(save) saves an image as the archive C(image.tar) of a folder, and V(load) loads it from there.
  - V(download) runs C(huggingface_hub.snapshot_download) in a container of the image that serves the model, so that nothing is installed on the node.
    The token is in a C(0600) file below C(/run) that is removed with the download. It is not in a command line or a log.
  - A copy over the fabric has four works. V(key) on each rank that fetches makes a key. V(offer) on the rank that has the files starts an SSH server for
    these keys. V(fetch) copies the files with parallel C(rsync). V(close) on all ranks ends the server and removes the keys.
  - The SSH server listens on the fabric addresses of the rank only. Its one command is C(rrsync -ro) on the folder. Each copy has new keys.
  - Both ends of a copy are units with a memory limit, so that their page cache stays small. They see the folder, and no other files than the programs of
    the node.
  - The files arrive in the folder C(.gb10-incoming-NAME) next to their folder. All are moved to their places at the end, so that no file is incomplete
    under its name.
  - V(remove) removes the files of O(path) that earlier copies have created and that are unchanged. Without O(path), it removes the images that this module
    has recorded and that no container uses.
  - Long work is a transient systemd unit, so that it continues if the connection breaks. An interrupted download or copy resumes where it stopped.
  - A download and a copy fail before the first byte if there is not enough disk space.
requirements:
  - C(rsync) with C(rrsync), and OpenSSH with its server, on the nodes, for a copy
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.internal
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: partial
    details:
      - V(close) and V(remove) change nothing if there is nothing to end or to remove. The other works are done on each call. Call them if the image, the
        archive or the files are not available.
options:
  work:
    description:
      - What to do.
    type: str
    choices: [pull, build, save, load, download, key, offer, fetch, close, remove]
    required: true
  name:
    description:
      - Names the unit, C(gb10-copy-NAME-WORK). The works of one copy have the same name.
    type: str
    default: job
  max_seconds:
    description:
      - Seconds after which the work is ended. Required if the work is a unit.
    type: int
  path:
    description:
      - The folder of the work. For V(build) it has the Dockerfile, for V(save) and V(load) the archive, else it is the model's.
    type: path
  store:
    description:
      - The folder of all models. A link between it and O(path) is refused. It is mounted into the container of V(download).
    type: path
    default: ''
  reference:
    description:
      - Name and tag of the image. For V(download), an image on the node with Python and C(huggingface_hub).
    type: str
    default: ''
  digest:
    description:
      - Digest to pull, C(sha256:...).
    type: str
    default: ''
  build_args:
    description:
      - Build arguments. Do not put secrets here, because they stay in the image's history.
    type: dict
    default: {}
  label:
    description:
      - Hash of the build, stored as a label of the image.
    type: str
    default: ''
  keep:
    description:
      - How many images stay that this module pulled, built or loaded, including the new one, which is recorded. V(0) keeps all. Without this option the
        image is not recorded.
    type: int
  model:
    description:
      - The model's id on the hub.
    type: str
    default: ''
  layout:
    description:
      - V(hub) creates a Hugging Face cache folder, V(directory) a plain one.
    type: str
    choices: [directory, hub]
    default: hub
  revision:
    description:
      - Branch or commit.
    type: str
    default: main
  token:
    description:
      - Access token for a private model.
    type: str
    default: ''
  endpoint:
    description:
      - URL of another hub than huggingface.co.
    type: str
    default: ''
  size_gib:
    description:
      - The model's size in GiB, for the check of the disk space. V(0) for unknown.
    type: float
    default: 0
  reserve_bytes:
    description:
      - Bytes that must stay free on the disk.
    type: int
    default: 1073741824
  fetch:
    description:
      - Files and links to fetch, their bytes by path. V(0) for a link.
    type: dict
    default: {}
  new:
    description:
      - Paths of O(fetch) that were not on this node. They are recorded for V(remove).
    type: list
    elements: str
    default: []
  remove:
    description:
      - Paths to remove after the copy.
    type: list
    elements: str
    default: []
  provider:
    description:
      - The result of V(offer) on the rank that has the files.
    type: dict
    default: {}
  port:
    description:
      - TCP port of the SSH server, V(0) for any that is free.
    type: int
    default: 0
  allow:
    description:
      - Addresses of the ranks that may fetch.
    type: list
    elements: str
    default: []
  keys:
    description:
      - Public keys of the ranks that may fetch, as RV(public_key) of V(key).
    type: list
    elements: str
    default: []
  fabric:
    description:
      - This node's fabric addresses, one for each rail.
    type: list
    elements: str
    default: []
  streams:
    description:
      - Processes of C(rsync).
    type: int
    default: 4
  step:
    description:
      - Internal. The action plugin sets it.
    type: str
    choices: [start, status]
    default: start
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Pull by digest
  gb10.cluster.job:
    work: pull
    max_seconds: 14400
    reference: vllm/vllm-openai:v0.24.0
    digest: sha256:0b6a0cbb2a0b1a6a9f8b8b0a7a5d4f7d2f2b0d7e6c5b4a39281706f5e4d3c2b1
  become: true

- name: Download a model into a Hugging Face cache
  gb10.cluster.job:
    work: download
    max_seconds: 86400
    store: /srv/models
    path: /srv/models/hub/models--Qwen--Qwen3-8B
    model: Qwen/Qwen3-8B
    reference: vllm/vllm-openai:v0.24.0
    token: "{{ vault_hf_token }}"
  become: true

- name: Make a key on the rank that lacks a shard
  gb10.cluster.job:
    work: key
  become: true
  register: fetching

- name: Offer the folder on the rank that has it
  gb10.cluster.job:
    work: offer
    max_seconds: 14400
    path: /srv/models/tiny
    fabric: [192.168.200.11]
    allow: [192.168.200.12]
    keys: ["{{ fetching.public_key }}"]
  become: true
  delegate_to: spark-1
  register: offer

- name: Fetch the shard
  gb10.cluster.job:
    work: fetch
    max_seconds: 14400
    path: /srv/models/tiny
    fetch: {model-00002-of-00004.safetensors: 734003200}
    provider: "{{ offer }}"
    fabric: [192.168.200.12]
  become: true
"""

RETURN = r"""
id:
  description: The image's id.
  returned: with an image
  type: str
  sample: sha256:9306118e50b2...
size:
  description: Bytes of the archive.
  returned: with O(work=save), outside check mode
  type: int
  sample: 1073752064
removed:
  description: Ids of the images, or paths of the files, that were removed.
  returned: with O(keep), and with O(work=remove)
  type: list
  elements: str
  sample: []
left:
  description: Images that stay, and why, or copied files that stay because they were changed.
  returned: with O(keep), and with O(work=remove)
  type: list
  elements: str
  sample: []
public_key:
  description: The public half of the key of this copy.
  returned: with O(work=key), outside check mode
  type: str
  sample: ssh-ed25519 AAAAC3Nza...
listen:
  description: Addresses and ports of the SSH server, by rail.
  returned: with O(work=offer), outside check mode
  type: list
  elements: dict
  sample: [{address: 192.168.200.11, port: 40123}]
host_key:
  description: The public host key of the SSH server.
  returned: with O(work=offer), outside check mode
  type: str
  sample: ssh-ed25519 AAAAC3Nza...
copied:
  description: Paths that were fetched, in check mode those that would be fetched.
  returned: with O(work=fetch)
  type: list
  elements: str
  sample: [model-00002-of-00004.safetensors]
moved_bytes:
  description: Bytes that were copied over the fabric in this run.
  returned: when files were fetched
  type: int
  sample: 2147483648
mb_per_second:
  description: Speed of the copy, in 10^6 bytes a second.
  returned: when files were fetched
  type: int
  sample: 2410
"""

import contextlib
import os
import re
import time
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node, RecordError, Runner, runner
from ansible_collections.gb10.cluster.plugins.module_utils._node import images, manifest, model_folder, transfer
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._node.manifest import ManifestError
from ansible_collections.gb10.cluster.plugins.module_utils._node.transfer import Job, JobError

SLICE_SECONDS = 2.0
READY_SECONDS = 0.5  # in which an SSH server that cannot start has ended
ARCHIVE = "image.tar"
WORKS = ("pull", "build", "save", "load", "download", "key", "offer", "fetch", "close", "remove")
UNITS = ("pull", "build", "save", "load", "download", "offer", "fetch")
DOING = {"pull": "pulling", "build": "building", "save": "saving", "load": "loading", "download": "downloading", "fetch": "copying"}
# The remedy of the first pattern that is in the decisive line.
REMEDIES = (
    ("no module named.*huggingface_hub", "set weights_download_image to an image that has huggingface_hub"),
    ("host key verification", "another host answers at this address: look for a second machine with it on the rail"),
    ("ssh: |rsync: .*connection|closed by", "check the cable, and that no firewall closes the port"),
    ("no space|disk quota", "free space there"),
    ("out of memory|cannot allocate", "free memory on the node"),
    ("no such image|unable to find image", "run the image role first"),
    (r"gated|\b40[13]\b", "set weights_hf_token to a token that may read it, and accept the model's terms on the hub"),
    (r"repositorynotfound|revisionnotfound|\b404\b", "check model.id and model.revision of the profile, and the token for a private model"),
    (
        "denied|unauthorized|not found|manifest unknown",
        "check image.reference of the profile, and log in on the node as root (docker login) for a private image",
    ),
    (
        "no such host|lookup|connection|timeout|resolve|max retries|network is unreachable",
        "give the node a way to the registry or the hub (HF_ENDPOINT, a proxy), or put image and model on one rank, and the others get them from there",
    ),
)
DECISIVE = re.compile(r"error|denied|not found|failed|cannot|no such|no space|ssh:|rsync:", re.IGNORECASE)
PROGRAM = """
import os, sys
model, revision, layout, path = sys.argv[1:5]
from huggingface_hub import snapshot_download
where = {"cache_dir": os.path.dirname(path)} if layout == "hub" else {"local_dir": path}
snapshot_download(repo_id=model, revision=revision, **where)
"""


def size_of(path: str) -> int:
    """Return the bytes of all regular files below a folder, and take them out of the page cache: a container writes with no regard to it.

    Of an unfinished file, its blocks count. Docker's container can replace files: no link is followed.
    """
    total = 0
    with contextlib.suppress(OSError):  # a folder that the download has removed meanwhile
        for name, entry in bounded.below(path):
            with contextlib.suppress(OSError):  # renamed by the download
                if not entry.is_file(follow_symlinks=False):
                    continue
                info = entry.stat(follow_symlinks=False)
                total += info.st_blocks * 512 if name.endswith(".incomplete") else info.st_size
                descriptor = model_folder.open_file(entry.path)
                model_folder.forget(descriptor)
                os.close(descriptor)
    return total


def environment(params: Mapping[str, Any]) -> str:
    """Return the env file of the container that downloads."""
    rows = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_OFFLINE": "0", "HOME": "/tmp"}  # noqa: S108  in the container
    rows.update({key: params[name] for key, name in (("HF_TOKEN", "token"), ("HF_ENDPOINT", "endpoint")) if params[name]})
    for key, value in rows.items():
        if "\n" in value:
            raise ManifestError(f"{key} has a line break: remove it")
    return "".join(f"{key}={value}\n" for key, value in rows.items())


def pull_script(reference: str, digest: str) -> str:
    """Return the script of a pull."""
    if not digest:
        return transfer.script_of(["docker", "pull", reference])
    head, slash, tail = reference.rpartition("/")
    pinned = f"{head}{slash}{tail.split(':', 1)[0]}@{digest}"
    return transfer.script_of(["docker", "pull", pinned], ["docker", "tag", pinned, reference])


def download_script(params: Mapping[str, Any], name: str, env_file: str) -> str:
    """Return the script of a download. The token is only in the env file. The container outlives a unit that was ended by its time limit."""
    store = os.path.normpath(params["store"])
    run = [
        "docker", "run", "--rm", "--pull", "never", "--name", name, "--network", "host", "--env-file", env_file, "--volume", f"{store}:{store}",
        "--entrypoint", "python3", params["reference"], "-c", PROGRAM, params["model"], params["revision"], params["layout"], params["path"],
    ]  # fmt: skip
    return transfer.script_of(run)


def need_room(params: Mapping[str, Any], need: int, what: str) -> None:
    """Fail if a folder has not enough room. Raises ManifestError."""
    free, need = model_folder.free_bytes(params["path"]), need + params["reserve_bytes"]
    if need > free:
        raise ManifestError(
            f"{manifest.human(free)} are free on the file system of {params['path']}, and {manifest.human(need)} are needed for {what}: "
            f"free {manifest.human(need - free)} there, or set gb10_model_store to a larger disk for a model; nothing was written"
        )


def check(params: Mapping[str, Any]) -> None:
    """Fail if the files of a model may not be written, or if there is not enough room. Raises ManifestError."""
    path, size = params["path"], int(params["size_gib"] * manifest.GIB)
    if params["work"] == "fetch":
        staged = model_folder.staged(model_folder.place_of(path, params["store"]))
        problem = manifest.space_problem(path, params["fetch"], staged, model_folder.free_bytes(path), params["reserve_bytes"])
        if problem:
            raise ManifestError(f"{problem}; nothing was copied")
    elif params["work"] == "download":
        if not path.startswith(os.path.normpath(params["store"]) + "/"):
            raise ManifestError(f"{path} is not below {params['store']}, the folder that the download may write to: correct weights_path or gb10_model_store")
        if size:
            need_room(params, max(0, size - size_of(path)), params["model"])


def offer(job: Job, params: Mapping[str, Any]) -> dict[str, Any]:
    """Start the server of the files and return where it listens. Raises ManifestError, JobError, OSError."""
    if not params["fabric"] or not params["allow"] or not params["keys"]:
        raise JobError("files are offered to named peers only, and the serving group has no fabric addresses or no keys: set gb10_fabric_cidrs")
    root = model_folder.place_of(params["path"], params["store"])
    port = transfer.free_port(params["fabric"], params["port"])
    folder = job.prepare()
    host_key = transfer.make_key(job, transfer.HOST_KEY)
    transfer.prepare(folder, transfer.server_files(folder, root, port, params["fabric"], params["allow"], params["keys"]))
    sandbox = transfer.sandbox(folder, [root], capabilities=transfer.SERVER_CAPABILITIES)
    job.start(transfer.server_script(folder), params["max_seconds"], "offer files on the fabric", sandbox)
    time.sleep(READY_SECONDS)
    if not job.active():
        why = transfer.last_line(job.output())
        raise JobError(f"the SSH server of this copy does not start on {', '.join(params['fabric'])}, port {port} ({why}): see journalctl -u {job.unit}")
    return {"listen": [{"address": address, "port": port} for address in params["fabric"]], "host_key": host_key}


def start_fetch(job: Job, params: Mapping[str, Any]) -> None:
    """Start the copy. Raises ManifestError, JobError, OSError."""
    place, rails = model_folder.place_of(params["path"], params["store"]), params["provider"].get("listen")
    if not os.path.isfile(os.path.join(job.folder, transfer.KEY)):
        raise JobError("this copy has no key: make one with work=key before, and give its public_key to the rank that has the files")
    if not rails:
        raise JobError("the rank that has the files does not offer them: see its message, correct that and run again")
    staging, above = model_folder.staging_path(place), os.stat(model_folder.nearest(place))
    with model_folder.opened(staging, create=True) as here:
        os.fchmod(here, 0o700)
    parts = transfer.shares({name: int(size) for name, size in params["fetch"].items()}, params["streams"])
    transfer.prepare(job.folder, transfer.client_files(job.folder, parts, params["provider"], params["fabric"]))
    script = transfer.client_script(job.folder, staging, place, f"{above.st_uid}:{above.st_gid}", len(parts), len(rails))
    sandbox = transfer.sandbox(job.folder, writes=[os.path.dirname(staging)], capabilities=transfer.CLIENT_CAPABILITIES)
    job.start(script, params["max_seconds"], "fetch files on the fabric", sandbox)


def start(job: Job, params: Mapping[str, Any]) -> None:
    """Start the work. Raises ManifestError, JobError, OSError."""
    work, archive = params["work"], os.path.join(params["path"] or "", ARCHIVE)
    if work == "fetch":
        start_fetch(job, params)
        return
    properties = ["Environment=HOME=/root", "UMask=0022", *(transfer.BOUNDS if work in ("save", "load") else [])]
    folder = job.prepare()
    if work == "pull":
        script = pull_script(params["reference"], params["digest"])
    elif work == "build":
        script = images.build_script(params)
    elif work == "save":
        need_room(params, int((images.inspect_image(params["reference"]) or {}).get("Size") or 0), params["reference"])
        os.makedirs(params["path"], mode=0o700, exist_ok=True)
        script = transfer.script_of(["docker", "save", "--output", archive, params["reference"]])
    elif work == "load":
        script = transfer.script_of(["docker", "load", "--quiet", "--input", archive])
    else:
        job.run(["docker", "rm", "-f", job.unit])
        os.makedirs(params["store"], mode=0o755, exist_ok=True)
        env_file = os.path.join(folder, "env")
        with os.fdopen(os.open(env_file, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as handle:
            handle.write(environment(params))
        script = download_script(params, job.unit, env_file)
    job.start(script, params["max_seconds"], f"{work} {params['model'] or params['reference']}", properties)


def progress(job: Job, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bytes so far and in all, or the last line of the output and, if it is known, the share of the layers or build steps."""
    if params["work"] == "fetch":
        sizes = model_folder.staged(model_folder.place_of(params["path"], params["store"]))
        return {"done": sum(min(sizes.get(name, 0), int(size)) for name, size in params["fetch"].items()), "total": sum(map(int, params["fetch"].values()))}
    if params["work"] == "download":
        return {"done": size_of(params["path"]), "total": int(params["size_gib"] * manifest.GIB)}
    log = job.output()
    layers = {line.split(":", 1)[0] for line in log.splitlines() if line.endswith((": Pulling fs layer", ": Already exists"))}
    done = {line.split(":", 1)[0] for line in log.splitlines() if line.endswith((": Pull complete", ": Already exists"))}
    if layers and len(done) < len(layers):
        return {"text": f"{len(done)} of {len(layers)} layers", "percent": 100 * len(done) // len(layers)}
    return {"text": transfer.last_line(log)[:100] if log.strip() else "", "percent": images.build_share(log)}


def failure(rc: int | None, log: str, params: Mapping[str, Any]) -> str:
    """Return why the work failed, with the remedy."""
    what = params["path"] if params["work"] == "fetch" else params["model"] or params["reference"]
    doing = f"{DOING[params['work']]} {what}"
    if rc is None:
        return f"{doing} was ended after {params['max_seconds']} s or from outside: run again, it goes on from there, or set a longer timeout"
    if params["work"] == "build":
        return f"{doing} failed. The last lines of the build:\n{images.build_failure(log)}"
    text = log.replace(params["token"], "********") if params["token"] else log
    last = transfer.last_line("\n".join(line for line in text.splitlines() if DECISIVE.search(line) and not line.startswith("rsync error")) or text)
    remedy = next((remedy for pattern, remedy in REMEDIES if re.search(pattern, last, re.IGNORECASE)), "correct that")
    return f"{doing} failed ({last}): {remedy}, and run again: it goes on from there"


def finish(job: Job, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of work that has ended. Raises JobError, DockerError, RecordError, OSError."""
    rc, log, node, report = job.rc(), job.output(), Node("/", job.run), {**progress(job, params), "state": "done"}
    job.stop()
    if rc != 0:
        if params["work"] == "download":
            job.run(["docker", "rm", "-f", job.unit])
        raise JobError(failure(rc, log, params))
    if params["work"] == "fetch":
        found = transfer.figures(log)
        return {**found, "report": {**report, "done": report["total"], "rate": found["mb_per_second"]}}
    if params["work"] == "download":
        return {"report": report}
    image = images.inspect_image(params["reference"])
    if image is None:
        raise JobError(f"docker succeeded, but {params['reference']} is not in the engine: see journalctl -u docker on the node")
    if params["work"] == "save":
        return {"id": image["Id"], "size": os.path.getsize(os.path.join(params["path"], ARCHIVE)), "report": report}
    if params["keep"] is None:
        return {"id": image["Id"], "report": report}
    removed, left = images.record_import(node, image["Id"], params["reference"], params["keep"])
    return {"id": image["Id"], "removed": removed, "left": left, "report": report}


def short(module: AnsibleModule, params: Mapping[str, Any], run: Runner) -> dict[str, Any]:
    """Do the work that needs no following, and return the result. Raises ManifestError, JobError, DockerError, RecordError, OSError."""
    work, check_mode = params["work"], module.check_mode
    offers, fetches = Job(f"{params['name']}-offer", run), Job(f"{params['name']}-fetch", run)
    if work == "remove":
        node, path = Node("/", run), params["path"]
        removed, left = model_folder.absent(node, path, check_mode, params["store"]) if path else images.remove_imported(node, check=check_mode)
        return {"changed": bool(removed), "removed": removed, "left": left}
    if work == "close":
        ended = [job.active() if check_mode else job.stop() for job in (offers, fetches)]
        return {"changed": any(ended)}
    if check_mode:
        return {"changed": True}
    transfer.need_programs(module.get_bin_path, *(transfer.FETCHES if work == "key" else transfer.SERVES))
    if work == "offer":
        return {"changed": True, **offer(offers, params)}
    fetches.prepare()
    return {"changed": True, "public_key": transfer.make_key(fetches, transfer.KEY)}


def followed(module: AnsibleModule, params: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """Start the work, or look at it, and return the result if it has ended. Else the module ends here. Raises as `start` and `finish` do."""
    fetches, out = params["work"] == "fetch", {"changed": True}
    if params["step"] == "start":
        check(params)
        if not module.check_mode and (params["fetch"] or not fetches):
            if fetches:  # before its unit moves them to their places, also if the controller is gone then
                model_folder.record_copy(Node("/"), params["path"], params["new"], [])
            start(job, params)
            module.exit_json(changed=True, started=True)
    else:
        end = time.monotonic() + SLICE_SECONDS
        while job.active():
            if time.monotonic() >= end:
                module.exit_json(changed=True, report={**progress(job, params), "state": "running"})
            time.sleep(0.1)
        out.update(finish(job, params))
    if (params["new"] or params["remove"]) and not module.check_mode:
        model_folder.remove(model_folder.place_of(params["path"], params["store"]), params["remove"])
        model_folder.record_copy(Node("/"), params["path"], params["new"], params["remove"])
    return {**out, **({"copied": list(params["fetch"])} if fetches else {})}


def main() -> None:
    """Do the work. The action plugin calls both steps."""
    module = AnsibleModule(
        argument_spec={
            "work": {"type": "str", "choices": list(WORKS), "required": True},
            "name": {"type": "str", "default": "job"},
            "max_seconds": {"type": "int"},
            "path": {"type": "path"},
            "store": {"type": "path", "default": ""},
            "reference": {"type": "str", "default": ""},
            "digest": {"type": "str", "default": ""},
            "build_args": {"type": "dict", "default": {}},
            "label": {"type": "str", "default": ""},
            "keep": {"type": "int"},
            "model": {"type": "str", "default": ""},
            "layout": {"type": "str", "choices": ["directory", "hub"], "default": "hub"},
            "revision": {"type": "str", "default": "main"},
            "token": {"type": "str", "default": "", "no_log": True},
            "endpoint": {"type": "str", "default": ""},
            "size_gib": {"type": "float", "default": 0},
            "reserve_bytes": {"type": "int", "default": 1073741824},
            "fetch": {"type": "dict", "default": {}},
            "new": {"type": "list", "elements": "str", "default": []},
            "remove": {"type": "list", "elements": "str", "default": []},
            "provider": {"type": "dict", "default": {}},
            "port": {"type": "int", "default": 0},
            "allow": {"type": "list", "elements": "str", "default": []},
            "keys": {"type": "list", "elements": "str", "default": [], "no_log": False},
            "fabric": {"type": "list", "elements": "str", "default": []},
            "streams": {"type": "int", "default": 4},
            "step": {"type": "str", "choices": ["start", "status"], "default": "start"},
        },
        required_if=[("work", work, ["max_seconds", *(["path"] if work != "pull" else [])]) for work in UNITS],
        supports_check_mode=True,
    )
    params = {**module.params, "path": os.path.normpath(module.params["path"]) if module.params["path"] else None}
    run = runner(module)
    job = Job(f"{params['name']}-{params['work']}", run)
    try:
        result = followed(module, params, job) if params["work"] in DOING else short(module, params, run)
    except (ManifestError, JobError, DockerError, RecordError) as error:
        if params["work"] in UNITS and params["work"] != "fetch" and not module.check_mode:  # the end of a copy is work=close
            job.stop()
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename} cannot be written ({error.strerror}): run with become, and look for a read-only or full file system")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
