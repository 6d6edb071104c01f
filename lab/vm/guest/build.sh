#!/bin/bash
# Builds the guest inside the lab's own container: a root file system, a kernel that PVH can start, a small initrd.
# Called by lab/vm/images.py as `build.sh OUT MIRROR SUITE`; everything it writes is below OUT.
# Why it looks like this: without KVM every instruction of the guest is emulated, so the boot must do little.
set -euo pipefail
out=$1 mirror=$2 suite=$3
here=$(cd "$(dirname "$0")" && pwd)
root=$out/rootfs
rm -rf "$root"
mkdir -p "$out"
step() { printf '%s s  %s\n' "$SECONDS" "$*"; }

packages=(
  systemd-sysv udev dbus kmod procps pciutils dmidecode util-linux-extra linux-sysctl-defaults
  openssh-server rsync sudo python3 python3-apt python3-yaml ca-certificates curl
  iproute2 ethtool iputils-ping netplan.io network-manager iptables nftables
  rdma-core ibverbs-utils ibverbs-providers perftest infiniband-diags rdmacm-utils
  docker.io docker-cli docker-compose dmsetup earlyoom
  linux-image-amd64
)

step "packages"
# linux-image wants an initramfs tool: it is installed and does nothing.
mmdebstrap --variant=minbase --mode=root --format=directory --dpkgopt=force-confold \
  --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='Acquire::Check-Date "false"' \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
  --essential-hook='mkdir -p "$1/etc/initramfs-tools"; echo "do_initrd = no" >"$1/etc/kernel-img.conf"; echo "update_initramfs=no" >"$1/etc/initramfs-tools/update-initramfs.conf"' \
  --include="$(IFS=,; echo "${packages[*]}")" --quiet "$suite" "$root" "$mirror"

step "kernel modules: what such a machine can use, unpacked (xz is slow when emulated)"
kernel=$(basename "$(find "$root/lib/modules" -mindepth 1 -maxdepth 1 | sort -V | tail -1)")
keep='/(net/(core|ipv4|ipv6|netfilter|bridge|802|8021q|llc|sched|unix|dns_resolver|xfrm)/|fs/(ext4|jbd2|overlayfs|configfs|fuse|autofs|nls|fat|binfmt)|fs/[a-z0-9_]*\.ko|lib/|crypto/|block/|drivers/infiniband/(core|sw)/|drivers/net/(veth|dummy|virtio_net|net_failover|bonding/|macvlan|ipvlan/|vxlan/|ifb|tun|tap|loopback)|drivers/block/(virtio_blk|loop|zram/|brd)|drivers/char/hw_random/virtio|drivers/virtio/|drivers/md/|drivers/nvme/|drivers/watchdog/(watchdog|i6300esb)\.ko|mm/|security/)'
(
  cd "$root/lib/modules/$kernel/kernel"
  find . -name '*.ko.xz' | { grep -vE "$keep" || true; } | xargs -r rm -f
  find . -name '*.ko.xz' -print0 | xargs -0 unxz
  find . -type d -empty -delete
)
depmod -b "$root" "$kernel"

step "settings"
chroot "$root" useradd --create-home --uid 1000 --shell /bin/bash --groups sudo,docker,adm,systemd-journal admin
install -d -m 700 -o 1000 -g 1000 "$root/home/admin/.ssh"
echo 'admin ALL=(ALL) NOPASSWD:ALL' >"$root/etc/sudoers.d/90-admin"
chmod 440 "$root/etc/sudoers.d/90-admin"
rm -f "$root"/etc/ssh/ssh_host_* "$root"/var/lib/dbus/machine-id "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/*
ln -s /etc/machine-id "$root/var/lib/dbus/machine-id"
: >"$root/etc/machine-id"
: >"$root/etc/default/locale"
mkdir -p "$root/srv/models" "$root/usr/local/lib/vmlab"
printf '%s\n' '/dev/vda / ext4 noatime,errors=remount-ro 0 1' '/swap.img none swap sw 0 0' \
  'LABEL=models /srv/models ext4 noatime,nofail,x-systemd.device-timeout=180 0 2' >"$root/etc/fstab"
cp -r --no-preserve=mode,ownership "$here/files/." "$root/"
find "$root/usr/local/lib/vmlab" -type f -exec chmod 755 {} +

