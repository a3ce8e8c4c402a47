#!/usr/bin/env bash
# Runs clang-tidy 16 with the checks of .clang-tidy over what a CPU build compiles of the library, the command and the
# examples: all of it, or the files and folders that are named. Headers are checked with the files that include them.
# Tests are left out: they do on purpose much of what it warns about. Exits with 1 when anything is found.
#   scripts/tidy.sh [-j JOBS] [FILE | FOLDER]...      for example core/tensor cli/main.cpp
set -euo pipefail
jobs=$(nproc)
while getopts j: option; do
  [[ $option == j ]] && jobs=$OPTARG || exit 2
done
shift $((OPTIND - 1))
wanted=()
for path; do wanted+=("$(realpath -- "$path")") || exit 2; done
cd -P "$(dirname "$0")/.."

scripts/setup.sh build lint
cmake --log-level=WARNING -B build/tidy -G Ninja -DXY_CUDA=OFF -DXY_TESTS=OFF >/dev/null
cmake --build build/tidy --target generated/onnx/onnx.pb.h >/dev/null
mapfile -t sources < <(sed -n "s|^ *\"file\": \"$PWD/\(.*\)\",\{0,1\}$|\1|p" build/tidy/compile_commands.json |
  grep -vE '^(build|tests)/' | sort -u)
files=()
for path in "${wanted[@]}"; do
  before=${#files[@]}
  for source in "${sources[@]}"; do
    if [[ $PWD/$source == "$path" || $PWD/$source == "$path"/* || $PWD == "$path" ]]; then files+=("$source"); fi
  done
  ((${#files[@]} > before)) || { echo "tidy: a CPU build compiles nothing in $path" >&2; exit 2; }
done
((${#wanted[@]})) || files=("${sources[@]}")

# One line for each file as it ends, then what was found in it. Without OpenMP, whose header clang-tidy does not bring.
check() {
  local text status=0
  text=$(clang-tidy-16 -p build/tidy --quiet --extra-arg=-fno-openmp "$1" 2>&1) || status=1
  (
    flock 9
    echo "$1" >>build/tidy/ended
    echo "[$(wc -l <build/tidy/ended)/$total] $1"
    if ((status)); then
      echo "$1" >>build/tidy/failed
      echo "$text"
    fi
  ) 9>build/tidy/lock
}
export -f check
export total=${#files[@]}
: >build/tidy/ended
: >build/tidy/failed
printf '%s\0' "${files[@]}" | xargs -0 -P "$jobs" -n 1 bash -c 'check "$1"' check
if [[ -s build/tidy/failed ]]; then
  echo "tidy: findings in $(wc -l <build/tidy/failed) of $total files:" >&2
  sort build/tidy/failed >&2
  exit 1
fi
echo "tidy: nothing found; files checked: $total"
