#!/usr/bin/env bash
# mpirun as the tests want it: any number of ranks on any number of cores, as root in a container too, CPU tensors'
# traffic through shared memory without ptrace, and few threads a rank.
#   tests/dist/mpirun.sh RANKS PROGRAM [ARGUMENTS]
set -euo pipefail
ranks=$1
shift
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OMP_WAIT_POLICY=passive
exec mpirun -np "$ranks" --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca btl ^openib \
  --mca btl_vader_single_copy_mechanism none --mca rmaps_base_oversubscribe 1 --tag-output "$@"
