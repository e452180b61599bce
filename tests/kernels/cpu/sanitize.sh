#!/usr/bin/env bash
# Build the kernels, the thread pool and the driver under sanitizers, and run it.
# usage: sanitize.sh [address|thread ...]    (default: both; needs cmake, ninja or make, and g++ or $CXX)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

declare -A flags=(
  [address]="-fsanitize=address,undefined -fno-sanitize-recover=all"
  [thread]="-fsanitize=thread"
)
for name in "${@:-address thread}"; do for kind in $name; do
  cmake -S "$root/umlm/kernels/cpu" -B "$work/$kind" -DUMLM_DRIVER="$here/driver" -DUMLM_UNIT_OPTIMIZATION=-O1 \
    -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="-O1 -g1 -fno-omit-frame-pointer ${flags[$kind]}" >"$work/log" 2>&1 &&
    cmake --build "$work/$kind" --parallel 2 >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  echo "--- $kind sanitizer"
  UBSAN_OPTIONS=print_stacktrace=1 "$work/$kind/driver"
done; done
