# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nodes are made of: the base, engine and node images, the engine's tree and the model. Each is made once per recipe and kept."""

from __future__ import annotations

import io
import json
import os
import re
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lab.container.host import apt_install, debian_mirror, docker, docker_ok, inspect, listed, pip_arguments, report, run, step, stream
from lab.container.plan import (
    ENGINE_TAG,
    ENGINE_VERSION,
    HERE,
    LABEL_CACHE,
    MODEL_NAME,
    RECIPES,
    STUB_MODEL,
    STUB_TAG,
    TORCH_VERSION,
    LabError,
    Names,
    stub_files,
)

PULL_SECONDS = 20
ONE_SHOT = ("docker", "run", "--rm", "--label", f"{LABEL_CACHE}=1")


def image_ready(tag: str) -> bool:
    return inspect("image", tag) is not None


def volume_ready(name: str) -> bool:
    """A cached volume counts once it was finished: its label is there from the start, a sibling marker volume only at the end."""
    return inspect("volume", name) is not None and inspect("volume", f"{name}-complete") is not None


def mark_complete(name: str) -> None:
    docker("volume", "create", "--label", f"{LABEL_CACHE}=1", f"{name}-complete")


def fresh_volume(name: str) -> None:
    if stray := listed("ps", "-aq", "--filter", f"label={LABEL_CACHE}", "--filter", f"volume={name}"):
        docker("rm", "-f", *stray, what="removing the container of an interrupted run")
    if inspect("volume", name):
        docker("volume", "rm", name, what=f"removing the unfinished volume {name}")
    docker("volume", "create", "--label", f"{LABEL_CACHE}=1", name)


