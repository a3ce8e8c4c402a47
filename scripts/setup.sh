#!/usr/bin/env bash
# Installs what this machine lacks to build Xylem, run its tests and its demo. Debian 12 or Ubuntu 24.04, as root or
# with sudo. Does nothing, and needs no network, when everything is there.
#   scripts/setup.sh [build] [test] [demo] [lint] [slurm] [tensorrt]      default: the first three
set -euo pipefail
cd "$(dirname "$0")/.."

build="g++ cmake ninja-build ccache libeigen3-dev nlohmann-json3-dev libcli11-dev libtomlplusplus-dev
       libhdf5-dev libjpeg-dev libpng-dev zlib1g-dev libopenmpi-dev openmpi-bin libhwloc-dev libpugixml-dev
       libprotobuf-dev protobuf-compiler libssl-dev python3-venv"
test="libgtest-dev libgmock-dev clang-format-14 git"
# Python packages go to .venv: onnx.proto and nvml.h for the build, ONNX Runtime and the onnx checker for tests and
# `xylem export --verify`.
python="onnx onnxruntime nvidia-nvml-dev"
demo="dataset-fashion-mnist bible-kjv-text bible-kjv"
lint="clang-tidy-16"
# TensorRT-RTX, for `xylem export --verify` and `xylem lint --build`: 146 MB.
tensorrt="onnxruntime-ep-nv-tensorrt-rtx-cu13==0.5.0"
slurm="slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge" # for the test dist.slurm

wanted=""
for group in "${@:-all}"; do
  case $group in
    build) wanted+=" $build" ;;
    test) wanted+=" $test" ;;
    demo) wanted+=" $demo" ;;
    lint) wanted+=" $lint" ;;
    slurm) wanted+=" $slurm" ;;
    tensorrt) python+=" $tensorrt" ;;
    all) wanted+=" $build $test $demo" ;;
    *) echo "usage: scripts/setup.sh [build] [test] [demo] [lint] [slurm] [tensorrt]" >&2; exit 2 ;;
  esac
done

missing=()
for package in $wanted; do
  state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $state == installed ]] || missing+=("$package")
done
if ((${#missing[@]})); then
  echo "setup: installing ${missing[*]}"
  as_root=""
  if ((EUID != 0)); then
    command -v sudo >/dev/null || { echo "setup: run as root, or install sudo" >&2; exit 1; }
    as_root="sudo"
  fi
  apt() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o Acquire::Retries=3 "$@"; }
  apt update || echo "setup: apt-get update failed, trying with the package lists at hand" >&2
  if ! apt install -y --no-install-recommends "${missing[@]}" >/dev/null; then
    echo "setup: could not install: ${missing[*]}" >&2
    exit 1
  fi
fi

missing=()
for package in $python; do
  name=${package%%==*}
  compgen -G ".venv/lib/python3*/site-packages/${name//-/_}-*.dist-info" >/dev/null || missing+=("$package")
done
if ((${#missing[@]})); then
  echo "setup: installing ${missing[*]} into .venv"
  [[ -x .venv/bin/pip ]] || python3 -m venv .venv
  .venv/bin/pip install --quiet --disable-pip-version-check --retries 3 "${missing[@]}"
fi
echo "setup: everything is installed"
