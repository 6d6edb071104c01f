#!/usr/bin/env bash
# Fail the build of the layer if an image lacks Patch 2b, 3 or 4 of tonyd2wild's runtime, or was built over another vLLM than that of the pinned base.
# The counts are those of his repository at cd366d5 (read 2026-11-28). Before Patch 3 its scheduler has is_prefill_chunk four times: one hit proves nothing.
set -eu
site=${SITE:-/opt/env/lib/python3.12/site-packages}

expect() { # count, marker, file below vllm/, the patch
  found=$(grep -cF -- "$2" "$site/vllm/$3") || true
  if [ "$found" != "$1" ]; then
    echo "vllm/$3: '$2' is in ${found:-0} lines, expected $1. The image does not have $4." >&2
    exit 1
  fi
}

expect 1 "rejected = torch.zeros(" v1/spec_decode/dspark_proposer.py "Patch 2b: requests at once can mix their contexts"
expect 5 is_prefill_chunk v1/core/sched/scheduler.py "Patch 3: cold prompts give garbled text"
expect 3 shared_experts.gate_up_proj v1/spec_decode/dspark.py "Patch 4: half the speed"
if ! grep -qF 0.21.1rc1.dev339 "$site/vllm/_version.py"; then
  echo "vllm/_version.py does not name vLLM 0.21.1rc1.dev339, the version of the base." >&2
  exit 1
fi
