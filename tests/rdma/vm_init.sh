#!/bin/busybox sh
# The guest's first process (see vm.sh): mounts the host's file system under an overlay in memory,
# makes the soft-RoCE devices, runs the command and hands its exit status to the host. Only
# busybox's own commands are used: each program that is read from the shared file system costs time
# on an emulated processor.
b=/bin/busybox
$b mount -t devtmpfs devices /dev
$b mount -t proc processes /proc
$b mount -t sysfs system /sys
exec </dev/console >/dev/console 2>&1

note() { echo "shoal-vm: $*" >/dev/kmsg; }    # seen with SHOAL_VM_VERBOSE
complain() { echo "shoal-vm: $*"; }           # seen when the guest ends without a status
give_up() { complain "$@"; $b poweroff -f; }

# vm.sh says on the kernel's command line: vm_control (the folder with the command), vm_writable
# (how many folders are written through), vm_network.
for word in $($b cat /proc/cmdline); do
  case $word in vm_*=*) eval "${word%%=*}=\${word#*=}" ;; esac
done

load_modules() {
  for module in $($b cat /modules/order); do
    $b insmod "/modules/$module" || complain "cannot load $module"
  done
  note "modules are loaded"
}

share=trans=virtio,version=9p2000.L,msize=512000,noatime

mount_root() {
  $b mount -t 9p -o $share,cache=loose,ro host /host ||
    give_up "the host's file system is not shared"
  $b mount -t tmpfs -o mode=755 memory /memory
  $b mkdir /memory/upper /memory/work
  $b mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work overlay /root ||
    give_up "no overlay"
  cd /root || give_up "no root"
  $b mkdir -p dev proc sys run tmp
  $b mount -t devtmpfs devices dev
  $b mount -t proc processes proc
  $b mount -t sysfs system sys
  $b mkdir -p dev/shm dev/pts
  $b mount -t tmpfs -o mode=1777 shared dev/shm
  $b mount -t devpts terminals dev/pts
  $b mount -t tmpfs -o mode=755 run run
  $b mkdir -m 1777 run/lock
  $b ln -s /proc/self/fd dev/fd
  $b ln -s fd/0 dev/stdin
  $b ln -s fd/1 dev/stdout
  $b ln -s fd/2 dev/stderr
  cd /
}

writable_folder() { $b sed -n "$(($1 + 1))p" "/root$vm_control/writable"; }  # number

mount_writable() {
  i=0
  while [ $i -lt "$vm_writable" ]; do
    folder=$(writable_folder $i)
    $b mkdir -p "/root$folder"
    $b mount -t 9p -o $share,cache=mmap "writable$i" "/root$folder" ||
      complain "$folder cannot be written to"
    i=$((i + 1))
  done
}

unmount_writable() {
  i=0
  while [ $i -lt "$vm_writable" ]; do
    $b umount "/root$(writable_folder $i)" || $b sync
    i=$((i + 1))
  done
}

make_devices() {
  $b hostname shoal-vm
  $b ip link set lo up
  i=0
  for network in $(echo "$vm_network" | $b tr , ' '); do
    if [ "$network" = dummy ]; then
      network=dummy$i
      # The module brings the first.
      [ -e /sys/class/net/$network ] || $b ip link add $network type dummy
      $b ip link set $network mtu 9000 up
      $b ip addr add 10.77.$i.1/24 dev $network
    fi
    $b chroot /root rdma link add rxe$i type rxe netdev "$network" ||
      complain "no soft-RoCE device on $network"
    i=$((i + 1))
  done
  note "devices are there"
}

# Output goes through pipes, so that the command may open /dev/stdout anew: a port can be opened
# once only.
run_command() {
  for port in /sys/class/virtio-ports/*; do
    read -r name <"$port/name"
    eval "port_$name=/dev/${port##*/}"
  done
  ulimit -l unlimited
  $b mkfifo /output /errors
  $b cat </output >"$port_output" & output=$!
  $b cat </errors >"$port_errors" & errors=$!
  $b chroot /root /bin/bash "$vm_control/command" </dev/null >/output 2>/errors &
  wait $!
  status=$?
  # Output ends with the command, unless it left a process behind: that one gets a second.
  i=0
  while [ $i -lt 20 ] && { $b kill -0 $output || $b kill -0 $errors; } 2>/dev/null; do
    i=$((i + 1))
    $b usleep 50000
  done
}

load_modules
mount_root
mount_writable
make_devices
run_command
unmount_writable
echo "$status" >"$port_status"
$b poweroff -f
