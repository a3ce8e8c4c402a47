#!/usr/bin/env bash
# Runs clang-tidy over the library's and the command's .cpp files, or over the files named. Needs clang-tidy 15 or newer
# (Debian 12: apt-get install clang-tidy-16) and a configured build/cpu.
set -euo pipefail
cd "$(dirname "$0")/.."
for version in 18 17 16 15 ""; do
  tidy=$(command -v "clang-tidy${version:+-$version}") && break
done
major=$($tidy --version | sed -nE 's/.*version ([0-9]+)\..*/\1/p')
((major >= 15)) || { echo "tidy: clang-tidy $major cannot read C++20's source_location, 15 or newer can" >&2; exit 1; }
[[ -f build/cpu/compile_commands.json ]] || cmake --preset cpu
(($#)) || mapfile -t files < <(find core ops distributed models data cli -name '*.cpp' ! -name '*_cuda.cpp' \
  ! -path 'ops/backend/c*')
printf '%s\n' "${@:-${files[@]}}" | xargs -P "$(nproc)" -n 1 "$tidy" -p build/cpu --quiet
