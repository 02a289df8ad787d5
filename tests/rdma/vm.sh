#!/usr/bin/env bash
# Runs a command in a small QEMU machine that has soft-RoCE RDMA devices (the kernel's rdma_rxe),
# over this machine's own file system. So programs built here meet real verbs, without RDMA
# hardware, and without privileges or modules in this kernel.
#
#   tests/rdma/vm.sh COMMAND [ARGUMENT...]    in the same folder, with the same exported
#   environment, as the guest's root tests/rdma/vm.sh --prepare                just sees to it that
#   the next command can start
#
# The guest may write anywhere, into memory: what it writes is gone afterwards (SHOAL_VM_WRITABLE
# names exceptions). It has rxe0 on lo (127.0.0.1, ::1), and no other network unless
# SHOAL_VM_NETWORK says so. Its processor, where it is emulated, has AVX2 and no AVX-512.
#
# Exit status: the command's; 124 when the time was up; 125 when the machine could not be set up or
# died, with what the guest's kernel said on stderr.
#
#   SHOAL_VM_CACHE     folder for the kernel (default ${XDG_CACHE_HOME:-~/.cache}/shoal-vm), filled
#                      through apt on first use
#   SHOAL_VM_MEMORY    MiB (default 2048)          SHOAL_VM_PROCESSORS  (default: all, at most 4)
#   SHOAL_VM_TIMEOUT   seconds for start and command together (default 600)
#   SHOAL_VM_WRITABLE  folders, ':' between them, that the guest writes through to
#   SHOAL_VM_NETWORK   network devices that rxe0, rxe1, ... stand on, ',' between them: lo (default)
#                      or dummy, which as the n-th is dummy<n> with 10.77.<n>.1/24 and MTU 9000, and
#                      can be taken down without the loss of TCP
#   SHOAL_VM_ACCELERATOR  tcg (emulation) or kvm (default: kvm where it can be had)
#   SHOAL_VM_VERBOSE   1: the guest kernel's log and timings on stderr
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${SHOAL_VM_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/shoal-vm}
PATH=$PATH:/usr/sbin:/sbin

die() {
  echo "vm.sh: $*" >&2
  exit 125
}

check_tools() {
  local tool missing=()
  [ "$(uname -m)" = x86_64 ] || die "only on x86-64"
  for tool in qemu-system-x86_64 cpio busybox xz modprobe depmod rdma flock setpriv; do
    command -v $tool >/dev/null || missing+=("$tool")
  done
  [ ${#missing[@]} -eq 0 ] ||
    die "no ${missing[*]} (apt-get install qemu-system-x86 cpio busybox-static xz-utils kmod" \
      "iproute2 util-linux)"
  [ -e /etc/libibverbs.d/rxe.driver ] ||
    die "libibverbs has no soft-RoCE driver (apt-get install ibverbs-providers)"
}

. "$here/vm_kernel.sh"

# The smallest machine, "microvm", has no timer that the guest could measure its time stamp counter
# against when the host is busy; without a measure the guest hangs in early boot. Emulated, the
# counter is the host's: so it is measured here.
time_stamp_khz() {
  python3 - 2>/dev/null <<'PYTHON'
import ctypes, mmap, time
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex('0f3148c1e2204809d0c3'))  # rdtsc; shl rdx,32; or rax,rdx; ret
counter = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
def look():  # of many looks the one that was least disturbed
    def once():
        before = time.monotonic_ns()
        ticks = counter()
        return time.monotonic_ns() - before, before, ticks
    return min(once() for _ in range(50))
_, time0, ticks0 = look()
time.sleep(0.05)
_, time1, ticks1 = look()
print((ticks1 - ticks0) * 1000000 // (time1 - time0))
PYTHON
}

# Sets accelerator, processor, machine, bus and kernel_arguments.
choose_machine() {
  local kind=${SHOAL_VM_ACCELERATOR:-} khz
  machine=microvm,rtc=on,x-option-roms=off bus=device kernel_arguments=
  if [ -z "$kind" ]; then
    kind=tcg
    [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo && kind=kvm
  fi
  if [ "$kind" != tcg ]; then
    accelerator=$kind processor=host
    return
  fi
  # "rep movsb" (erms, fsrm) is emulated byte by byte, which halves RDMA's throughput; la57 makes
  # page walks longer.
  accelerator=tcg,thread=multi,tb-size=256 processor=max,erms=off,fsrm=off,la57=off
  khz=$(time_stamp_khz)
  case $khz in
    [1-9]?????|[1-9]??????) kernel_arguments="tsc_early_khz=$khz" ;;
    *) machine=pc bus=pci ;;  # starts slower, and measures by itself
  esac
  # The guest would find the counters of its processors not synchronized, and use a clock of 4 ms
  # steps.
  kernel_arguments="$kernel_arguments tsc=reliable"
}

write_command() {  # command...
  {
    export -p
    printf 'cd -- %q || exit 125\nexec' "$PWD"
    printf ' %q' "$@"
    echo
  } >"$control/command"
}

# Appends to qemu[] what shares SHOAL_VM_WRITABLE's folders, and counts them in $writable.
share_writable() {
  local folders folder
  writable=0
  IFS=: read -ra folders <<<"${SHOAL_VM_WRITABLE:-}"
  for folder in ${folders[@]+"${folders[@]}"}; do
    folder=$(readlink -f "$folder") && [ -d "$folder" ] || die "SHOAL_VM_WRITABLE: no such folder"
    case $folder in *,*) die "SHOAL_VM_WRITABLE: a comma in $folder" ;; esac
    echo "$folder" >>"$control/writable"
    qemu+=(-fsdev "local,id=writable$writable,path=$folder,security_model=none,multidevs=remap"
           -device "virtio-9p-$bus,fsdev=writable$writable,mount_tag=writable$writable")
    writable=$((writable + 1))
  done
}

