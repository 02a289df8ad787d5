#!/usr/bin/env bash
# Part 7: deploy/slurm on a real Slurm of three nodes, all this host: one job runs undisturbed; one,
# over TLS, is told to make room in the middle, exits with 75, goes back into the queue and resumes.
# Both end with the same weights, to the bit. SHOAL_BIN: the programs' folder.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
fail() { echo "slurm: $*" >&2; exit 1; }
skip() { echo "SKIPPED: $*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "slurmd must be root"
for program in munged slurmctld slurmd sbatch; do
  command -v "$program" >/dev/null || skip "there is no $program"
done
folder=$(mktemp -d)
chmod 755 "$folder"
started=()
finish() {
  scancel --full --user=root >/dev/null 2>&1 || true
  sleep 2
  for ((at = ${#started[@]} - 1; at >= 0; --at)); do
    kill "${started[at]}" 2>/dev/null || true
    wait "${started[at]}" 2>/dev/null || true
  done
  rm -rf "$folder"
}
trap finish EXIT
start() {  # log command...
  "${@:2}" >"$folder/$1.log" 2>&1 &
  started+=($!)
}

mkdir -p "$folder/state"
head -c 128 /dev/urandom >"$folder/munge.key"
chmod 600 "$folder/munge.key"
start munged munged --foreground --force --key-file="$folder/munge.key" \
  --socket="$folder/munge.socket" --pid-file="$folder/munge.pid" --log-file="$folder/munge.log" \
  --seed-file="$folder/munge.seed"
read -r ctld one two three < <(PYTHONPATH=tests/operate python3 -c 'import processes
print(*(processes.free_port() for _ in range(4)))')
cat >"$folder/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$ctld
SlurmUser=root
AuthType=auth/munge
# A job that goes back into the queue waits for as long as a credential is valid.
AuthInfo=socket=$folder/munge.socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
ReturnToService=2
MpiDefault=none
SchedulerParameters=batch_sched_delay=0,sched_interval=2
NodeName=n1 NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$one CPUs=8
NodeName=n2 NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$two CPUs=8
NodeName=n3 NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$three CPUs=8
PartitionName=all Nodes=ALL Default=YES State=UP
END
export SLURM_CONF=$folder/slurm.conf
start slurmctld slurmctld -D -i
for node in n1 n2 n3; do
  start "$node" slurmd -D -N "$node"
done
for _ in $(seq 60); do
  [ "$(sinfo --noheader --states=idle --format=%D 2>/dev/null)" != 3 ] || break
  sleep 1
done
[ "$(sinfo --noheader --states=idle --format=%D)" = 3 ] || {
  tail -n 5 "$folder"/{slurmctld,n1,n2,n3}.log >&2
  fail "no three nodes are idle"
}

shoal=$SHOAL_BIN/shoal
"$shoal" data synth --kind mixed --samples 500 --seed 1 --output "$folder/train.jsonl" >/dev/null
"$shoal" data tokenizer "$folder/train.jsonl" --vocabulary 320 --output "$folder/tokenizer" \
  >/dev/null
"$shoal" model init --shape tiny --tokenizer "$folder/tokenizer" --output "$folder/model" >/dev/null
for name in undisturbed preempted; do
  cat >"$folder/$name.yaml" <<YAML
model: model
data: {train: train.jsonl, template: chatml, max_sequence_tokens: 512, oversize: skip}
train: {steps: 400, minibatch_samples: 8, warmup_steps: 2, threads_per_worker: 1}
service: {accumulate: exact}
cluster: {coordinator: "set:1", servers: 3, workers: 3}
checkpoint: {directory: $name-checkpoints, every_steps: 50}
YAML
done
"$shoal" tls init "$folder/certificates" >/dev/null
submit() {  # name [certificates]: prints the job's number
  (cd "$folder" && sbatch --parsable --nodes=3 --cpus-per-task=4 \
    --export="ALL,JOB=$folder/$1.yaml,SHOAL_BIN=$SHOAL_BIN${2:+,SHOAL_TLS=$2}" \
    "$root/deploy/slurm/shoal.sbatch")
}
state() { scontrol show job "$1" | grep -oP 'JobState=\K\S+'; }
wait_for() {  # job state
  for _ in $(seq 180); do
    [ "$(state "$1")" != "$2" ] || return 0
    case $(state "$1") in FAILED | CANCELLED | NODE_FAIL) break ;; esac
    sleep 1
  done
  tail -n 20 "$folder/shoal-$1.log" >&2
  fail "job $1 is $(state "$1"), not $2"
}
# All members of a job, as the coordinator has them for Prometheus.
targets() {  # job
  curl -s "http://127.0.0.1:$((10000 + $1 % 1000 * 20 + 19))/targets" | grep -o '"instance":"[^"]*"' |
    sort | tr '\n' ' '
}
steps() { cat "$folder/$1"-slurm-*/train.jsonl 2>/dev/null | grep -c '"event":"step"' || true; }

job=$(submit undisturbed)
wait_for "$job" COMPLETED
job=$(submit preempted "$folder/certificates")
for _ in $(seq 600); do
  [ "$(steps preempted)" -lt 100 ] || break
  sleep 0.2
done
known=$(printf '"instance":"%s" ' {server,worker}-{0,1,2})
[ "$(targets "$job")" = "$known" ] || fail "/targets has $(targets "$job")"
scancel --signal=TERM --batch "$job"
for _ in $(seq 600); do
  ! grep -q 'ended with 75' "$folder/shoal-$job.log" || break
  sleep 0.2
done
grep 'ended with 75' "$folder/shoal-$job.log" || fail "$(tail -n 20 "$folder/shoal-$job.log")"
echo "after $(steps preempted) steps; the queue: $(state "$job")"
wait_for "$job" COMPLETED
hash() { "$shoal" checkpoint hash "$folder/$1-checkpoints" | awk '{print $NF}'; }
[ "$(hash undisturbed)" = "$(hash preempted)" ] ||
  fail "the weights differ: $(hash undisturbed), $(hash preempted)"
echo "both jobs end with $(hash preempted)"
