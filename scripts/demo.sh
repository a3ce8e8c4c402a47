#!/usr/bin/env bash
# From a clean clone to two trained models, one of them deployed: a small GPT on the King James Bible, byte by byte, and
# a residual CNN on Fashion-MNIST, which then learns to compute with 8-bit numbers and is exported for two runtimes. On
# two CPU cores it takes about twelve minutes, set-up and build included; a GPU is used if there is one.
set -euo pipefail
cd "$(dirname "$0")/.."
start=$SECONDS
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-10000}  # idle threads soon leave their core to the data loader
say() { printf '\n==> [%d s] %s\n' $((SECONDS - start)) "$*"; }

say "installing what is missing"
scripts/setup.sh build demo

options=() steps=0
if nvidia-smi -L >/dev/null 2>&1 && { command -v nvcc || [[ -x /usr/local/cuda/bin/nvcc ]]; } >/dev/null; then
  preset=dev
  arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
  [[ $arch == 90 ]] && arch=90a
  options=("-DXY_CUDA_ARCHS=$arch-real")
  where="the GPU ($(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1))"
else
  preset=cpu
  where="$(nproc) CPU cores"
fi
[[ -f build/$preset/CMakeCache.txt ]] || options+=(-DXY_PCH=ON)
say "building the library and the xylem command in build/$preset, for $where"
cmake --preset $preset "${options[@]}" --log-level=STATUS | sed -n '/Xylem [0-9]/,/^-- Conf/p' | grep -v '^-- Conf'
NINJA_STATUS='[%f/%t, %es] ' cmake --build build/$preset --target xylem_cli -j "$(nproc)" |
  while IFS= read -r line; do  # every tenth build step, and whatever else there is to say
    if [[ $line != \[* ]] || ((++steps % 10 == 1)); then printf '%s\n' "$line"; fi
  done
xylem=build/$preset/bin/xylem

say "preparing the data in .data/"
mkdir -p .data
[[ -s .data/kjv.txt ]] || bible -f gen1:1-rev22:21 </dev/null | sed 's/^[^ ]* //' >.data/kjv.txt # a verse a line
$xylem data text .data/kjv.txt --out .data/kjv
$xylem data fashion-mnist --out .data/fashion-mnist

# Trains with a configuration and keeps what the closing line says.
train() {
  local log
  log=$(mktemp)
  $xylem train "$1" --fresh | tee "$log"
  final=$(grep '^final:' "$log" | tail -n 1)
  rm -f "$log"
}
value() { sed -nE "s/.* $1=([^ ]+).*/\1/p" <<<"$final"; }

say "training a byte-level GPT on the King James Bible (examples/configs/gpt_bible.toml)"
train examples/configs/gpt_bible.toml
gpt_loss=$(value val_loss)
say "a sample of what it writes"
$xylem generate runs/gpt_bible --prompt "And the LORD said unto " --tokens 300

say "training the same GPT for 30 steps on two ranks (xylem run -np 2)"
$xylem run -np 2 --fresh examples/configs/gpt_bible.toml --set run.dir=runs/gpt_two_ranks --set train.steps=30 \
  --set run.device=cpu

say "training a residual CNN on Fashion-MNIST (examples/configs/cnn_fashion.toml)"
train examples/configs/cnn_fashion.toml
cnn_accuracy=$(value val_accuracy)

say "teaching it to compute with 8-bit numbers (examples/configs/cnn_fashion_int8.toml)"
train examples/configs/cnn_fashion_int8.toml
ptq_accuracy=$(value untrained_accuracy)
qat_accuracy=$(value val_accuracy)

# Writes and verifies a bundle; prints "<bytes of the model> <accuracy in ONNX Runtime, in percent>".
bundle() {
  local log out=runs/bundles/$2
  log=$(mktemp)
  rm -rf "$out"
  $xylem export "runs/$1" --profile "$3" --out "$out" --verify >"$log" || { cat "$log" >&2; exit 1; }
  printf '%s %s' "$(find "$out" -name model.onnx -printf '%s\n' | sort -n | tail -n 1)" \
    "$(sed -nE 's/.*ONNX Runtime ([0-9.]+) %.*/\1/p' "$log")"
  rm -f "$log"
}
percent() { awk -v x="$1" 'BEGIN { printf "%.2f", 100 * x }'; }

say "exporting to ONNX, and running what was written in ONNX Runtime"
mkdir -p runs/bundles
read -r float_bytes float_ort < <(bundle cnn_fashion float exact; echo)
read -r cpu_bytes cpu_ort < <(bundle cnn_fashion_int8 int8_ort_cpu ort-cpu; echo)
read -r trt_bytes trt_ort < <(bundle cnn_fashion_int8 int8_trt10 trt10; echo)
row() { printf '    %-34s %10s %12s %14s\n' "$@"; }
row "" "accuracy" "file" "ONNX Runtime"
row "float" "$(percent "$cnn_accuracy") %" "$float_bytes B" "$float_ort %"
row "int8 after training" "$(percent "$ptq_accuracy") %" "" ""
row "int8 with training, for ort-cpu" "$(percent "$qat_accuracy") %" "$cpu_bytes B" "$cpu_ort %"
row "int8 with training, for trt10" "$(percent "$qat_accuracy") %" "$trt_bytes B" "$trt_ort %"

cat <<EOT

==> What happened
    A GPT was trained on 4 MB of text to a validation loss of $gpt_loss nats per byte, and a residual CNN on 60000
    images to a test accuracy of $cnn_accuracy, both on $where. With 8-bit numbers the CNN reaches $qat_accuracy.
    Each run folder holds the resolved configuration, checkpoints, metrics.jsonl and TensorBoard files; open the curves
    in a browser:
        runs/gpt_bible/loss.svg
        runs/cnn_fashion/loss.svg
    What a deployment needs lies in runs/bundles: models, reference values, lint reports, Triton repositories.
==> What to try next
    $xylem generate runs/gpt_bible --prompt "In the beginning" --temperature 0.7
    $xylem train examples/configs/gpt_bible.toml --set run.dir=runs/wider --set model.width=256
    $xylem train --help-config          every key of a configuration
    $xylem doctor                       what was built and what this machine offers
    docs/guide.md                       your own training loop in C++

demo: gpt_val_loss=$gpt_loss cnn_accuracy=$cnn_accuracy seconds=$((SECONDS - start))
EOT