compose() {  # sets qemu[]
  local processors
  processors=$(nproc)
  [ "$processors" -le 4 ] || processors=4
  qemu=(qemu-system-x86_64 -M "$machine" -accel "$accelerator" -cpu "$processor"
    -smp "${SHOAL_VM_PROCESSORS:-$processors}" -m "${SHOAL_VM_MEMORY:-2048}"
    -nodefaults -no-user-config -display none -no-reboot -serial "file:$control/console"
    -kernel "$cache/kernel" -initrd "$initramfs"
    -fsdev "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"
    -device "virtio-9p-$bus,fsdev=host,mount_tag=host"
    -device "virtio-serial-$bus"
    -add-fd "fd=3,set=1" -chardev "file,id=output,path=/dev/fdset/1,append=on"
    -device "virtserialport,chardev=output,name=output"
    -add-fd "fd=4,set=2" -chardev "file,id=errors,path=/dev/fdset/2,append=on"
    -device "virtserialport,chardev=errors,name=errors"
    -chardev "file,id=status,path=$control/status"
    -device "virtserialport,chardev=status,name=status")
  share_writable
  qemu+=(-append "console=ttyS0 loglevel=$log_level panic=-1 oops=panic reboot=t \
rdinit=/init nokaslr mitigations=off \
cryptomgr.notests random.trust_cpu=on 8250.nr_uarts=1 \
$kernel_arguments vm_control=$control vm_writable=$writable \
vm_network=${SHOAL_VM_NETWORK:-lo}")
}

# Runs the machine, whose output comes through pipes: QEMU may truncate a file, and leaves it open
# for appending.
run_machine() {
  local output errors
  exec 3> >(exec cat)
  output=$!
  exec 4> >(exec cat >&2 3>&-)
  errors=$!
  setpriv --pdeathsig TERM timeout -k 5 "$time_limit" "${qemu[@]}" \
    </dev/null >"$control/qemu" 2>&1 &
  machine_process=$!
  trap 'kill $machine_process 2>/dev/null; exit 130' INT
  trap 'kill $machine_process 2>/dev/null; exit 143' TERM HUP
  wait $machine_process
  machine_status=$?
  trap - INT TERM HUP
  exec 3>&- 4>&-
  wait $output $errors
}

[ $# -gt 0 ] || { sed -n '2,/^set -u/s/^# \{0,1\}//p' "$0" >&2; exit 125; }
check_tools
prepare_kernel
[ "$*" = --prepare ] && exit 0

control=$(mktemp -d "${TMPDIR:-/tmp}/shoal-vm.XXXXXX") && control=$(readlink -f "$control") ||
  die "no temporary folder"
trap 'rm -rf "$control"' EXIT
case $control in *[\ ,]*) die "a space or comma in $control: set TMPDIR" ;; esac
log_level=3
[ "${SHOAL_VM_VERBOSE:-0}" = 1 ] && log_level=7
time_limit=${SHOAL_VM_TIMEOUT:-600}
choose_machine
write_command "$@"
compose
started=$SECONDS
run_machine
if [ $log_level = 7 ]; then
  cat "$control/console" "$control/qemu"
  echo "vm.sh: $((SECONDS - started)) s in QEMU ($machine, $accelerator)"
fi >&2

status=$(cat "$control/status" 2>/dev/null)
case $status in [0-9] | [0-9][0-9] | [0-9][0-9][0-9]) exit "$status" ;; esac
[ $log_level = 7 ] || { cat "$control/qemu"; tail -n 40 "$control/console"; } >&2
case $machine_status in
  124 | 137) echo "vm.sh: no result within $time_limit s" >&2; exit 124 ;;
  *) die "the guest ended without a status (QEMU's: $machine_status)" ;;
esac
