#!/usr/bin/env bash
# Builds and runs the GPU suite (every test whose name contains Cuda) on a machine with a GPU, and writes what happened
# to tests/gpu/evidence.json. Exits non-zero when a test fails.
#   scripts/gpu_test.sh [--sanitize] [--preset dev|release] [--filter GTEST_FILTER] [--programs "core ops ..."]
# --sanitize also runs compute-sanitizer's memcheck and racecheck over the small tests.
# Works without a network when the dependencies are installed or carried (scripts/carry.sh), and without .git.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
preset=dev filter='*Cuda*' programs="core ops distributed data models cli" sanitize=false
while (($#)); do
  case $1 in
    --sanitize) sanitize=true; shift ;;
    --preset) preset=$2; shift 2 ;;
    --filter) filter=$2; shift 2 ;;
    --programs) programs=$2; shift 2 ;;
    *) sed -n '2,6s/^# //p' "$0" >&2; exit 2 ;;
  esac
done
say() { echo "==> $*"; }
die() { echo "gpu_test: $*" >&2; exit 1; }

gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1) || true
[[ -n $gpu ]] || die "no GPU: nvidia-smi finds none"
[[ -d .carry ]] || scripts/setup.sh build test || say "going on with what is installed"
# cuDNN as pip installs it, where the system has none.
if [[ -z ${CUDNN_ROOT:-} ]]; then
  pip_cudnn=$(python3 -c 'import nvidia.cudnn as m; print(list(m.__path__)[0])' 2>/dev/null || true)
  [[ -n $pip_cudnn ]] && export CUDNN_ROOT=$pip_cudnn
fi

say "building (preset $preset) for $gpu"
cmake --preset "$preset" -DXY_CUDA=ON | grep -A 12 'Xylem [0-9]' || die "configuration failed"
cmake --build "build/$preset" -j "$(nproc)" >build/gpu_build.log 2>&1 ||
  { grep -E -A 12 'FAILED|error' build/gpu_build.log | head -n 80; die "the build failed (build/gpu_build.log)"; }
grep -E 'warning' build/gpu_build.log | head -n 20
say "built in $SECONDS s"

passed=0 skipped=0 failed_tests=()
# Runs one program's tests; after a crash goes on behind the test that crashed.
run_program() {
  local program=$1 wanted=$2 log done_tests="" status current
  log=build/$(basename "$program").log
  while :; do
    timeout 540 "$program" --gtest_filter="$wanted$done_tests" >"$log" 2>&1
    status=$?
    grep -aE '^\[  FAILED  \] .*\(|: Failure$|^\[  PASSED' "$log" | head -n 60
    passed=$((passed + $(grep -acE '^\[       OK \]' "$log")))
    skipped=$((skipped + $(grep -acE '^\[  SKIPPED \] .*\(' "$log")))
    while read -r name; do [[ -n $name ]] && failed_tests+=("$name"); done \
      < <(sed -nE 's/^\[  FAILED  \] ([^ ,]+).*\([0-9]+ ms\)$/\1/p' "$log")
    grep -aq '^\[==========\] .* ran' "$log" && return
    current=$(sed -nE 's/^\[ RUN      \] (.*)$/\1/p' "$log" | tail -n 1)
    if [[ -z $current ]]; then
      failed_tests+=("$(basename "$program") did not start (exit status $status)")
      tail -n 20 "$log"
      return
    fi
    echo "$(basename "$program"): $current ended the program (exit status $status)"
    tail -n 5 "$log"
    failed_tests+=("$current")
    local ran
    ran=$(sed -nE 's/^\[ RUN      \] (.*)$/\1/p' "$log" | paste -sd:)
    if [[ -z $done_tests ]]; then
      [[ $wanted == *-* ]] && done_tests=":$ran" || done_tests="-$ran"
    else
      done_tests+=":$ran"
    fi
  done
}
for name in $programs; do
  program=build/$preset/bin/${name}_tests
  [[ -x $program ]] || continue
  say "$(basename "$program")"
  run_program "$program" "$filter"
done

