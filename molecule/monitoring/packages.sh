#!/bin/sh
# Put the packages of the role, and apt's lists, into nodes of the container lab: not every machine lets their network out.
#   molecule/monitoring/packages.sh gb10-lab-1 gb10-lab-2
set -eu
image=$(docker inspect --format '{{.Image}}' "$1")
docker run --rm --network host --entrypoint sh "$image" -c '
  apt-get update -qq >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --download-only --no-install-recommends prometheus prometheus-node-exporter >&2
  tar -C / -c var/lib/apt/lists var/cache/apt/archives' >"/tmp/gb10-packages.$$"
trap 'rm -f "/tmp/gb10-packages.$$"' EXIT
for node; do docker exec -i "$node" sh -c 'tar -C / -x && touch /var/lib/apt/lists' <"/tmp/gb10-packages.$$"; done
