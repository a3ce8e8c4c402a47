#!/usr/bin/env bash
# Installs what is missing, builds everything (GPU code too wherever nvcc is) and runs every test that needs no GPU.
#   scripts/test.sh [ctest options]      for example -R autograd, or -L ops
set -euo pipefail
cd "$(dirname "$0")/.."
say() { echo "==> $*"; }

scripts/setup.sh
preset=cpu
if command -v nvcc >/dev/null || [[ -x /usr/local/cuda/bin/nvcc ]]; then preset=dev; fi

say "configuring (preset $preset)"
cmake --preset "$preset" --log-level=WARNING
cmake build/$preset | sed -n '/Xylem [0-9]/,/^-- Conf/p' | grep -v '^-- Conf'
say "building build/$preset with $(nproc) jobs"
start=$SECONDS
NINJA_STATUS='[%f/%t %es] ' cmake --build "build/$preset" -j "$(nproc)" | awk '
  /Building|Linking/ { if (++n % 10 == 0) print $1, $2, n, "steps done"; fflush(); next }
  { print; fflush() }'
say "built in $((SECONDS - start)) s"

say "running the tests"
exec ctest --preset "$preset" -j "$(nproc)" "$@"