# One broken kernel spoils the device for every test after it in the same process: a failure is one that fails alone.
if ((${#failed_tests[@]} > 1)); then
  say "running each of ${#failed_tests[@]} failed tests alone"
  alone=()
  for t in "${failed_tests[@]:0:60}"; do
    for name in $programs; do
      program=build/$preset/bin/${name}_tests
      [[ -x $program ]] || continue
      out=$(timeout 120 "$program" --gtest_filter="$t" 2>&1) && status=0 || status=$?
      grep -aq '^\[==========\] 1 test ' <<<"$out" || [[ $status -ne 0 ]] || continue
      if ((status != 0)); then
        alone+=("$t")
        echo "--- $t"
        grep -avE '^\[|^Note|^Running' <<<"$out" | head -n 12
      fi
      break
    done
  done
  if ((${#alone[@]})) && ((${#failed_tests[@]} <= 60)); then
    passed=$((passed + ${#failed_tests[@]} - ${#alone[@]}))
    failed_tests=("${alone[@]}")
  fi
fi

# Groups over NCCL, with several ranks on the one GPU: this says nothing about speed.
dist_json="null"
program=build/$preset/bin/dist_tests
if [[ -x $program ]] && command -v mpirun >/dev/null; then
  parts=()
  for ranks in 2 4; do
    say "dist_tests, $ranks ranks on one GPU"
    log=build/dist_$ranks.log
    XY_SHARE_GPU=1 timeout 500 tests/dist/mpirun.sh "$ranks" "$program" --gtest_color=no --gtest_filter="$filter" >"$log" 2>&1
    status=$?
    lines=$(sed -nE 's/^\[1,0\]<std(out|err)>://p' "$log")  # every rank runs every test; rank 0 speaks for all
    ok=$(grep -acE '^\[       OK \]' <<<"$lines")
    bad=$(sed -nE 's/.*\[  FAILED  \] ([^ ,]+).*\([0-9]+ ms\)$/\1/p' "$log" | sort -u)
    passed=$((passed + ok))
    skipped=$((skipped + $(grep -acE '^\[  SKIPPED \] .*\(' <<<"$lines")))
    for t in $bad; do failed_tests+=("$t, $ranks ranks"); done
    if ((status != 0)) && [[ -z $bad ]]; then
      failed_tests+=("dist_tests, $ranks ranks: exit status $status in $(sed -nE 's/^\[ RUN      \] //p' <<<"$lines" | tail -n 1)")
    fi
    ((status == 0)) || grep -aE 'Failure|what\(\)|rror' -A 4 "$log" | head -n 60
    grep -aE '^\[  PASSED' <<<"$lines"
    parts+=("\"$ranks\": $ok")
  done
  dist_json="{$(IFS=,; echo "${parts[*]}")}"
fi
failed=${#failed_tests[@]}

sanitizer_json="null"
if $sanitize; then
  small=${XY_SANITIZER_FILTER:-'*CudaMatchesCpu*:CudaTensor*'}
  parts=()
  for tool in memcheck racecheck; do
    total=0 state=clean
    for name in core ops; do
      program=build/$preset/bin/${name}_tests log=build/${tool}_$name.log
      say "compute-sanitizer $tool, ${name}_tests"
      for only in "--kernel-regex kns=xylem" ""; do  # our own kernels; all of them where the option is unknown
        timeout 580 compute-sanitizer --tool $tool $only "$program" --gtest_filter="$small" >"$log" 2>&1
        status=$?
        grep -qE 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" && break
      done
      if ! grep -qE 'ERROR SUMMARY|RACECHECK SUMMARY' "$log"; then
        state="did not finish (exit status $status)"
        tail -n 5 "$log"
        continue
      fi
      found=$(sed -nE 's/.*(ERROR|RACECHECK) SUMMARY: ([0-9]+) .*/\2/p' "$log" | tail -n 1)
      grep -E 'SUMMARY' "$log"
      ((found == 0)) || grep -E -A 8 '========= (Invalid|Error|Warning|Program hit)' "$log" | head -n 60
      total=$((total + found))
    done
    [[ $state == clean && $total -gt 0 ]] && state="errors"
    [[ $state == clean ]] || failed_tests+=("compute-sanitizer $tool: $state")
    parts+=("\"$tool\": {\"state\": \"$state\", \"errors\": $total}")
  done
  sanitizer_json="{$(IFS=,; echo "${parts[*]}"), \"filter\": \"$small\"}"
fi

# The sources git knows; all there are where git knows none (a copy of the tree).
cuda_files() {
  local known
  known=$(git ls-files '*.cu' '*.cuh' 2>/dev/null)
  if [[ -n $known ]]; then
    echo "$known"
  else
    find . \( -path ./build -o -path './.?*' \) -prune -o \( -name '*.cu' -o -name '*.cuh' \) -print | sed 's|^\./||'
  fi
}
fingerprint=$(cuda_files | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -d' ' -f1)
cache() { sed -nE "s/^$1:[A-Z]+=//p" "build/$preset/CMakeCache.txt"; }
cudnn=$("build/$preset/bin/xylem" doctor | sed -nE 's/^ *cuDNN +([0-9.]+)$/\1/p')  # the one that is loaded
cuda=$("$(cache CUDAToolkit_NVCC_EXECUTABLE)" --version | sed -nE 's/.*release .*, V([0-9.]+).*/\1/p')
names=""
for t in "${failed_tests[@]}"; do names+="${names:+, }\"$t\""; done
mkdir -p tests/gpu
cat >tests/gpu/evidence.json <<JSON
{
  "fingerprint": "$fingerprint",
  "commit": "${XY_COMMIT:-$(git rev-parse --verify -q HEAD 2>/dev/null || echo unknown)}",
  "date": "$(date -u +%Y-%m-%dT%H:%M:%SZ)",
  "gpu": "${gpu%,*}",
  "driver": "${gpu##*, }",
  "cuda": "$cuda",
  "cudnn": "$cudnn",
  "filter": "$filter",
  "passed": $passed,
  "failed": $failed,
  "skipped": $skipped,
  "failed_tests": [$names],
  "passed_by_ranks_on_one_gpu": $dist_json,
  "sanitizer": $sanitizer_json
}
JSON
cat tests/gpu/evidence.json
echo "$passed passed, $failed failed, $skipped skipped"
((${#failed_tests[@]} == 0))
