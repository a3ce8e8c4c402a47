#!/usr/bin/env bash
# Formats every source file with clang-format 14; --check only says which files differ.
set -euo pipefail
cd "$(dirname "$0")/.."

format=$(command -v clang-format-14 || command -v clang-format || true)
if [[ -z $format ]] || ! $format --version | grep -q 'version 14\.'; then
  echo "format: needs clang-format 14 (scripts/setup.sh test): versions disagree about details" >&2
  exit 1
fi
mapfile -d '' files < <(find bench cli core data distributed examples include models ops tests \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 2>/dev/null)
if [[ ${1:-} == --check ]]; then
  $format --dry-run --Werror "${files[@]}" && echo "format: ${#files[@]} files are well formatted"
else
  $format -i "${files[@]}"
fi
