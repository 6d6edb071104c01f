#!/bin/bash
# The lab's own namespaces: the tree of a node as the root of a mount namespace, with a Docker Engine in it and a network of its own. The machine
# needs no Docker for it, only util-linux, and one that it has is not disturbed. A chroot would not do: setns() of `docker exec` leads out of it.
# usage: space.sh up | down | enter COMMAND...     GPU_LAB: the lab's folder; SPACE_BINDS: "from=to ..." for `up`
set -eu
root=$GPU_LAB/root
# The Docker Engine of the namespace. Until the process is that, its root is still the machine's, where another engine can answer.
engine() {
  pid=$(cat "$GPU_LAB/space.pid" 2>/dev/null) && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ]
}
case $1 in
up)
  mkdir -p "$root/.old" "$root"/opt/engine-host/{usr,torch,site,gcc} "$GPU_LAB/docker" "$GPU_LAB/state" "$GPU_LAB/results"
  printf '/usr/local/nvidia/lib64\n' >"$root/etc/ld.so.conf.d/nvidia.conf"
  root=$root setsid unshare --mount --net --propagation private bash -c '
    set -eu
    mount --bind "$root" "$root"
    cd "$root"
    mount --rbind /proc proc
    mount -t sysfs sysfs sys
    mount --rbind /sys/fs/cgroup sys/fs/cgroup
    mount --rbind /dev dev
    mount -t tmpfs tmpfs run
    mount -t tmpfs -o mode=1777,size=16g tmpfs tmp
    for pair in $SPACE_BINDS "$GPU_LAB=$GPU_LAB"; do
      mkdir -p "$root${pair#*=}"
      mount --bind "${pair%%=*}" "$root${pair#*=}"
    done
    pivot_root . .old
    cd /
    umount -l /.old
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
    ip link set lo up
    ldconfig
    exec dockerd --data-root "$GPU_LAB/docker" --exec-root /run/docker --pidfile /run/docker.pid --group root' \
    >"$GPU_LAB/results/dockerd.log" 2>&1 </dev/null &
  echo $! >"$GPU_LAB/space.pid"
  for _ in $(seq 150); do
    kill -0 "$(cat "$GPU_LAB/space.pid")" || { tail -5 "$GPU_LAB/results/dockerd.log" >&2; exit 1; }
    bash "$0" enter docker version >/dev/null 2>&1 && exit 0
    sleep 0.2
  done
  tail -5 "$GPU_LAB/results/dockerd.log" >&2
  exit 1 ;;
down)
  if engine; then kill "$pid" && tail --pid="$pid" -f /dev/null; fi
  rm -f "$GPU_LAB/space.pid" ;;
enter)
  shift
  engine || { echo "The GPU lab is not up (make gpu-lab)." >&2; exit 1; }
  exec nsenter --target "$pid" --mount --net --root -- env -i -C "$GPU_LAB/checkout" \
    PATH="$GPU_LAB/ansible/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/nvidia/bin" PYTHONPATH="$GPU_LAB/ansible" \
    HOME=/root LANG=C.UTF-8 TERM=dumb PYTHONUNBUFFERED=1 GPU_LAB="$GPU_LAB" GPU_LAB_DEVICES="${GPU_LAB_DEVICES:-/dev}" GB10_LAB_DIR="$GPU_LAB/state" \
    GPU_LAB_AGAIN="${GPU_LAB_AGAIN:-}" GPU_LAB_GPUS="${GPU_LAB_GPUS:-2}" NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 \
    ANSIBLE_INJECT_FACT_VARS=false ANSIBLE_ALLOW_EMBEDDED_TEMPLATES=false "$@" ;;
*)
  echo "usage: $0 up | down | enter COMMAND..." >&2
  exit 2 ;;
esac
