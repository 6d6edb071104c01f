#!/bin/sh
# A STUB of nvidia-smi for the molecule scenario gpu. It keeps what it was asked to set in a folder, as the driver does until a reboot. No GPU is involved.
state=${GB10_STUB_STATE:-/run/gb10-stub-nvidia-smi}
mkdir -p "$state"
cap=$(cat "$state/cap" 2>/dev/null || echo 3003)
mode=$(cat "$state/mode" 2>/dev/null || echo Disabled)
bus=0000000F:01:00.0
[ ! -e "$state/reply$1" ] || exec sh "$state/reply$1" "$@"  # what a test of the role has the driver answer
case $1 in
  --query-gpu=index,persistence_mode,clocks.sm,clocks.max.sm) echo "0, $mode, $cap, 3003" ;;
  --query-gpu=persistence_mode) echo "$mode" ;;
  -pm) [ "$2" = 1 ] && echo Enabled >"$state/mode" || echo Disabled >"$state/mode"
    echo "$(cat "$state/mode") persistence mode for GPU $bus." ;;
  -lgc) echo "${2#*,}" >"$state/cap"
    echo "GPU clocks set to \"(gpuClkMin ${2%,*}, gpuClkMax ${2#*,})\" for GPU $bus" ;;
  -rgc) rm -f "$state/cap"
    echo "All done." ;;
  *) echo "This is a stub of nvidia-smi. It does not support: $*" >&2
    exit 2 ;;
esac
