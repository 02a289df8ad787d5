#!/usr/bin/env bash
# Everything that needs a GPU, on a machine with one, from a bundle (scripts/bundle.sh): no network, no compiler, under nine minutes. Operators
# against the CPU's, golden training steps, training beside PyTorch where python3 has it, kernels against their floors, activation offload, a step
# through servers; writes a dated report and prints a short table last.
#
#   share/gpu-check.sh [--output FOLDER] [--seconds N] [--only PART] [--no-torch] [--small]
#
#     --output   where DATE-gpu.md, DATE-gpu.json and gpu-check.log go (default: gpu-check)
#     --seconds  of all of it, about (default: 500)
#     --only     one part
#     --small    sizes that try the programs, not the GPU
#     --bundle   the bundle (default: the folder above this script's)
#
# Each part is a process with a time limit, and what it found by then counts: a part that hangs or crashes takes none of the others along. Exit
# code: 0; 1 where a part failed, 2 for wrong arguments, 3 where there is no GPU. Bars that are missed do not fail it, the report says them.
#
# cuBLASLt, cuDNN and NCCL are looked for in SHOAL_CUDA_LIBRARIES, in python3's nvidia packages and where the system has them; without them
# Shoal's own kernels are checked.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bundle=$(dirname "$here")
output=gpu-check
total=500
only='' torch=yes small=()
while [ $# -gt 0 ]; do
  case $1 in
    --output) output=$2; shift ;;
    --seconds) total=$2; shift ;;
    --only) only=$2; shift ;;
    --bundle) bundle=$(cd "$2" && pwd); shift ;;
    --no-torch) torch='' ;;
    --small) small=(--small) ;;
    *) sed -n '/^#   share/,/^$/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done
program=$bundle/bin/gpu_check
[ -x "$program" ] || { echo "gpu-check: $program is not there: make a bundle where the CUDA toolkit is" >&2; exit 2; }
mkdir -p "$output" && output=$(cd "$output" && pwd) || exit 2
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
log=$output/gpu-check.log
data=()  # golden steps, where the bundle was made with them
[ ! -d "$bundle/share/data" ] || data=(--data "$bundle/share/data")
: >"$log"
begin=$(date +%s)
say() { echo "$*" | tee -a "$log"; }

# Folders of the libraries that programs open by name.
cuda_folders() {
  python3 - 2>/dev/null <<'PYTHON'
import glob, os, site, sys
for place in dict.fromkeys(sys.path + site.getsitepackages()):
    for folder in sorted(glob.glob(os.path.join(place, "nvidia", "*", "lib"))):
        if glob.glob(os.path.join(folder, "lib*.so.*")):
            print(folder)
PYTHON
  ls -d /usr/local/cuda/lib64 /usr/local/cuda/targets/x86_64-linux/lib /usr/local/nvidia/lib64 2>/dev/null
}
libraries=$(cuda_folders | paste -sd: -)
export SHOAL_CUDA_LIBRARIES=${SHOAL_CUDA_LIBRARIES:+$SHOAL_CUDA_LIBRARIES:}$libraries
# Libraries that those open in turn (cuDNN's parts, NVRTC) are found by the loader alone.
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$libraries

gpu=$(timeout 20 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.max.sm,clocks.mem,power.limit --format=csv,noheader 2>/dev/null | head -1)
notes=(
  --note "Made by \`gpu-check.sh\` on $(nproc) cores of $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), Linux $(uname -r)."
  --note "nvidia-smi (name, driver, memory, clock of multiprocessors, its maximum, of memory, power limit): ${gpu:-not there}."
  --note "Libraries in: ${SHOAL_CUDA_LIBRARIES:-none}."
)

# part NAME SECONDS: what it found is in $parts/NAME.json
failed=0
part() {
  local name=$1 limit=$2 left status
  [ -z "$only" ] || [ "$only" = "$name" ] || return 0
  left=$((begin + total - $(date +%s)))
  if [ "$left" -lt 10 ]; then
    say "$name: no time was left"
    failed=1
    return 0
  fi
  [ "$limit" -le "$left" ] || limit=$left
  # It stops by itself before it is stopped.
  timeout --kill-after=5 "$limit" "$program" --only "$name" --parts "$parts" "${data[@]}" \
    --budget-seconds $((limit * 8 / 10)) "${small[@]}" >>"$log" 2>&1
  status=$?
  case $status in
    0) say "$name: done after $(($(date +%s) - begin)) s" ;;
    3) tail -1 "$log" >&2; exit 3 ;;
    124 | 137) say "$name: ended after its $limit s"; failed=1 ;;
    *) say "$name: failed with exit code $status"; failed=1 ;;
  esac
}

part machine 40
part ops 60
part golden 30
part train 110
if [ -n "$torch" ] && [ -z "$only" ] && [ ${#small[@]} -eq 0 ]; then
  # The same cases in the same order; what is short of time is left out on both sides.
  limit=$((begin + total - $(date +%s) - 220))
  [ "$limit" -le 120 ] || limit=120
  if [ "$limit" -gt 20 ] && "$program" --shapes "$parts/shapes.json" 2>>"$log"; then
    timeout --kill-after=5 "$limit" python3 "$here/torch_baseline.py" --shapes "$parts/shapes.json" --output "$parts/torch.json" \
      --cases 124m:4096,1.3b:4096,7b:4096,1.3b:32768,7b:16384,124m:16384,1.3b:16384,124m:65536 \
      --budget-seconds $((limit - 30)) >>"$log" 2>&1
    say "torch: done after $(($(date +%s) - begin)) s"
  fi
fi
part kernels 60
part service 110
# The last one has what is left.
part offload 300

say ""
"$program" --report-of "$parts" ${only:+--only "$only"} --output "$output" "${notes[@]}" 2>>"$log" | tee -a "$log"
[ "${PIPESTATUS[0]}" -eq 0 ] && [ "$failed" -eq 0 ]