def tar(files: Mapping[str, bytes]) -> bytes:
    """Return a tar archive of files; those that begin with `#!` can be executed."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo("Dockerfile" if name.startswith("Dockerfile") else name)
            info.size, info.mode = len(data), 0o755 if data.startswith(b"#!") else 0o644
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def build(tag: str, files: list[str], args: dict[str, str], more: Mapping[str, bytes] | None = None) -> None:
    """Build an image from recipe files, and from `more` files by path. Nothing else of the host is in the context."""
    command = ["build", "--network", "host", "--quiet", "--force-rm", "--label", f"{LABEL_CACHE}=1", "--tag", tag]
    for key, value in args.items():
        command += ["--build-arg", f"{key}={value}"]
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        if os.environ.get(name):
            command += ["--build-arg", name]  # predefined arguments: docker keeps them out of the image
    docker(
        *command, "-", stdin=tar({**{name: (RECIPES / name).read_bytes() for name in files}, **(more or {})}), what=f"building the image {tag}", timeout=1200
    )


def ensure_base(names: Names) -> None:
    """Debian trixie: from a registry where one answers, else bootstrapped on this host."""
    if image_ready(names.base) or image_ready(names.engine):
        return
    if image_ready("debian:trixie"):
        docker("tag", "debian:trixie", names.base)
        return
    with step("base image: asking the registry for debian:trixie"):
        pulled = try_pull("debian:trixie")
    if pulled:
        docker("tag", "debian:trixie", names.base)
        docker("rmi", "debian:trixie")  # the name only: what the lab pulled, it keeps under its own
        return
    report("No registry answered: Debian trixie is bootstrapped from the apt mirror instead")
    missing = [
        p
        for p, path in (("mmdebstrap", "/usr/bin/mmdebstrap"), ("debian-archive-keyring", "/usr/share/keyrings/debian-archive-keyring.gpg"))
        if not Path(path).exists()
    ]
    if missing:
        apt_install(missing, "No image registry answers, so the lab makes its base image with mmdebstrap")
    if os.geteuid() != 0:
        raise LabError(
            "No image registry answers and making the base image with mmdebstrap takes root: run this once as root, or `docker pull debian:trixie` first."
        )
    with step("base image: mmdebstrap trixie"), tempfile.TemporaryDirectory(prefix="gb10-lab-") as scratch:
        archive = str(Path(scratch) / "base.tar")
        excludes = [f"--dpkgopt=path-exclude=/usr/share/{d}/*" for d in ("man", "locale", "doc", "info")]
        options = ["--variant=minbase", "--mode=root", "--quiet", '--aptopt=APT::Install-Recommends "false"', "--include=ca-certificates,python3", *excludes]
        run(["mmdebstrap", *options, "trixie", archive, debian_mirror()], what="mmdebstrap (Debian trixie)", timeout=900)
        docker("import", "--change", f"LABEL {LABEL_CACHE}=1", archive, names.base, what="docker import of the base image")


def try_pull(image: str) -> bool:
    try:
        result = subprocess.run(["docker", "pull", "-q", image], capture_output=True, timeout=PULL_SECONDS * 3, check=False)
    except subprocess.TimeoutExpired:
        return False
    return result.returncode == 0


def ensure_engine_image(names: Names) -> None:
    if not image_ready(names.engine):
        with step("engine image (Python and its libraries)"):
            build(names.engine, ["Dockerfile.engine"], {"BASE": names.base, "MIRROR": debian_mirror()})
    docker("tag", names.engine, ENGINE_TAG)


def ensure_stub_image(names: Names) -> None:
    """The stub of a rank, on the same Python."""
    if not image_ready(names.stub):
        with step("stub image (recorded boots)"):
            build(names.stub, ["Dockerfile.stub"], {"ENGINE": names.engine}, stub_files())
    docker("tag", names.stub, STUB_TAG)


def ensure_node_image(names: Names) -> None:
    if not image_ready(names.node):
        with step("node image (systemd, sshd, Docker)"):
            build(names.node, ["Dockerfile.node", "setup-node.sh", "gb10-lab-init"], {"ENGINE": names.engine, "MIRROR": debian_mirror()})


def ensure_tree(names: Names) -> None:
    """The engine's tree: a virtual environment in a volume, installed by a container with the engine's own Python."""
    if volume_ready(names.tree):
        return
    fresh_volume(names.tree)
    with step(f"engine tree: vLLM {ENGINE_VERSION} for CPU") as state:
        packages, fetched = 0, 0

        def on_line(line: str) -> None:
            nonlocal packages, fetched
            if line.startswith("@ "):
                state.note = line[2:]
                report(f"  engine tree: {line[2:]}")
            elif match := re.match(r"Resolved (\d+) packages", line):
                packages = int(match[1])
                state.note = f"fetching {packages} packages"
            elif line.lstrip().startswith("Downloaded"):
                fetched += 1
                state.note = f"fetching {packages} packages, {fetched} large ones here"
            elif line.startswith(("Prepared", "Installed")):
                state.note = line

        command = [*ONE_SHOT, "--network", "host", "--volume", f"{names.tree}:/opt/engine", *pip_arguments()]
        command += ["--env", f"VLLM_VERSION={ENGINE_VERSION}", "--env", f"TORCH_VERSION={TORCH_VERSION}"]
        script = (RECIPES / "install_engine.sh").read_text(encoding="utf-8")
        command += [names.engine, "bash", "-c", script]
        stream(command, on_line, container=f"{names.tree}-install", what="installing the engine's tree from PyPI")
    mark_complete(names.tree)


def ensure_model(names: Names) -> None:
    """The taught model, in a volume."""
    if volume_ready(names.model):
        return
    fresh_volume(names.model)
    with step("model: teaching it five sentences") as state:

        def on_line(line: str) -> None:
            if line.startswith(("seed", "recites")):
                state.note = line
                report(f"  model: {line}")

        command = [
            "docker",
            "run",
            "--rm",
            "--label",
            f"{LABEL_CACHE}=1",
            "--network",
            "none",
            "--volume",
            f"{names.tree}:/opt/engine:ro",
            "--volume",
            f"{names.model}:/model",
        ]
        command += ["--env", "HF_HUB_OFFLINE=1", "--env", "PYTHONDONTWRITEBYTECODE=1", names.engine, "python", "-W", "ignore", "-c"]
        stream(
            [*command, (HERE / "make_model.py").read_text(encoding="utf-8"), f"/model/{MODEL_NAME}"],
            on_line,
            container=f"{names.model}-make",
            what="making the model",
        )
    mark_complete(names.model)


def load_into(container: str, tag: str) -> bool:
    """An image into a node's own Docker Engine, unless it is there with the same id; True if it was loaded."""
    wanted = str((inspect("image", tag) or {}).get("Id", ""))
    have = run(["docker", "exec", container, "docker", "image", "inspect", "--format", "{{.Id}}", tag], check=False).stdout.strip()
    if have == wanted:
        return False
    with subprocess.Popen(["docker", "save", tag], stdout=subprocess.PIPE) as save:
        loaded = subprocess.run(["docker", "exec", "-i", container, "docker", "load", "-q"], stdin=save.stdout, capture_output=True, timeout=300, check=False)
        code = save.wait()
    if code or loaded.returncode:
        raise LabError(f"Loading the image {tag} into {container} failed: {loaded.stderr.decode('utf-8', 'replace').strip()}")
    return True


