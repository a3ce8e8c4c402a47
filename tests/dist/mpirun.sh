#!/usr/bin/env bash
# mpirun as the tests want it: any number of ranks on any number of cores, as root in a container too, CPU tensors'
# traffic through shared memory without ptrace, and few threads a rank.
#   tests/dist/mpirun.sh RANKS PROGRAM [ARGUMENTS]
set -euo pipefail
ranks=$1
shift
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OMP_WAIT_POLICY=passive
mpirun -np "$ranks" --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca btl ^openib \
  --mca btl_vader_single_copy_mechanism none --mca rmaps_base_oversubscribe 1 --tag-output "$@" <&0 &
job=$!
trap 'kill -TERM "$job" 2>/dev/null' TERM INT

# Open MPI 4.1 with PMIx 4.2 now and then deadlocks in mpirun itself once all ranks have ended (in
# PMIx_server_finalize, its ranks zombies). Then the ranks' own exit codes count.
codes=$(mktemp)
(
  trap - TERM
  ended=0
  while sleep 1; do
    states=() results=()
    for child in $(cat /proc/"$job"/task/*/children 2>/dev/null); do
      read -r -a fields <<<"$(sed 's/.*) //' /proc/"$child"/stat 2>/dev/null)" || continue
      states+=("${fields[0]}") results+=("${fields[49]}")
    done
    [[ ${states[*]} =~ ^Z( Z)*$ ]] && ended=$((ended + 1)) || ended=0
    if ((ended == 10)); then
      printf '%s\n' "${results[@]}" >"$codes"
      kill -KILL "$job"
    fi
  done
) </dev/null >/dev/null 2>&1 &
watcher=$!

status=0
while :; do
  wait "$job" && status=0 || status=$?
  kill -0 "$job" 2>/dev/null || break
done
kill "$watcher" 2>/dev/null || true
if [[ -s $codes ]]; then
  echo "mpirun did not end after its ranks had; their wait statuses: $(tr '\n' ' ' <"$codes")" >&2
  status=$(awk '$1 != 0 { s = int($1 / 256); if (s == 0) s = 128 + $1 % 128 } END { print s + 0 }' "$codes")
fi
rm -f "$codes"
exit "$status"
