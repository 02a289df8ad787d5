#!/usr/bin/env bash
# Part 2, for GPUs: in the root folder of the image with the CUDA libraries each of them finds all
# that it needs, and nothing from outside. (Whether a GPU takes them cannot be seen without one.)
# SHOAL_BUILD: a folder with the programs in `bin`.
set -euo pipefail
cd "$(dirname "$0")/../.."
fail() { echo "image-cuda: $*" >&2; exit 1; }
skip() { echo "SKIPPED: $*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "a change of root takes root"
[ -x "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)" ] || skip "there is no CUDA toolkit"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
root=$folder/rootfs
deploy/image/rootfs.sh --with-cuda-libraries "$SHOAL_BUILD" "$root"
libraries=()
for path in "$root"/usr/lib/*.so.*; do
  libraries+=("$(basename "$path")")
  chroot "$root" /usr/lib64/ld-linux-x86-64.so.2 --list "/usr/lib/$(basename "$path")" \
    >"$folder/list" 2>&1 || fail "$(basename "$path"): $(<"$folder/list")"
done
for wanted in libcublasLt libcudnn libnccl; do
  [[ " ${libraries[*]}" == *" $wanted.so."* ]] || fail "there is no $wanted"
done
echo "${#libraries[@]} libraries find all that they need"