def model_archive(state: Path, names: Names) -> bytes:
    """The model as a tar archive; kept in the state directory, so that a second `up` starts no container for it."""
    cached = state / f"model-{names.model.rpartition('-')[2]}.tar"
    if not cached.is_file():
        command = [
            "docker",
            "run",
            "--rm",
            "--label",
            f"{LABEL_CACHE}=1",
            "--network",
            "none",
            "--volume",
            f"{names.model}:/model:ro",
            names.engine,
            "tar",
            "-C",
            "/model",
            "-cf",
            "-",
            MODEL_NAME,
        ]
        result = subprocess.run(command, capture_output=True, timeout=120, check=False)
        if result.returncode:
            raise LabError(f"Reading the model from the volume {names.model} failed: {result.stderr.decode('utf-8', 'replace').strip()}")
        draft = cached.with_suffix(".part")
        draft.write_bytes(result.stdout)
        draft.replace(cached)
    return cached.read_bytes()


def stub_model() -> bytes:
    """Return a model that has the files and the shape of one, as a tar archive: what the roles read, and nothing that an engine could compute."""
    shape = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 4, "head_dim": 32, "max_position_embeddings": 4096, "vocab_size": 258, "torch_dtype": "bfloat16"}
    size = 258 * 128 * 2
    header = json.dumps({"model.embed_tokens.weight": {"dtype": "BF16", "shape": [258, 128], "data_offsets": [0, size]}}).encode()
    files = {"config.json": json.dumps(shape).encode(), "tokenizer_config.json": b"{}", "tokenizer.json": b"{}"}
    files["model.safetensors"] = struct.pack("<Q", len(header)) + header + bytes(range(256)) * (size // 256)
    return tar({f"{STUB_MODEL}/{name}": data for name, data in files.items()})


def copy_model(container: str, name: str, archive: bytes) -> bool:
    """A copy of its own of the model for a node, unless it has it already; a damaged one is replaced. True if it was copied."""
    place = f"/srv/models/{name}"
    script = (
        'set -e; mkdir -p /srv/models; d=$(mktemp -d /srv/models/.new.XXXXXX); trap \'rm -rf "$d"\' EXIT; tar -C "$d" -xf -; '
        f'if diff -rq "$d/{name}" {place} >/dev/null 2>&1; then exit 0; fi; '
        f'rm -rf {place}; chown -R root:root "$d"; mv "$d/{name}" /srv/models/; echo copied'
    )
    return bool(docker("exec", "-i", container, "sh", "-c", script, stdin=archive, what=f"copying the model to {container}"))


def prune_superseded(names: Names) -> list[str]:
    """Remove what older recipes made and no container uses: an engine's tree is 5 GiB. The names of what went."""
    mark = f"label={LABEL_CACHE}"
    gone = []
    for volume in listed("volume", "ls", "-q", "--filter", mark, "--filter", "dangling=true"):
        older = volume.startswith(("gb10-lab-engine-", "gb10-lab-model-")) and volume not in (names.tree, names.model)
        if older and not volume.endswith("-complete") and docker_ok("volume", "rm", volume):
            docker_ok("volume", "rm", f"{volume}-complete")
            gone.append(volume)
    current = {names.base, names.engine, names.stub, names.node, ENGINE_TAG, STUB_TAG}
    for name in ("gb10-lab/node", "gb10-lab/node-gpu", "gb10-lab/vllm-cpu", "gb10-lab/stub", "gb10-lab/trixie"):  # a used one is refused, and stays
        for tag in listed("images", name, "--filter", mark, "--format", "{{.Repository}}:{{.Tag}}"):
            if tag not in current and docker_ok("rmi", tag):
                gone.append(tag)
    return gone


def remove_caches() -> None:
    """Images and volumes that carry the cache label, and the one-shot containers that may still hold them."""
    mark = f"label={LABEL_CACHE}"
    if stray := listed("ps", "-aq", "--filter", mark):
        docker("rm", "-f", *stray)
    if volumes := listed("volume", "ls", "-q", "--filter", mark):
        docker("volume", "rm", *volumes, what="removing the cached volumes")
    own = ("gb10-lab/node", "gb10-lab/node-gpu", "gb10-lab/vllm-cpu", "gb10-lab/stub", "gb10-lab/trixie", "gb10-lab/base")
    tags = [tag for name in own for tag in listed("images", name, "--filter", mark, "--format", "{{.Repository}}:{{.Tag}}")]
    tags += [tag for tag in listed("images", "gb10-lab/trixie", "--format", "{{.Repository}}:{{.Tag}}") if tag not in tags]
    if tags:
        docker("rmi", *tags, what="removing the cached images")
