#!/usr/bin/env bash
# Everything that needs a machine with several GPUs, in one call of at most ten minutes; writes
# bench/results/multi_gpu_N.json and keeps the machine's topology and NCCL's own dumps beside it.
#   bench/multi_gpu.sh [--gpus N] [--share]
# --share runs all ranks on one GPU through sockets: a rehearsal of this script, whose numbers mean nothing.
# Every part has a time limit of its own; one that fails is named at the end, in the file and by the exit code 1.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
share=false gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
while (($#)); do
  case $1 in
    --gpus) gpus=$2; shift 2 ;;
    --share) share=true; shift ;;
    *) sed -n '2,6s/^# //p' "$0" >&2; exit 2 ;;
  esac
done
((gpus > 1)) || { echo "multi_gpu: this needs several GPUs, not $gpus (or --share --gpus N)" >&2; exit 2; }
deadline=$((SECONDS + 580))
say() { printf '==> [%d s] %s\n' "$SECONDS" "$*"; }
# The seconds that a part may take: its own limit, or what is left.
limit() {
  local left=$((deadline - SECONDS))
  ((left < $1)) || left=$1
  echo $((left > 1 ? left : 1))
}
enough() { ((deadline - SECONDS > $1)) || { say "no time left for $2"; failed+=("$2: no time left"); return 1; }; }

if [[ ! -x build/dev/bin/scaling ]]; then
  say "building"
  cmake --preset dev -DXY_CUDA=ON -DXY_BENCH=ON | grep -A 14 'Xylem [0-9]'
  timeout "$(limit 580)" cmake --build build/dev -j "$(nproc)" >build/multi_gpu_build.log 2>&1 ||
    { echo "multi_gpu: the build failed or took too long; build first, then run this"
      grep -A 8 -E 'FAILED|error' build/multi_gpu_build.log | head -40; exit 1; }
fi
bin=build/dev/bin xylem=build/dev/bin/xylem
name=multi_gpu_$gpus
$share && name=multi_gpu_${gpus}_rehearsal
out=bench/results/$name.json kept=bench/results/$name
mkdir -p "$kept"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}  # multicast is not usable on every rented machine
$share && export XY_SHARE_GPU=1
entries=() failed=()
add() { entries+=("\"$1\": ${2:-null}"); }
# result NAME CODE: writes it down, and remembers a failure.
result() {
  add "$1_exit_code" "$2"
  (($2 == 0)) && return
  local why="exit code $2"
  (($2 == 124 || $2 == 137)) && why="it ran past its time limit"
  failed+=("$1: $why")
  say "FAILED $1: $why"
}
# ranks SECONDS N COMMAND...: one rank a GPU, or all on one
ranks() {
  local seconds n=$2
  seconds=$(limit "$1")
  shift 2
  timeout -k 5 "$seconds" mpirun -np "$n" --bind-to none --oversubscribe --mca btl ^openib \
    --mca btl_vader_single_copy_mechanism none "$@"
}
# The last line of standard input that is a JSON object.
last_object() { grep -a '^{' | tail -n 1; }
quoted() { python3 -c 'import json, sys; print(json.dumps(sys.stdin.read().strip()[-2000:]))'; }

say "topology"
timeout -k 5 "$(limit 60)" $xylem topo --json >"$kept/topology.json" 2>"$kept/topology.err"
result topology $?  # 1 also where the machine has a fault
timeout -k 5 "$(limit 60)" $xylem topo --svg "$kept/topology.svg" >"$kept/topology.txt"
head -n 60 "$kept/topology.txt"
timeout -k 5 "$(limit 90)" $xylem doctor --measure >"$kept/doctor.txt" 2>&1
result doctor $?
timeout 60 nvidia-smi topo -m >"$kept/nvidia_smi_topo.txt" 2>&1
NCCL_DEBUG=WARN XY_TOPOLOGY_KEEP=$kept/detected timeout -k 5 "$(limit 60)" $bin/distributed_tests --gtest_color=no \
  --gtest_filter='TopologyCuda.*' >"$kept/topology_tests.log" 2>&1
result topology_tests $?

say "the tuner: ring and tree forced, NCCL's estimates beside the model's"
XY_TUNER_DIFFERENCES=$kept/tuner_differences.json ranks 60 "$gpus" $bin/dist_tests --gtest_color=no \
  --gtest_filter='TunerCuda*' >"$kept/tuner.log" 2>&1
result tuner $?

