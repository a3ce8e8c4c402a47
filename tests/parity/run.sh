#!/usr/bin/env bash
# Compares Xylem with PyTorch on this machine: losses, every gradient and ten optimizer steps of GPT-2 and ResNet-18.
# Needs a Python with PyTorch ($PYTHON, default python3) and the program `parity` of a build.
#   tests/parity/run.sh [BUILD_FOLDER [cpu|cuda]]      default: build/release, or build/cpu; the GPU if there is one
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
build=${1:-}
[[ -n $build ]] || for build in build/release build/dev build/cpu; do [[ -x $build/bin/parity ]] && break; done
[[ -x $build/bin/parity ]] || { echo "parity: $build/bin/parity is missing; build the target 'parity'" >&2; exit 2; }
"$python" -c 'import torch' 2>/dev/null || { echo "parity: $python has no PyTorch (set PYTHON)" >&2; exit 2; }
device=${2:-$("$python" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")')}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" tests/parity/torch_reference.py "$folder" "$device"
"$build/bin/parity" "$folder" "$device"
