#!/usr/bin/env bash
# Installs what is missing, builds everything (GPU code too wherever nvcc is) and runs every test that needs no GPU.
#   scripts/test.sh [ctest options]      for example -R autograd, or -L ops
set -euo pipefail
cd "$(dirname "$0")/.."
say() { echo "==> $*"; }
# Of the lines that report a build step, every tenth; all others.
every_tenth() {
  local line n=0
  while IFS= read -r line; do
    if [[ $line != \[* ]] || ((++n % 10 == 0)); then printf '%s\n' "$line"; fi
  done
}

scripts/setup.sh
scripts/setup.sh tensorrt || say "going on without TensorRT-RTX: its tests skip themselves"
preset=cpu
if command -v nvcc >/dev/null || [[ -x /usr/local/cuda/bin/nvcc ]]; then preset=dev; fi

say "configuring (preset $preset)"
cmake --preset "$preset" --log-level=WARNING
cmake build/$preset | sed -n '/Xylem [0-9]/,/^-- Conf/p' | grep -v '^-- Conf'
say "building build/$preset with $(nproc) jobs"
start=$SECONDS
NINJA_STATUS='[%f/%t %es] ' cmake --build "build/$preset" -j "$(nproc)" | every_tenth
say "built in $((SECONDS - start)) s"

say "running the tests that need no GPU"
export OMP_WAIT_POLICY=passive  # several test programs share the cores
log=build/$preset/test.log
status=0
ctest --preset "$preset" -j "$(nproc)" -LE gpu "$@" 2>&1 | tee "$log" || status=$?
grep -E 'tests passed, .* failed out of' "$log" || true  # once more behind the list of skipped tests
exit $status