say "groups, data parallel and ZeRO over NCCL, $gpus ranks"
NCCL_TOPO_DUMP_FILE=$kept/nccl_topology.xml NCCL_GRAPH_DUMP_FILE=$kept/nccl_graph.xml \
  ranks 120 "$gpus" $bin/dist_tests --gtest_color=no --gtest_filter='*Cuda*' >"$kept/dist_tests.log" 2>&1
result dist_tests $?
add dist_tests "$(grep -aE '\[  (PASSED|FAILED)' "$kept/dist_tests.log" | sort | uniq -c | head -n 20 | quoted)"

say "the watchdog"
# Its jobs use no GPU; sharing one would only stretch their time limits.
env -u XY_SHARE_GPU timeout -k 5 "$(limit 60)" $bin/distributed_tests --gtest_color=no --gtest_filter='Hang.*' \
  >"$kept/watchdog.log" 2>&1
result watchdog $?

say "jobs whose ranks are killed, also while a checkpoint is written"
XYLEM_TEST_DEVICE=cuda XYLEM_KILL_RUNS=3 timeout -k 5 "$(limit 75)" $bin/cli_tests --gtest_color=no \
  --gtest_filter='RunRanks.Killed*' >"$kept/kill.log" 2>&1
result kill $?

say "collectives: ring and tree forced through the plugin, and what NCCL alone picks"
largest=1G
$share && largest=1M
ranks 90 "$gpus" $xylem bench collectives --sizes "8..$largest" --json >"$kept/collectives.json" 2>"$kept/collectives.err"
result collectives $?

say "overlap: a trace of data parallel training"
cat >"$kept/trace.toml" <<'TOML'
[run]
dir = "runs/multi_gpu"
[model]
name = "gpt2"
layers = 12
[data]
kind = "tokens"
train = ".data/kjv/train.tok"
[train]
steps = 12
global_batch = 64
precision = "bf16"
TOML
if [[ -f .data/kjv/train.tok ]]; then
  small=()
  $share && small=(--set model.layers=2 --set train.global_batch=8)
  ranks 60 "$gpus" $xylem train "$kept/trace.toml" --fresh --trace "$kept/trace.json" "${small[@]}" >"$kept/trace.log" 2>&1
  result trace $?
else
  add trace_exit_code '"no data: run scripts/demo.sh first"'
fi

say "memory of ZeRO 0 to 3"
model=gpt2-1.5b
$share && model=tiny
results=()
for zero in 0 1 2 3; do
  enough 20 "zero $zero" || break
  line=$(ranks 40 "$gpus" $bin/scaling $model 2 3 $zero 2>"$kept/zero_$zero.err" | last_object)
  [[ -n $line ]] || { failed+=("zero $zero: no result"); say "FAILED zero $zero"; }
  results+=("${line:-null}")
done
add zero_memory "[$(IFS=,; echo "${results[*]}")]"

# Those that matter most first: what does not fit into the time is named.
models="gpt2-124m resnet50 gpt2-1.5b" counts="1 2 4 8" steps=20
$share && models=tiny counts="1 2 4" steps=5
results=()
for model in $models; do
  alone=""
  for n in $counts; do
    ((n <= gpus)) || continue
    enough 30 "$model on $n" || continue
    say "$model on $n"
    ours=$(ranks 75 "$n" $bin/scaling "$model" 0 $steps 2>"$kept/scaling_${model}_$n.err" | last_object)
    [[ -n $ours ]] || { failed+=("$model on $n: no result"); say "FAILED $model on $n"; }
    peer=null
    if ! $share && python3 -c 'import torch' 2>/dev/null && enough 60 "PyTorch's $model on $n"; then
      peer=$(timeout -k 5 "$(limit 90)" torchrun --standalone --nproc-per-node "$n" bench/scaling_torch.py "$model" \
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
add failed "$(printf '%s\n' "${failed[@]}" | python3 -c 'import json, sys; print(json.dumps([l for l in sys.stdin.read().splitlines() if l]))')"

{
  printf '{"gpus": %d, "shared_gpu": %s, "gpu": "%s", "driver": "%s", "commit": "%s", "date": "%s", "seconds": %d,\n' \
    "$gpus" "$share" "$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)" \
    "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)" \
    "${XY_COMMIT:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$SECONDS"
  (IFS=$'\n'; sed '$!s/$/,/' <<<"${entries[*]}")
  echo '}'
} >"$out"
python3 -m json.tool "$out" >/dev/null && say "wrote $out and $kept/"
((${#failed[@]} == 0)) && exit 0
printf 'failed:\n'
printf '  %s\n' "${failed[@]}"
exit 1
