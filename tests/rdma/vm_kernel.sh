# The virtual machine's kernel and first file system, kept in a cache folder; sourced by vm.sh,
# which defines die().
#
# The kernel is the one that Debian's linux-image-amd64 names (its "cloud" kernels and user-mode
# Linux have no rdma_rxe). It is taken from the archive on first use (70 MB, 200 MB kept), after
# which nothing needs the network.
# Old versions leave the archive, so none is named here.

# crc32_generic, not crc32_pclmul: on an emulated processor the table is faster than emulated
# PCLMULQDQ.
kernel_modules="virtio_mmio virtio_pci virtio_console 9pnet_virtio 9p overlay crc32_generic"
kernel_modules+=" rdma_rxe dummy"

# extract_kernel: Debian's kernel unpacks itself with xz, which takes an emulated processor 3 s:
# QEMU can start what is inside as well.
number_at() {  # file, offset, bytes
  od -An "-tu$3" "-j$2" "-N$3" "$1" | tr -d ' '
}
bytes_at() {  # file, offset: four, in hexadecimal
  od -An -tx1 "-j$2" -N4 "$1" | tr -d ' '
}

extract_kernel() {  # compressed kernel, to
  local sectors offset length
  sectors=$(number_at "$1" 497 1)
  [ "$sectors" = 0 ] && sectors=4
  offset=$(((sectors + 1) * 512 + $(number_at "$1" 584 4)))
  length=$(number_at "$1" 588 4)
  # Xz; what is not is left as it is.
  [ "$(bytes_at "$1" "$offset")" = fd377a58 ] || return 1
  # After it come 4 bytes, its size.
  tail -c +$((offset + 1)) "$1" | head -c $((length - 4)) | xz -dc >"$2"
  [ "$(bytes_at "$2" 0)" = 7f454c46 ]                                              # ELF
}

kernel_package() {
  apt-cache depends linux-image-amd64 2>/dev/null |
      awk '$1 == "Depends:" { print $2; exit }'
}

download_kernel() {  # into this folder
  local package
  package=$(kernel_package)
  if [ -z "$package" ]; then
    apt-get update -qq >&2
    package=$(kernel_package)
  fi
  [ -n "$package" ] || die "apt knows no linux-image-amd64, whose kernel has soft-RoCE"
  for _ in 1 2; do
    (cd "$1" && apt-get -qq -o APT::Sandbox::User=root download "$package" >&2) && return 0
    apt-get update -qq >&2  # the package lists may be older than the archive
  done
  die "cannot download the kernel package $package"
}

unpack_kernel() {  # the folder that holds the package
  local modules
  mkdir "$1/tree"
  dpkg-deb -x "$1"/*.deb "$1/tree" || die "cannot unpack the kernel package"
  modules=$(echo "$1"/tree/lib/modules/*)
  depmod -b "$1/tree" "${modules##*/}" || die "depmod failed"
  extract_kernel "$1"/tree/boot/vmlinuz* "$1/kernel" 2>/dev/null ||
    cp "$1"/tree/boot/vmlinuz* "$1/kernel"
  rm -rf "$1"/tree/{usr,boot} "$modules"/kernel/sound
  rm -rf "$modules"/kernel/drivers/{gpu,media,net/wireless,net/ethernet,scsi,staging,iio,hid,usb}
  rm -rf "$modules"/kernel/drivers/{input,hwmon,md,mtd}
  rm -rf "${cache:?}"/{tree,kernel} "$cache"/initramfs-*
  mv "$1/tree" "$1/kernel" "$cache/"
  basename "$1"/*.deb >"$cache/ready"
}

build_initramfs() {  # to
  local work version file
  work=$(mktemp -d "$cache/work.XXXXXX") || die "cannot write to $cache"
  version=$(ls "$cache/tree/lib/modules")
  mkdir -p "$work"/{bin,modules,dev,proc,sys,memory,host,root}
  cp "$(command -v busybox)" "$work/bin/busybox"
  for file in $kernel_modules; do
    modprobe -S "$version" -d "$cache/tree" --show-depends "$file" 2>/dev/null |
      awk '$1 == "insmod" { print $2 }'
  done | awk '!seen[$0]++' | while read -r file; do
    cp "$file" "$work/modules/"
    file=${file##*/}
    case $file in
      *.xz) xz -d "$work/modules/$file"; file=${file%.xz} ;;
      *.zst) zstd -dq --rm "$work/modules/$file"; file=${file%.zst} ;;
    esac
    echo "$file"
  done >"$work/modules/order"
  grep -q rdma_rxe "$work/modules/order" ||
    die "the kernel of $(cat "$cache/ready") has no rdma_rxe"
  install -m 755 "$here/vm_init.sh" "$work/init"
  (cd "$work" && find . | cpio -o -H newc -R 0:0 --quiet) >"$work.cpio" && mv "$work.cpio" "$1"
  rm -rf "$work"
}

# Leaves the kernel in $cache/kernel and says in $initramfs where its first file system is.
prepare_kernel() {
  local work
  mkdir -p "$cache" || die "cannot make the folder $cache"
  exec 8>"$cache/lock"
  flock 8
  if [ ! -e "$cache/ready" ]; then
    work=$(mktemp -d "$cache/work.XXXXXX") || die "cannot write to $cache"
    download_kernel "$work"
    unpack_kernel "$work"
    rm -rf "$work"
  fi
  made_from=$({ echo "$kernel_modules"; cat "$cache/ready" "$here/vm_init.sh"; } | cksum)
  initramfs=$cache/initramfs-${made_from%% *}.cpio
  [ -e "$initramfs" ] || build_initramfs "$initramfs" ||
    die "cannot build the guest's first file system"
  exec 8>&-
}
