#!/usr/bin/env bash
# Training steps of ours and of PyTorch's in turns on this machine's GPU; prints the ratios and writes
# bench/results/peers.json. Ours launches the step as one CUDA graph and runs in both modes: bitwise repeatable, and like
# PyTorch, whose sums may depend on the order of threads. The peer is compiled once and waits while ours runs.
#   bench/peers.sh [--rounds N] [--steps N] [MODEL:BATCH]...   default: gpt2-124m:64 gpt2-1.5b:16 llama-1b:4 resnet50:256
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ ! -x build/dev/bin/scaling ]]; then
  cmake --preset dev -DXY_CUDA=ON -DXY_BENCH=ON --log-level=WARNING
  cmake --build build/dev -j "$(nproc)" --target scaling
fi
exec python3 bench/peers.py "$@"
