#!/usr/bin/env bash
# Times the training steps of the demo's GPT and CNN in Xylem and in libtorch on this machine's CPU, in turns, and writes
# bench/results/cpu_demo.json. Needs libtorch (Debian: apt-get install libtorch-dev libopenblas0-pthread).
#   bench/cpu_demo.sh [rounds] [steps per round]
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5} steps=${2:-20}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(nproc)}

cmake --preset cpu -DXY_BENCH=ON --log-level=WARNING
cmake --build build/cpu --target xylem_steps torch_steps

# setting FILE KEY DEFAULT: the value of a key of a configuration file
setting() {
  local value
  value=$(sed -nE "s/^$2 *= *([0-9]+).*/\1/p" "examples/configs/$1.toml" | head -n 1)
  echo "${value:-$3}"
}
# shellcheck disable=SC2034  # both are used by name
gpt="gpt $(setting gpt_bible layers 12) $(setting gpt_bible heads 12) $(setting gpt_bible width 768) \
$(setting gpt_bible context 128) $(setting gpt_bible global_batch 32)"
cnn="cnn $(setting cnn_fashion width 16) $(setting cnn_fashion blocks 1) $(setting cnn_fashion stages 3) \
$(setting cnn_fashion global_batch 32)"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for round in $(seq "$rounds"); do
  for name in gpt cnn; do
    for side in xylem torch; do
      # shellcheck disable=SC2086  # the workload is several words
      build/cpu/bin/${side}_steps ${!name} "$steps" 2>/dev/null >>"$work/${side}_$name"
    done
  done
  echo "round $round of $rounds"
done

quantile() { sort -n "$1" | awk -v q="$2" '{ v[NR] = $1 } END { i = int(q * (NR - 1) + 1.5); print v[i] }'; }
entry() {
  local x t
  x=$(quantile "$work/xylem_$1" 0.5) t=$(quantile "$work/torch_$1" 0.5)
  printf '  "%s": {"workload": "%s", "xylem_ms": %s, "libtorch_ms": %s, "ratio": %.3f,\n' "$1" "${!1}" "$x" "$t" \
    "$(awk -v x="$x" -v t="$t" 'BEGIN { print x / t }')"
  printf '    "xylem_ms_p10_p90": [%s, %s], "libtorch_ms_p10_p90": [%s, %s]}' \
    "$(quantile "$work/xylem_$1" 0.1)" "$(quantile "$work/xylem_$1" 0.9)" \
    "$(quantile "$work/torch_$1" 0.1)" "$(quantile "$work/torch_$1" 0.9)"
}
package() { dpkg-query -W -f='${Version}' "$1" 2>/dev/null || echo unknown; }
mkdir -p bench/results
{
  printf '{\n'
  printf '%s,\n%s,\n' "$(entry gpt)" "$(entry cnn)"
  printf '  "steps": %s, "threads": %s, "libtorch": "%s", "openblas": "%s", "openblas_coretype": "%s",\n' \
    $((rounds * steps)) "$OMP_NUM_THREADS" "$(package libtorch-dev)" "$(package libopenblas0-pthread)" \
    "${OPENBLAS_CORETYPE:-auto}"
  printf '  "cpu": "%s", "cores": %s, "compiler": "%s",\n' \
    "$(sed -nE 's/^model name\s*: //p' /proc/cpuinfo | head -n 1)" "$(nproc)" "$(c++ -dumpfullversion)"
  printf '  "commit": "%s", "date": "%s"\n}\n' "$(git rev-parse HEAD)" "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
} | tee bench/results/cpu_demo.json
