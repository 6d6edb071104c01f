#!/usr/bin/env bash
# The pair by hand: docker compose up on the worker, then on the head, then curl in a loop. What site.yml does for you, and the
# benchmark's other side. Usage: by_hand.sh [up|down]; the lab must be up. Prints the seconds from the worker's start on.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
state=${GB10_LAB_DIR:-$root/.lab}
nodes=(172.30.70.11 172.30.70.12)
fabric=(192.168.200.11 192.168.200.12)
image=gb10-lab/vllm-cpu:0.32.0
remote() { local host=$1; shift; ssh -i "$state/id_ed25519" -o IdentitiesOnly=yes -o UserKnownHostsFile="$state/known_hosts" -o BatchMode=yes "admin@$host" "$@"; }
now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN {printf "%.1f", b - a}'; }

compose() { # rank
  local headless=""
  [ "$1" = 0 ] || headless=", --headless"
  cat <<EOF
services:
  vllm:
    image: $image
    container_name: by-hand
    network_mode: host
    ipc: host
    cap_add: [SYS_NICE]
    restart: "no"
    volumes: [/opt/engine:/opt/engine:ro, /srv/models:/models:ro, /srv/models/vllm-cache:/cache]
    environment:
      HF_HUB_OFFLINE: "1"
      VLLM_CACHE_ROOT: /cache
      VLLM_CPU_KVCACHE_SPACE: "1"
      VLLM_NO_USAGE_STATS: "1"
      DO_NOT_TRACK: "1"
      OMP_NUM_THREADS: "1"
      VLLM_HOST_IP: ${fabric[$1]}
      GLOO_SOCKET_IFNAME: enp1s0f0np0
      NCCL_SOCKET_IFNAME: enp1s0f0np0
      TP_SOCKET_IFNAME: enp1s0f0np0
    command: [vllm, serve, /models/lab-tiny, --served-model-name, lab-tiny, --tensor-parallel-size, "2", --nnodes, "2", --node-rank, "$1",
      --master-addr, ${fabric[0]}, --master-port, "29501", --distributed-executor-backend, mp, --max-model-len, "4096", --max-num-seqs, "4",
      --enforce-eager, --host, 0.0.0.0, --port, "8000"$headless]
EOF
}

down() {
  for host in "${nodes[@]}"; do
    remote "$host" 'if [ -f /tmp/by-hand/compose.yml ]; then sudo docker compose -f /tmp/by-hand/compose.yml down -t 5 >/dev/null 2>&1; sudo rm -rf /tmp/by-hand; fi' &
  done
  wait
}

up() {
  for rank in 0 1; do compose "$rank" | remote "${nodes[$rank]}" 'mkdir -p /tmp/by-hand && cat >/tmp/by-hand/compose.yml'; done
  local start head answer
  start=$(now)
  remote "${nodes[1]}" 'sudo docker compose -f /tmp/by-hand/compose.yml up -d --quiet-pull' >/dev/null 2>&1
  echo "worker started: $(since "$start") s"
  head=$(now)
  remote "${nodes[0]}" 'sudo docker compose -f /tmp/by-hand/compose.yml up -d --quiet-pull' >/dev/null 2>&1
  echo "head started: $(since "$start") s"
  until answer=$(curl -sf --max-time 20 "http://${nodes[0]}:8000/v1/completions" -H 'Content-Type: application/json' \
    -d '{"model": "lab-tiny", "prompt": "The capital of France is", "max_tokens": 16, "temperature": 0}'); do
    for rank in 0 1; do
      if [ "$(remote "${nodes[$rank]}" 'sudo docker inspect -f {{.State.Running}} by-hand')" != true ]; then
        echo "rank $rank died:"; remote "${nodes[$rank]}" 'sudo docker logs --tail 15 by-hand 2>&1'; exit 1
      fi
    done
    if [ "$(since "$start" | cut -d. -f1)" -gt 300 ]; then echo "no completion within 300 s"; exit 1; fi
    sleep 1
  done
  echo "first completion: $(since "$start") s ($(since "$head") s from the head's start)"
  echo "$answer"
}

case ${1:-up} in
  up) up ;;
  down) down ;;
  *) echo "usage: $0 [up|down]" >&2; exit 2 ;;
esac
