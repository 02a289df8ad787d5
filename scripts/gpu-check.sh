#!/usr/bin/env bash
# Everything that needs a GPU, on a machine with one, from a bundle (scripts/bundle.sh): no network,
# no compiler, under nine minutes. Operators against the CPU's, golden training steps, training
# through servers, training beside PyTorch where python3 has it, kernels against their floors,
# activation offload, a step through servers; writes a dated report and prints a short table last.
#
#   share/gpu-check.sh [--output FOLDER] [--archive FILE] [--seconds N] [--only PART] [--no-torch]
#   [--small]
#
#     --output       where DATE-gpu.md, DATE-gpu.json and the logs go (default: gpu-check)
#     --archive      FILE.tar.gz of that folder, made anew after each part with what parts have
#                    found so far: it is there even where all of this is killed; not in that folder
#                    (default: none)
#     --seconds      of all of it, about (default: 525)
#     --only         one part, as DATE-gpu-PART
#     --small        sizes that try the programs, not the GPU
#     --torch-device cuda or cpu: where PyTorch runs (default: cuda)
#     --bundle       the bundle (default: the folder above this script's)
#
# Each part is a process with a time limit, and what it found by then counts: a part that hangs or
# crashes takes none of the others along. Exit code: 0; 1 where a part failed, 2 for wrong
# arguments, 3 where there is no GPU. Bars that are missed do not fail it, the report says them.
#
# cuBLASLt, cuDNN and NCCL are looked for in SHOAL_CUDA_LIBRARIES, in python3's nvidia packages and
# where the system has them; without them Shoal's own kernels are checked. Where the machine shows
# less memory than it has, SHOAL_HOST_MEMORY says how much that is (128GiB).
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bundle=$(dirname "$here")
output=gpu-check
archive=''
total=525
only='' torch=yes torch_device=cuda small=()
while [ $# -gt 0 ]; do
  case $1 in
    --output) output=$2; shift ;;
    --archive) archive=$2; shift ;;
    --seconds) total=$2; shift ;;
    --only) only=$2; shift ;;
    --bundle) bundle=$(cd "$2" && pwd); shift ;;
    --torch-device) torch_device=$2; shift ;;
    --no-torch) torch='' ;;
    --small) small=(--small) ;;
    *) sed -n '/^#   share/,/^$/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done
