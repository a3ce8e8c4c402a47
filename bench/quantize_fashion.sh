#!/usr/bin/env bash
# What int8 costs a depthwise network on Fashion-MNIST, after training and with training, over several seeds; writes
# bench/results/quantize_fashion.json. Needs .data/fashion-mnist (xylem data fashion-mnist).
#   bench/quantize_fashion.sh [seeds]
set -euo pipefail
cd "$(dirname "$0")/.."
seeds=${1:-5}
cmake --preset cpu --log-level=WARNING
cmake --build build/cpu --target xylem_cli | tail -n 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# train CONFIG [SETTING...]: the closing line
train() {
  local config=$1
  shift
  build/cpu/bin/xylem train "examples/configs/$config.toml" --fresh "$@" | grep '^final:'
}
value() { sed -nE "s/.* $1=([^ ]+).*/\1/p"; }
for seed in $(seq "$seeds"); do
  common=(--set "run.seed=$seed" --set train.tensorboard=false)
  train mobilenet_fashion "${common[@]}" --set "run.dir=$work/float" | value val_accuracy >>"$work/float.txt"
  for per_channel in false true; do
    line=$(train mobilenet_fashion_int8 "${common[@]}" --set "run.dir=$work/int8" --set "run.init=$work/float" \
      --set "quantize.per_channel=$per_channel")
    value untrained_accuracy <<<"$line" >>"$work/ptq_$per_channel.txt"
    value val_accuracy <<<"$line" >>"$work/qat_$per_channel.txt"
    echo "seed $seed, per_channel = $per_channel: $line"
  done
done

list() { paste -sd, "$work/$1.txt" | sed 's/,/, /g'; }
cat >bench/results/quantize_fashion.json <<JSON
{
  "what": "test accuracy of examples/configs/mobilenet_fashion.toml and mobilenet_fashion_int8.toml, one figure a seed",
  "float": [$(list float)],
  "scale_per_tensor": {"after_training": [$(list ptq_false)], "with_training": [$(list qat_false)]},
  "scale_per_channel": {"after_training": [$(list ptq_true)], "with_training": [$(list qat_true)]},
  "cpu": "$(sed -nE 's/^model name\s*: //p' /proc/cpuinfo | head -n 1)",
  "compiler": "$(c++ -dumpfullversion)",
  "commit": "$(git rev-parse HEAD)", "date": "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
}
JSON
cat bench/results/quantize_fashion.json
