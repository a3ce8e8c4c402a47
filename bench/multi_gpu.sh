#!/usr/bin/env bash
# Everything that needs a machine with several GPUs, in one call of at most ten minutes; writes
# bench/results/multi_gpu_N.json and keeps the machine's topology and NCCL's own dumps beside it.
#   bench/multi_gpu.sh [--gpus N] [--share]
# --share runs all ranks on one GPU through sockets: a rehearsal of this script, whose numbers mean nothing.
set -uo pipefail
cd "$(dirname "$0")/.."
share=false gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
while (($#)); do
  case $1 in
    --gpus) gpus=$2; shift 2 ;;
    --share) share=true; shift ;;
    *) sed -n '2,5s/^# //p' "$0" >&2; exit 2 ;;
  esac
done
((gpus > 1)) || { echo "multi_gpu: this needs several GPUs, not $gpus (or --share --gpus N)" >&2; exit 2; }
deadline=$((SECONDS + 590))
say() { printf '==> [%d s] %s\n' "$SECONDS" "$*"; }
left() { echo $((deadline - SECONDS > 5 ? deadline - SECONDS : 5)); }

if [[ ! -x build/dev/bin/scaling ]]; then
  say "building"
  cmake --preset dev -DXY_CUDA=ON -DXY_BENCH=ON | grep -A 14 'Xylem [0-9]'
  cmake --build build/dev -j "$(nproc)" >build/multi_gpu_build.log 2>&1 ||
    { grep -A 8 -E 'FAILED|error' build/multi_gpu_build.log | head -40; exit 1; }
fi
bin=build/dev/bin xylem=build/dev/bin/xylem
name=multi_gpu_$gpus
$share && name=multi_gpu_${gpus}_rehearsal
out=bench/results/$name.json kept=bench/results/$name
mkdir -p "$kept"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}  # multicast is not usable on every rented machine
$share && export XY_SHARE_GPU=1
# ranks N COMMAND...: one rank a GPU, or all on one
ranks() {
  local n=$1 t
  shift
  t=$(left)
  timeout "$t" mpirun -np "$n" --bind-to none --oversubscribe --mca btl ^openib \
    --mca btl_vader_single_copy_mechanism none "$@"
}
entries=()
add() { entries+=("\"$1\": ${2:-null}"); }
# The last line of standard input that is a JSON object.
last_object() { grep -a '^{' | tail -n 1; }
quoted() { python3 -c 'import json, sys; print(json.dumps(sys.stdin.read().strip()[-2000:]))'; }

say "topology"
$xylem topo --json >"$kept/topology.json" 2>"$kept/topology.err"
add topology_exit_code $?
$xylem topo --svg "$kept/topology.svg" | tee "$kept/topology.txt" | head -n 60
nvidia-smi topo -m >"$kept/nvidia_smi_topo.txt" 2>&1

say "groups, data parallel, ZeRO and the tuner over NCCL, $gpus ranks"
NCCL_TOPO_DUMP_FILE=$kept/nccl_topology.xml NCCL_GRAPH_DUMP_FILE=$kept/nccl_graph.xml \
  ranks "$gpus" $bin/dist_tests --gtest_color=no --gtest_filter='*Cuda*' >"$kept/dist_tests.log" 2>&1
add dist_tests_exit_code $?
add dist_tests "$(grep -aE '\[  (PASSED|FAILED)' "$kept/dist_tests.log" | sort | uniq -c | head -n 20 | quoted)"

say "the watchdog"
timeout "$(left)" $bin/distributed_tests --gtest_color=no --gtest_filter='*Hang*' >"$kept/watchdog.log" 2>&1
add watchdog_exit_code $?

say "jobs whose ranks are killed, also while a checkpoint is written"
XYLEM_TEST_DEVICE=cuda XYLEM_KILL_RUNS=3 timeout "$(left)" $bin/cli_tests --gtest_color=no \
  --gtest_filter='RunRanks.Killed*' >"$kept/kill.log" 2>&1
add kill_exit_code $?

say "collectives: ring and tree forced through the plugin, and what NCCL alone picks"
largest=1G
$share && largest=1M
ranks "$gpus" $xylem bench collectives --sizes "8..$largest" --json >"$kept/collectives.json" 2>"$kept/collectives.err"
add collectives_exit_code $?

models="gpt2-124m resnet50 gpt2-1.5b" counts="1 2 4 8" steps=20
$share && models=tiny counts="1 2 4" steps=5
results=()
for model in $models; do
  alone=""
  for n in $counts; do
    ((n <= gpus)) || continue
    (($(left) > 40)) || { say "no time left for $model on $n"; continue; }
    say "$model on $n"
    ours=$(ranks "$n" $bin/scaling "$model" 0 $steps 2>"$kept/scaling_${model}_$n.err" | last_object)
    peer=null
    if ! $share && python3 -c 'import torch' 2>/dev/null; then
      peer=$(timeout "$(left)" torchrun --standalone --nproc-per-node "$n" bench/scaling_torch.py "$model" \
        2>"$kept/torch_${model}_$n.err" | last_object)
    fi
    rate=$(sed -nE 's/.*"units_per_s": ([0-9]+).*/\1/p' <<<"$ours")
    ((n == 1)) && alone=$rate
    efficiency=null
    [[ -n $rate && -n $alone ]] && efficiency=$(awk -v r="$rate" -v a="$alone" -v n="$n" 'BEGIN { printf "%.4f", r / a / n }')
    echo "$ours"
    results+=("{\"xylem\": ${ours:-null}, \"torch_ddp\": ${peer:-null}, \"weak_scaling_efficiency\": $efficiency}")
  done
done
add scaling "[$(IFS=,; echo "${results[*]}")]"

say "memory of ZeRO 0 to 3"
model=gpt2-1.5b
$share && model=tiny
results=()
for zero in 0 1 2 3; do
  (($(left) > 30)) || break
  results+=("$(ranks "$gpus" $bin/scaling $model 2 3 $zero 2>/dev/null | last_object)")
done
add zero_memory "[$(IFS=,; echo "${results[*]}")]"

say "overlap: a trace of data parallel training"
cat >"$kept/trace.toml" <<'TOML'
[run]
dir = "runs/multi_gpu"
[model]
name = "gpt2"
layers = 12
[data]
kind = "tokens"
train = ".data/kjv/train.tokens"
[train]
steps = 12
global_batch = 64
precision = "bf16"
TOML
if [[ -d .data/kjv ]]; then
  ranks "$gpus" $xylem train "$kept/trace.toml" --fresh --trace "$kept/trace.json" >"$kept/trace.log" 2>&1
  add trace_exit_code $?
else
  add trace_exit_code '"no data: run scripts/demo.sh first"'
fi

{
  printf '{"gpus": %d, "shared_gpu": %s, "gpu": "%s", "driver": "%s", "commit": "%s", "date": "%s", "seconds": %d,\n' \
    "$gpus" "$share" "$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)" \
    "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)" \
    "${XY_COMMIT:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$SECONDS"
  (IFS=$'\n'; sed '$!s/$/,/' <<<"${entries[*]}")
  echo '}'
} >"$out"
python3 -m json.tool "$out" >/dev/null && say "wrote $out and $kept/"
