#!/usr/bin/env bash
# Trains under Slurm, on a cluster of this host alone that lives in a temporary folder: the same configuration as under
# mpirun, srun that does not connect the tasks, and the script of examples/slurm through a stop and a requeue.
# Skips itself (code 77) where Slurm is not installed; `scripts/setup.sh slurm` installs it.
#   tests/dist/slurm.sh XYLEM
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
xylem=$(readlink -f "$1")
export PATH=$PATH:/usr/sbin
for program in slurmctld slurmd srun sbatch munged; do
  command -v $program >/dev/null || { echo "skipped: no $program"; exit 77; }
done

dir=$(mktemp -d)
chmod 755 "$dir"
cd "$dir"
mkdir munge state spool
export SLURM_CONF=$dir/slurm.conf XYLEM=$xylem OMP_NUM_THREADS=1
end() {
  scancel -u "$(id -un)" 2>/dev/null || true
  for _ in {1..80}; do [[ -n $(squeue -h 2>/dev/null) ]] || step_remains || break; sleep 0.25; done
  for daemon in slurmd slurmctld munge/munged; do
    if [[ -s $daemon.pid ]]; then kill "$(<$daemon.pid)" 2>/dev/null || true; fi
  done
  sleep 1
  rm -rf "$dir"
}
step_remains() { compgen -G "spool/*pmix*" >/dev/null; }
trap end EXIT
fail() {
  echo "FAILED: $*"
  tail -n 30 ./*.out ./*.log 2>/dev/null || true
  exit 1
}

host=$(hostname -s)
port=$((20000 + RANDOM % 10000))
(umask 077 && head -c 1024 /dev/urandom >munge/key)
cat >slurm.conf <<EOF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthInfo=socket=$dir/munge/socket
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
$(slurmd -C | head -n 1 | sed -E "s/NodeName=\S+/NodeName=$host NodeAddr=127.0.0.1/; s/ (RealMemory|UpTime)=\S+//g")
PartitionName=main Nodes=ALL Default=YES State=UP
EOF
munged --force --socket="$dir/munge/socket" --key-file="$dir/munge/key" --pid-file="$dir/munge/munged.pid" \
  --log-file="$dir/munge/log" --seed-file="$dir/munge/seed" 2>/dev/null
slurmctld
slurmd || { tail -n 3 slurmd.log; echo "skipped: slurmd does not start here"; exit 77; }
for _ in {1..20}; do sinfo -h -o %t | grep -q idle && break || sleep 0.5; done
[[ $(sinfo -h -o %c) -ge 2 ]] || { echo "skipped: needs a node with two CPUs"; exit 77; }
srun --mpi=list 2>&1 | grep -q pmix || { echo "skipped: this Slurm has no PMIx"; exit 77; }

source "$here/job.sh"

losses() { sed -E 's/.*"loss":([^,]+).*/\1/' "$1/metrics.jsonl"; }
"$here/mpirun.sh" 2 "$xylem" train job.toml --set run.dir=mpirun >mpirun.out 2>&1 || fail "mpirun"
srun --mpi=pmix -n 2 "$xylem" train job.toml --set run.dir=srun >srun.out 2>&1 || fail "srun"
grep -q "2 ranks, ZeRO 0" srun.out || fail "srun did not train on 2 ranks"
[[ $(losses srun) == "$(losses mpirun)" ]] || fail "srun and mpirun differ"

srun --mpi=none -n 2 "$xylem" train job.toml --set run.dir=none >none.out 2>&1 && fail "tasks that are not connected"
grep -q "srun started 2 processes .* srun --mpi=pmix" none.out || fail "the message does not name the remedy"

# What Slurm says of the job: JobState, Restarts.
job_has() { scontrol show job "$job" | grep -qE "(^| )$1( |$)"; }
wait_for() {
  for _ in {1..120}; do "$@" && return || sleep 0.25; done
  fail "waited in vain for $*"
}
says() { grep -q "$1" "$job.out" 2>/dev/null; }
sed 's/^steps = .*/steps = 1000000/' job.toml >long.toml
job=$(sbatch --parsable --ntasks-per-node=2 --gpus-per-node=0 --cpus-per-task=1 --output=%j.out \
  "$here/../../examples/slurm/train.sbatch" long.toml)
wait_for says "^checkpoint 200:"
scancel --signal=TERM "$job" # what Slurm sends before the time is up
wait_for says "^stopped after step"
wait_for job_has Restarts=1
stopped=$(sed -n 's/^stopped after step \([0-9]*\).*/\1/p' "$job.out")
wait_for job_has JobState=PENDING
step_is_gone() { ! step_remains; }
wait_for step_is_gone # a new one of the same number would fail
scontrol update JobId="$job" StartTime=now # a requeued job waits for two minutes
wait_for says "^resuming after step $stopped of 1000000"
scancel "$job"
echo "PASSED: trained under srun, told to stop after step $stopped, requeued, resumed"
