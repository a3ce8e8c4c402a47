#!/usr/bin/env bash
# Copies the build's header-only dependencies and GoogleTest's sources from this machine into .carry/, which the build
# looks into: a copy of the tree with .carry/ builds on a machine that has a compiler, CMake and CUDA but no packages.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
rm -rf .carry
mkdir -p .carry/include .carry/src
cp -r /usr/include/{eigen3,nlohmann,CLI,toml++} .carry/include/
cp -r /usr/src/googletest .carry/src/
du -sh .carry
