#!/usr/bin/env bash
# Runs the CPU tests under AddressSanitizer and UndefinedBehaviorSanitizer.
#   scripts/sanitize.sh [ctest options]      for example -L core
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
cmake --preset asan --log-level=WARNING
NINJA_STATUS='[%f/%t, %es] ' cmake --build build/asan -j "$(nproc)" | awk '
  /^\[/ { if (++n % 10 == 1) { print "built " $1 " " $2; fflush() } next }
  { print; fflush() }'
# A request for too much memory gives nothing, as without the sanitizer: the library reports it. Suppressed are leaks
# inside other libraries; those of plugins that are unloaded at the end can only be named by stacks unwound in full.
export ASAN_OPTIONS=strict_string_checks=1:allocator_may_return_null=1:fast_unwind_on_malloc=0
export LSAN_OPTIONS=suppressions=$PWD/tests/lsan.supp:print_suppressions=0
export UBSAN_OPTIONS=print_stacktrace=1 OMP_WAIT_POLICY=passive
exec ctest --preset asan -j "$(nproc)" -LE 'project' "$@"
