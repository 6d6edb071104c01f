#!/bin/sh
# Runs once, while the node image is built.
set -eu
# Host keys are made at a node's first start, never shared by an image.
rm -f /etc/ssh/ssh_host_*
: >/etc/machine-id
# The lab's two users: admin (sudo without a password) and owner (sudo asks for one, for the -K test).
for u in admin owner; do
  useradd --create-home --shell /bin/bash "$u"
  install -d -m 0700 -o "$u" -g "$u" "/home/$u/.ssh"
done
printf 'owner:gb10-lab\n' | chpasswd
printf 'admin ALL=(ALL:ALL) NOPASSWD: ALL\n' >/etc/sudoers.d/90-admin
printf 'owner ALL=(ALL:ALL) PASSWD: ALL\n' >/etc/sudoers.d/91-owner
chmod 0440 /etc/sudoers.d/90-admin /etc/sudoers.d/91-owner
mkdir -p /etc/ssh/sshd_config.d /etc/systemd/journald.conf.d
printf 'PasswordAuthentication no\nPermitRootLogin no\nUseDNS no\nPrintMotd no\nMaxStartups 60\nMaxSessions 60\n' >/etc/ssh/sshd_config.d/10-lab.conf
printf '[Journal]\nStorage=persistent\nSystemMaxUse=64M\nForwardToConsole=no\n' >/etc/systemd/journald.conf.d/10-lab.conf
# What a container has no use for, and what would reach the host's kernel: most sysctls are not namespaced.
for unit in systemd-sysctl.service systemd-modules-load.service systemd-udevd.service systemd-udev-trigger.service \
  systemd-networkd.service systemd-networkd.socket systemd-networkd-wait-online.service systemd-resolved.service systemd-timesyncd.service \
  systemd-firstboot.service systemd-binfmt.service proc-sys-fs-binfmt_misc.automount proc-sys-fs-binfmt_misc.mount \
  getty.target getty-static.service console-getty.service getty@tty1.service sys-kernel-debug.mount sys-kernel-tracing.mount \
  sys-kernel-config.mount sys-fs-fuse-connections.mount dev-hugepages.mount dev-mqueue.mount \
  apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer e2scrub_reap.service \
  systemd-logind.service ldconfig.service systemd-hwdb-update.service systemd-update-utmp.service \
  iwpmd.service rdma-hw.target rdma-load-modules@.service rdma-ndd.service srp_daemon.service ssh.socket sshd-unix-local.socket; do
  ln -sf /dev/null "/etc/systemd/system/$unit"
done
rm -f /etc/systemd/system/sysinit.target.wants/* /etc/pam.d/.pwd.lock
systemctl set-default multi-user.target >/dev/null 2>&1
systemctl enable ssh.service docker.service >/dev/null 2>&1
mkdir -p /srv/models /etc/netplan
