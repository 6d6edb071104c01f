# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Built once, found again by its hash: the Debian base, the container around the machines, the guest."""

from __future__ import annotations

import os
import time

from lab.container import images as container_images
from lab.container import plan
from lab.container.host import debian_mirror
from lab.vm import engine
from lab.vm.engine import docker, report
from lab.vm.recipe import GUEST_RECIPE, HOST_PACKAGES, SUITE, Lab, guest_digest, host_image_digest


def base_image() -> str:
    """The tag of the minimal Debian that both labs stand on."""
    names = plan.names()
    container_images.ensure_base(names)
    return names.base


def host_image() -> str:
    """The tag of the image with QEMU in it."""
    tag = f"gb10-lab/vm-host:{host_image_digest()}"
    if engine.exists("image", tag):
        return tag
    started = time.monotonic()
    report("  Building the container around the machines (QEMU on Debian)")
    base = base_image()
    name = f"gb10-vmlab-build-{os.getpid()}"
    script = (
        "export DEBIAN_FRONTEND=noninteractive; set -e; "
        "apt-get -o Acquire::Check-Valid-Until=false update -q >/dev/null; "
        f"apt-get install -y -q --no-install-recommends {' '.join(HOST_PACKAGES)} >/dev/null; "
        "apt-get clean; rm -rf /var/lib/apt/lists/*"
    )
    try:
        network = ["--network", "host", *engine.trust(), *engine.proxies()]
        docker("run", "--name", name, *network, base, "nice", "-n", "10", "sh", "-c", script, timeout=900)
        docker("commit", name, tag, timeout=300)
    finally:
        docker("rm", "--force", "--volumes", name, check=False)
    report(f"  Built {tag} in {time.monotonic() - started:.0f} s")
    return tag


def guest_image(lab: Lab, host: str) -> str:
    """The place, inside the images volume, of the built guest."""
    digest = guest_digest()
    place = f"/images/{digest}"
    docker("volume", "create", lab.images_volume)
    volume = ["--volume", f"{lab.images_volume}:/images"]
    if docker("run", "--rm", *volume, host, "test", "-e", f"{place}/complete", check=False).returncode == 0:
        return place
    started = time.monotonic()
    report(f"  Building the guest {digest} (a minute or two)")
    # Built in a second folder, moved when complete: an interrupted build is never taken for a finished one.
    script = (
        f"set -e; rm -rf {place} {place}.new; bash /recipe/build.sh {place}.new {debian_mirror()} {SUITE}; "
        f"touch {place}.new/complete; mv {place}.new {place}; "
        "cd /images; ls -1td -- */ | tail -n +4 | xargs -r rm -rf --"
    )
    name = f"gb10-vmlab-build-{os.getpid()}"
    run = ["run", "--rm", "--name", name, "--network", "host", *engine.BUILD_CAPABILITIES, *engine.trust(), *engine.proxies()]
    recipe = ["--volume", f"{GUEST_RECIPE}:/recipe:ro"]
    try:
        engine.stream(*run, *volume, *recipe, host, "nice", "-n", "10", "sh", "-c", script, log=lab.state / "build.log", timeout=1800)
    finally:
        docker("rm", "--force", "--volumes", name, check=False)
    report(f"  Built the guest in {time.monotonic() - started:.0f} s")
    return place
