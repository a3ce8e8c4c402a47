#!/usr/bin/env bash
# Where the time of one training step goes on this machine's GPU: the time of every kernel of one warm step, summed by
# name. Writes bench/results/trace_MODEL.csv and prints its head. Kernels run one after the other here, and copies and
# fills by the driver (cudaMemcpyAsync, cudaMemsetAsync) are not seen.
#   bench/trace.sh [--rows N] [MODEL | MODEL:BATCH]...      default: gpt2-124m:64 llama-1b:4 resnet50:256
# XY_TRACE_OPTIONS="--not-deterministic" is handed to build/dev/bin/scaling.
set -euo pipefail
cd "$(dirname "$0")/.."
rows=45 cases=()
while (($#)); do
  case $1 in
    --rows) rows=$2; shift 2 ;;
    -*) sed -n '2,7s/^# //p' "$0" >&2; exit 2 ;;
    *) cases+=("$1"); shift ;;
  esac
done
((${#cases[@]})) || cases=(gpt2-124m:64 llama-1b:4 resnet50:256)
if [[ ! -x build/dev/bin/scaling ]]; then
  cmake --preset dev -DXY_CUDA=ON -DXY_BENCH=ON --log-level=WARNING
  cmake --build build/dev -j "$(nproc)" --target scaling
fi
mkdir -p bench/results
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
read -ra options <<<"${XY_TRACE_OPTIONS:-}"
for case in "${cases[@]}"; do
  model=${case%%:*} batch=0
  [[ $case == *:* ]] && batch=${case#*:}
  # A run without the profiler says how long the step takes as a whole.
  plain=$(build/dev/bin/scaling --graph "${options[@]}" "$model" "$batch" 10 | grep '^{')
  ncu --profile-from-start off --metrics gpu__time_duration.sum --clock-control none --csv --page raw \
    --print-units base --target-processes all --log-file "$work/raw.csv" \
    build/dev/bin/scaling "${options[@]}" --profile "$model" "$batch" 1 >"$work/out" 2>&1 ||
    { tail -n 20 "$work/out" "$work/raw.csv" >&2; exit 1; }
  python3 bench/trace_table.py "$work/raw.csv" --step "$plain" --rows "$rows" --write "bench/results/trace_$model.csv"
done
