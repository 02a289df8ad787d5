#!/usr/bin/env bash
# Lays out the root folder of the image: the four programs of a build, every library that they need,
# glibc among them, the RDMA providers that are opened by name, CA certificates, and the user that
# all run as. No shell. The same build gives the same bytes.
#
#   deploy/image/rootfs.sh [--with-cuda-libraries] BUILD ROOTFS
#
# BUILD: a build folder, build/package. ROOTFS is made anew.
set -euo pipefail
cuda=''
if [ "${1:-}" = --with-cuda-libraries ]; then
  cuda=yes
  shift
fi
if [ $# -ne 2 ]; then
  sed -n '/^#   deploy/,/^$/s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
build=$1 root=$2
fail() { echo "rootfs: $*" >&2; exit 1; }
programs=(shoal shoal-coordinator shoal-server shoal-worker)

if [ -e "$root" ] && [ ! -e "$root/usr/bin/shoal" ]; then
  fail "$root is there and is no root folder of an image: name another"
fi
rm -rf "$root"
mkdir -p "$root"/{etc/ssl/certs,etc/libibverbs.d,usr/bin,usr/lib,usr/lib64,var/lib/dpkg/status.d}
mkdir -p -m 1777 "$root/tmp"
# As Debian lays it out.
ln -s usr/bin "$root/bin"
ln -s usr/lib "$root/lib"
ln -s usr/lib64 "$root/lib64"

for program in "${programs[@]}"; do
  [ -x "$build/bin/$program" ] || fail "$build/bin/$program is not there: build it first"
  strip -o "$root/usr/bin/$program" "$build/bin/$program"
done

# add_file PATH: at the path where programs look for it, under /usr
add_file() {
  local to=$1
  case $to in /lib/* | /lib64/*) to=/usr$to ;; esac
  [ ! -e "$root$to" ] || return 0
  install -D -m 755 "$(readlink -f "$1")" "$root$to"
  strip --strip-unneeded "$root$to"
  origins+=("$(readlink -f "$1")")
}
# add_libraries FILES...: all that they need
add_libraries() {
  local path resolved here
  here=$(realpath "$root")
  resolved=$(LD_LIBRARY_PATH=$here/usr/lib ldd "$@")
  ! grep -F 'not found' <<<"$resolved" || fail "libraries are missing"
  while read -r path; do
    [[ $path == "$here"/* ]] || add_file "$path"
  done < <(grep -oE '/[^ ]+\.so[^ ]*' <<<"$resolved" | sort -u | grep -v ':$' || true)
}
origins=()
add_libraries "${programs[@]/#/$build/bin/}"

# Opened by name where there is such a card.
providers=/usr/lib/x86_64-linux-gnu/libibverbs
if compgen -G "$providers/*.so" >/dev/null; then
  for path in "$providers"/*.so; do
    add_file "$path"
    add_libraries "$path"
  done
  cp /etc/libibverbs.d/*.driver "$root/etc/libibverbs.d/"
else
  fail "there are no RDMA providers: apt-get install ibverbs-providers"
fi

if [ -n "$cuda" ]; then
  . "$(dirname "$0")/../../scripts/cuda_libraries.sh"
  copy_cuda_libraries "$root/usr/lib"  # ../lib of the programs
  origins+=(${cuda_libraries[@]+"${cuda_libraries[@]}"})
  add_libraries "$(realpath "$root")"/usr/lib/*.so.*
fi

install -m 644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
echo 'shoal:x:65532:65532:shoal:/:/usr/sbin/nologin' >"$root/etc/passwd"
echo 'shoal:x:65532:' >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"

# What is in it, as scanners read it (one file a package, as images without a package manager have).
declare -A packages
while read -r package _; do
  packages[${package%%[:,]*}]=1
done < <(dpkg-query -S "${origins[@]}" "${origins[@]#/usr}" 2>/dev/null || true)
for package in "${!packages[@]}"; do
  dpkg-query -s "$package" >"$root/var/lib/dpkg/status.d/$package"
done
cp /usr/lib/os-release "$root/etc/os-release"
chmod -R u=rwX,go=rX "$root"
chmod 1777 "$root/tmp"
