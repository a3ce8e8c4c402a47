#!/usr/bin/env bash
# Two hosts on this one: names, networks and process numbers of their own, a bridge between them, ranks connected by
# TCP. Trains, refuses a run folder that is not shared, and goes on with one host when the other falls silent.
# Skips itself (code 77) without the right to make namespaces.
#   tests/dist/two_hosts.sh XYLEM
set -euo pipefail
if [[ ${2-} != inside ]]; then
  ((EUID == 0)) && command -v ip >/dev/null && unshare -n -m true 2>/dev/null || { echo "skipped: no namespaces"; exit 77; }
  exec unshare -n -m "$0" "$(readlink -f "$1")" inside
fi
xylem=$1
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
cd "$dir"
end() {
  for host in node1 node2; do ip netns pids $host 2>/dev/null | xargs -r kill -KILL; done
  rm -rf "$dir"
}
trap end EXIT
fail() {
  echo "FAILED: $*"
  tail -n 40 ./*.log 2>/dev/null || true
  exit 1
}

# What is made here goes with the namespaces of this script.
make_host() {
  ip netns add node$1 && ip link add to$1 type veth peer name eth0 netns node$1 && ip link set to$1 master bridge up &&
    ip netns exec node$1 ip addr add 10.77.0.$1/24 dev eth0 && ip netns exec node$1 ip link set eth0 up &&
    ip netns exec node$1 ip link set lo up
}
printf '127.0.0.1 localhost\n10.77.0.1 node1\n10.77.0.2 node2\n' >hosts.names
{ mount -t tmpfs none /run && mount --bind hosts.names /etc/hosts && ip link add bridge type bridge &&
  ip link set bridge up && make_host 1 && make_host 2; } || { echo "skipped: no bridge between namespaces"; exit 77; }

# In place of ssh: remote.sh HOST COMMAND.
cat >remote.sh <<'EOF'
#!/bin/bash
host=$1
shift
exec ip netns exec "$host" unshare -u -i -p -m -f --kill-child --mount-proc bash -c "hostname $host
[[ -z '$HIDE' ]] || mount -t tmpfs none '$HIDE'
$ENVIRONMENT $*"
EOF
chmod +x remote.sh
allow="OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1"
export ENVIRONMENT="export $allow;" HIDE=""
on_node1() { ip netns exec node1 unshare -u -i env $allow bash -c 'hostname node1; exec "$@"' on_node1 "$@"; }
agent=(--mca plm_rsh_agent "$dir/remote.sh" --hostfile hosts --mca btl self,tcp)
both() { on_node1 timeout -k 10 100 mpirun -np 2 "${agent[@]}" --map-by ppr:1:node --bind-to none "$xylem" train "$@"; }
printf 'node1 slots=1\nnode2 slots=1\n' >hosts

source "$here/job.sh"
"$xylem" train job.toml --set run.dir=alone >alone.log 2>&1 || fail "one process"
both job.toml >both.log 2>&1 || fail "two hosts"
grep -q "2 ranks on 2 hosts" both.log || fail "the report does not say two hosts"
loss() { sed -nE 's/^step +40.* loss ([0-9.]+).*/\1/p' "$1"; }
[[ $(loss both.log) == "$(loss alone.log)" ]] || fail "two hosts and one process differ"

mkdir apart
HIDE=$dir/apart both job.toml --set run.dir=apart/run >apart.log 2>&1 && fail "a folder of each host's own"
grep -q "is not seen on node2" apart.log || fail "the host that does not share the folder is not named"

on_node1 timeout -k 10 200 "$xylem" run -np 2 --restarts 3 --elastic --backoff 0.1 job.toml --set run.dir=lost \
  --set train.steps=4000 --set checkpoint.every=100 --set run.timeout=4 -- "${agent[@]}" >lost.log 2>&1 &
job=$!
for _ in {1..600}; do grep -q '^checkpoint 100:' lost.log && break || sleep 0.1; done
ip link set to2 down
echo 'node1 slots=1' >hosts
wait $job || fail "the job does not go on with one host"
for words in "a collective did not finish within 4 s" "'mpirun' does not end although the job has" \
  "going on with 1 and the same global batch" "finished after 2 restarts"; do
  grep -q -- "$words" lost.log || fail "not said: $words"
done
echo "PASSED: trained on two hosts, refused a folder that is not shared, went on when a host was lost"