[ -z "$only" ] || torch=''
program=$bundle/bin/gpu_check
fail() { echo "gpu-check: $*" >&2; exit 2; }
[ -x "$program" ] || fail "$program is not there: make a bundle where the CUDA toolkit is"
mkdir -p "$output" && output=$(cd "$output" && pwd) || exit 2
if [ -n "$archive" ]; then
  mkdir -p "$(dirname "$archive")" &&
    archive=$(cd "$(dirname "$archive")" && pwd)/$(basename "$archive") || exit 2
  [[ $archive != "$output"/* ]] || fail "--archive is in the folder that it is to hold, $output"
fi
work=$(mktemp -d)
parts=$work/parts
mkdir "$parts"
background=()  # processes that are ended with this one
trap 'for pid in "${background[@]}"; do kill "$pid" 2>/dev/null; done; rm -rf "$work"' EXIT
log=$output/gpu-check${only:+-$only}.log
data=()  # golden steps and a small model, where the bundle was made with them
[ ! -d "$bundle/share/data" ] || data=(--data "$bundle/share/data")
: >"$log"
begin=$(date +%s)
passed() { echo $(($(date +%s) - begin)); }
say() { echo "$*" | tee -a "$log"; }

# What there is by now, as the archive: the output's folder, and parts as they are.
keep_archive() {
  [ -n "$archive" ] || return 0
  tar -czf "$archive.new" -C "$(dirname "$output")" "$(basename "$output")" \
    -C "$work" parts 2>>"$log"
  # 1: a log grew meanwhile.
  if [ $? -le 1 ]; then mv "$archive.new" "$archive"; else say "$archive could not be made"; fi
}

# Folders of the libraries that programs open by name.
cuda_folders() {
  python3 - 2>/dev/null <<'PYTHON'
import glob, os, site, sys
for place in dict.fromkeys(sys.path + site.getsitepackages()):
    for folder in sorted(glob.glob(os.path.join(place, "nvidia", "*", "lib"))):
        if glob.glob(os.path.join(folder, "lib*.so.*")):
            print(folder)
PYTHON
  ls -d /usr/local/cuda/{lib64,targets/x86_64-linux/lib} /usr/local/nvidia/lib64 2>/dev/null
}
libraries=$(cuda_folders | paste -sd: -)
export SHOAL_CUDA_LIBRARIES=${SHOAL_CUDA_LIBRARIES:+$SHOAL_CUDA_LIBRARIES:}$libraries

# A driver without persistence mode forgets its GPUs when no process has them, and the next waits
# seconds for them: this one keeps the first.
[ ! -e /dev/nvidia0 ] || exec 9<>/dev/nvidia0 || true

# A machine that is given memory as it is used may show too little of it now. How much there can be
# is then the limit of its control group, or the pages that its kernel found when it started.
mib() { awk -v b="$1" 'BEGIN {printf "%.0f MiB", b / 1048576}'; }
hint=''
if [ -n "${SHOAL_HOST_MEMORY:-}" ]; then
  host_memory="$SHOAL_HOST_MEMORY, as SHOAL_HOST_MEMORY says"
else
  shown=$(awk '/^MemTotal/ {printf "%.0f", $2 * 1024}' /proc/meminfo)
  limit=$(cat /sys/fs/cgroup/{memory.max,memory/memory.limit_in_bytes} 2>/dev/null | head -1)
  pages=$(awk -v page="$(getconf PAGESIZE)" \
    '$1 == "present" {n += $2} END {printf "%.0f", n * page}' /proc/zoneinfo 2>/dev/null)
  # "max" and what stands for it are no numbers of a machine's. A few hundredths of the pages are
  # the kernel's own.
  if [[ $limit =~ ^[0-9]{1,15}$ ]] && [ "$limit" -gt "$shown" ]; then
    export SHOAL_HOST_MEMORY=$limit
    host_memory="$(mib "$limit"), the limit of the control group"
  elif [[ $pages =~ ^[0-9]{1,15}$ ]] && [ "$pages" -gt $((shown + shown / 8)) ]; then
    export SHOAL_HOST_MEMORY=$pages
    host_memory="$(mib "$pages"), the pages that the kernel found when it started"
  else
    host_memory="$(mib "$shown"), as the kernel shows"
    if [ "$shown" -lt $((64 << 30)) ]; then
      hint="hint: parts planned with $host_memory; where the machine has more,"
      hint+=" SHOAL_HOST_MEMORY=128GiB says so"
    fi
  fi
fi

smi() { timeout 20 nvidia-smi --query-gpu="$1" --format=csv,noheader "${@:2}" 2>/dev/null; }
gpu_fields=name,driver_version,memory.total,clocks.sm,clocks.max.sm,clocks.mem,power.limit
gpu=$(smi "$gpu_fields,persistence_mode" | head -1)
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)
version=$("$bundle/bin/shoal" --version 2>/dev/null || echo shoal)
memory=$(awk '/^Mem(Total|Available)/ {printf "%s %.1f GiB, ", $1, $2 / 1048576}' /proc/meminfo)
made="Made by \`gpu-check.sh\` of $version, $(date -u +'%Y-%m-%d %H:%M') UTC,"
made+=" on $(nproc) cores of $cpu, ${memory}Linux $(uname -r)."
said="name, driver, memory, clock of multiprocessors, its maximum, of memory, power limit,"
said+=" persistence mode"
notes=(
  --note "$made"
  --note "nvidia-smi ($said): ${gpu:-not there}."
  --note "Memory of the host that parts plan with: $host_memory."
  --note "Libraries in: ${SHOAL_CUDA_LIBRARIES:-none}."
)

# The GPU under load: a sample every two seconds; of each part the one that drew the most power is
# told.
state_fields=clocks.sm,clocks.mem,temperature.gpu,power.draw,memory.used,utilization.gpu
state_fields+=,clocks_event_reasons.active
samples=$parts/samples
: >"$samples"
if [ -n "$gpu" ]; then
  nvidia-smi --query-gpu="$state_fields" --format=csv,noheader,nounits -l 2 \
    >"$samples" 2>/dev/null &
  background+=($!)
fi
# note_state PART LINE: what was sampled from that line on
note_state() {
  local most
  most=$(tail -n +"$2" "$samples" |
    awk -F, 'NF == 7 && $4 + 0 >= power {power = $4 + 0; line = $0} END {print line}')
  [ -n "$most" ] || return 0
  local heads="part, multiprocessors' MHz, memory's MHz, degrees C, W, MiB, busy %,"
  [ -s "$parts/gpu-states.csv" ] ||
    echo "$heads reasons for lower clocks" >"$parts/gpu-states.csv"
  echo "$1, $most" >>"$parts/gpu-states.csv"
}

# part NAME SECONDS: what it found is in $parts/NAME.json
failed=0
part() {
  local name=$1 limit=$2 left status line
  [ -z "$only" ] || [ "$only" = "$name" ] || return 0
  left=$((total - $(passed)))
  if [ "$left" -lt 10 ]; then
    say "$name: no time was left"
    failed=1
    return 0
  fi
  [ "$limit" -le "$left" ] || limit=$left
  line=$(($(wc -l <"$samples") + 1))
  # It stops by itself before it is stopped.
  timeout --kill-after=5 "$limit" "$program" --only "$name" --parts "$parts" "${data[@]}" \
    --budget-seconds "$(awk -v s="$limit" 'BEGIN {print s * 0.93}')" "${small[@]}" >>"$log" 2>&1
  status=$?
  note_state "$name" "$line"
  case $status in
    0) say "$name: done after $(passed) s" ;;
    3) tail -1 "$log" >&2; exit 3 ;;
    124 | 137) say "$name: ended after its $limit s"; failed=1 ;;
    *) say "$name: failed with exit code $status"; failed=1 ;;
  esac
  keep_archive
}

baseline=(python3 "$here/torch_baseline.py" --shapes "$parts/shapes.json" --device "$torch_device")
# PyTorch compiles for most of a minute what it then measures in seconds: several processes do so
# beside the parts that time nothing, into a cache that the measuring one finds.
compilers=()
start_compilers() {
  local shard shards=4
  [ ${#small[@]} -eq 0 ] || shards=1
  export TORCHINDUCTOR_CACHE_DIR=$work/torch-cache
  export TORCHINDUCTOR_FX_GRAPH_CACHE=1 TORCHINDUCTOR_AUTOGRAD_CACHE=1
  # Each would else take all cores, which the oracle and the workers beside them compute on.
  export TORCHINDUCTOR_COMPILE_THREADS=3
  for ((shard = 0; shard < shards; ++shard)); do
    "${baseline[@]}" --prepare --shard "$shard/$shards" --budget-seconds 130 >>"$log" 2>&1 &
    compilers+=($!)
    background+=($!)
  done
}
# wait_compilers SECONDS: until so long after the begin
wait_compilers() {
  local pid
  for pid in "${compilers[@]}"; do
    while kill -0 "$pid" 2>/dev/null && [ "$(passed)" -lt "$1" ]; do sleep 0.2; done
    kill "$pid" 2>/dev/null && say "torch: compiling was ended after $(passed) s"
    wait "$pid" 2>/dev/null
  done
}
# run_torch SECONDS
run_torch() {
  local limit=$1 status line why=''
  line=$(($(wc -l <"$samples") + 1))
  if [ "$limit" -lt 20 ]; then
    why="no time was left"
  else
    timeout --kill-after=5 "$limit" "${baseline[@]}" --output "$parts/torch.json" \
      --budget-seconds $((limit - 12)) "${torch_sizes[@]}" >>"$log" 2>&1
    status=$?
    case $status in
      0) ;;
      124 | 137) why="ended after its $limit s" ;;
      *) why="exit code $status: $(tail -1 "$log" | cut -c 1-200)" ;;
    esac
  fi
  note_state torch "$line"
  if [ -n "$why" ]; then
    echo "$why" >"$parts/torch-end.txt"
    say "torch: $why"
  else
    say "torch: done after $(passed) s"
  fi
  keep_archive
}
torch_sizes=()
[ ${#small[@]} -eq 0 ] || torch_sizes=(--warm-seconds 0 --case-seconds 0 --steps 2)

part machine 60
if [ -n "$torch" ]; then
  "$program" --shapes "$parts/shapes.json" "${small[@]}" >>"$log" 2>&1 || torch=''
fi
[ -z "$torch" ] || start_compilers
part ops 100
part golden 60
part served 90
wait_compilers 160
part train 120
part kernels 60
part service 90
if [ -n "$torch" ]; then
  # Offload's share is left.
  limit=$((total - $(passed) - 90))
  run_torch $((limit > 150 ? 150 : limit))
fi
# The last one has what is left. It takes what memory is free, also what a process that is ending
# has not yet given back.
patience=$(($(passed) + 10))
gpu_is_used() {
  timeout 5 nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null |
    grep '^[0-9]' >/dev/null
}
while gpu_is_used && [ "$(passed)" -lt "$patience" ]; do
  sleep 0.5
done
part offload 300

say "$hint"
for file in "$parts"/*.log; do
  [ ! -e "$file" ] || cp "$file" "$output/"
done
"$program" --report-of "$parts" "${small[@]}" ${only:+--only "$only"} --output "$output" \
  "${notes[@]}" 2>>"$log" | tee -a "$log"
[ "${PIPESTATUS[0]}" -eq 0 ] || failed=1
keep_archive
[ "$failed" -eq 0 ]
