#!/usr/bin/env bash
# Copies the dependencies of the build that are headers alone, pugixml, nvml.h and GoogleTest's sources from this machine
# into .carry/, which the build looks into: a copy of the tree with .carry/ builds on a machine that has a compiler, CMake
# and CUDA but no packages.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
rm -rf .carry
mkdir -p .carry/include .carry/src
cp -r /usr/include/{eigen3,nlohmann,CLI,toml++} .carry/include/
cp -r /usr/src/googletest .carry/src/
cp /usr/include/pugi*.hpp .carry/include/
mkdir -p .carry/lib
cp -L /usr/lib/*/libpugixml.so.1 .carry/lib/
cp .venv/lib/python3*/site-packages/nvidia/*/include/nvml.h .carry/include/
du -sh .carry
