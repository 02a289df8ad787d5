#!/usr/bin/env bash
# Builds the image with podman (or docker), from a build of the four programs. Two builds of one
# build folder at one commit have one digest.
#
#   deploy/image/build.sh [--build FOLDER] [--tag NAME] [--base IMAGE] [--with-cuda-libraries]
#
#     --build  folder with the programs (default: build/package, built here)
#     --tag    name of the image (default: shoal:VERSION of localhost)
#     --base   scratch (the default), or a Debian 12 with a shell to look around in: of another
#              system the libraries would not fit
#     --with-cuda-libraries
#              cuBLASLt, cuDNN and NCCL as well, 1.4 GB (default tag: shoal:VERSION-cuda)
#
# CONTAINER=docker takes docker. The digest, the size and the tag are printed.
set -euo pipefail
cd "$(dirname "$0")/../.."
build='' tag='' base=scratch cuda=()
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=${2:?--build wants a folder}; shift ;;
    --tag) tag=${2:?--tag wants a name}; shift ;;
    --base) base=${2:?--base wants an image}; shift ;;
    --with-cuda-libraries) cuda=("$1") ;;
    *) sed -n '/^#   deploy/,/^[^#]/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done
container=${CONTAINER:-podman}
command -v "$container" >/dev/null || {
  echo "build: there is no $container (apt-get install podman, or CONTAINER=docker)" >&2
  exit 1
}
if [ -z "$build" ]; then
  build=build/package
  scripts/install-dependencies.sh
  cmake --preset package >/dev/null
  cmake --build --preset package -j "$(nproc)" \
    --target shoal shoal-coordinator shoal-server shoal-worker
fi
deploy/image/rootfs.sh ${cuda[@]+"${cuda[@]}"} "$build" build/image/rootfs
version=$("$build/bin/shoal" --version | awk -F '[ +]' '{print $2}')  # + is none of a tag
revision=$(git rev-parse HEAD)
tag=${tag:-localhost/shoal:$version${cuda:+-cuda}}
arguments=(--file deploy/image/Containerfile --build-arg "BASE=$base" --tag "$tag"
  --build-arg "VERSION=$version" --build-arg "REVISION=$revision")
# Files and the image are of the commit's time.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
if [ "$container" = podman ]; then
  arguments+=(--timestamp "$SOURCE_DATE_EPOCH" --layers=false --quiet)
fi
"$container" build "${arguments[@]}" build/image/rootfs >/dev/null
size=$("$container" image inspect --format '{{.Size}}' "$tag")
digest=$("$container" image inspect --format '{{if .Digest}}{{.Digest}}{{else}}{{.Id}}{{end}}' \
  "$tag")
awk -v tag="$tag" -v size="$size" -v digest="$digest" \
  'BEGIN {printf "%s: %.0f MB, %s\n", tag, size / 1e6, digest}'