chroot "$root" systemctl --quiet set-default multi-user.target
chroot "$root" systemctl --quiet enable ssh.service docker.socket docker.service containerd.service vmlab-rails.service
# The network daemon is each node's own.
chroot "$root" systemctl --quiet disable earlyoom.service systemd-networkd.service \
  NetworkManager.service NetworkManager-dispatcher.service NetworkManager-wait-online.service 2>/dev/null
while read -r unit; do
  [ -z "$unit" ] || ln -sf /dev/null "$root/etc/systemd/system/$unit"
done <"$here/masked-units"
mkdir -p "$root/etc/systemd/system-generators"
while read -r generator; do
  [ -z "$generator" ] || ln -sf /dev/null "$root/etc/systemd/system-generators/$generator"
done <"$here/masked-generators"
chroot "$root" python3 -m compileall -q /usr/lib/python3 /usr/lib/python3.13 >/dev/null || true

step "probe image"
probe=$out/probe
rm -rf "$probe"
mkdir -p "$probe/bin" "$probe/tmp" "$probe/etc"
cp /bin/busybox "$probe/bin/busybox"
for applet in $(/bin/busybox --list | grep -vx busybox); do ln -s busybox "$probe/bin/$applet"; done
tar -C "$probe" --owner=0 --group=0 -cf "$root/usr/local/lib/vmlab/probe.tar" .

step "kernel: the ELF image inside vmlinuz, started by PVH without unpacking itself"
python3 "$here/unpack_kernel.py" "$root/boot/vmlinuz-$kernel" "$out/vmlinux"
rm -f "$root"/boot/vmlinuz* "$root"/boot/initrd*

step "initrd"
ram=$out/initrd.d
rm -rf "$ram"
mkdir -p "$ram/bin" "$ram/dev" "$ram/proc" "$ram/newroot" "$ram/modules"
cp /bin/busybox "$ram/bin/busybox"
number=100
for module in virtio_blk ext4; do
  modprobe -d "$root" -S "$kernel" --show-depends "$module" | awk '$1 == "insmod" {print $2}'
done | awk '!seen[$0]++' | while read -r file; do
  cp "$file" "$ram/modules/$number-$(basename "$file")"
  number=$((number + 1))
done
install -m 755 "$here/init" "$ram/init"
(cd "$ram" && find . | cpio -o -H newc --quiet) >"$out/initrd"

step "disks"
rm -f "$out/base.img" "$out/models.img"
truncate -s 8G "$out/base.img"
mke2fs -q -t ext4 -m 0 -L root -d "$root" -F "$out/base.img"
truncate -s 2G "$out/models.img"
mke2fs -q -t ext4 -m 0 -L models -F "$out/models.img"

step "finish: one boot of the guest makes the swap file and loads the probe image"
qemu-system-x86_64 -M q35,sata=off,smbus=off,i8042=off,vmport=off,usb=off -accel tcg,thread=multi -cpu max -m 1536 -smp 1 \
  -nodefaults -no-user-config -display none -no-reboot -serial "file:$out/finish.console" \
  -kernel "$out/vmlinux" -initrd "$out/initrd" \
  -append "root=/dev/vda rw console=ttyS0 quiet loglevel=4 mitigations=off nokaslr lsm= audit=0 systemd.wants=vmlab-finish.service systemd.mask=vmlab-rails.service systemd.mask=ssh.service" \
  -drive "if=none,id=root,file=$out/base.img,format=raw,cache=unsafe,discard=unmap,detect-zeroes=unmap" -device virtio-blk-pci,drive=root \
  -device virtio-rng-pci &
guest=$!
for _ in $(seq 600); do
  kill -0 "$guest" 2>/dev/null || break
  sleep 1
done
if kill -0 "$guest" 2>/dev/null; then
  kill "$guest"
  echo "The guest did not finish its first boot within 600 s; its console is $out/finish.console." >&2
  exit 1
fi
grep -q 'vmlab-finish: done' "$out/finish.console" || {
  echo "The guest's first boot failed:" >&2
  tail -20 "$out/finish.console" >&2
  exit 1
}
rm -rf "$root" "$probe" "$ram"
step "done, $(du -sh "$out" | cut -f1)"
