#!/usr/bin/env bash
# Installs the Debian 12 packages that building and testing Shoal needs, through apt (with sudo when
# not root). Says nothing when all of them are there already.
#
#   scripts/install-dependencies.sh [--tests]
#
#     --tests  also what only tests need: clang for the fuzz targets, what scripts/lint.sh runs,
#              and, where they can be had, gnuplot, which charts are drawn by, etcd, QEMU and
#              what else tests/rdma/vm.sh starts a machine with
set -euo pipefail

packages=(
  # tools
  ca-certificates git g++ cmake ninja-build ccache pkg-config
  # control plane
  libgrpc++-dev libgrpc-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev
  # tests and benchmarks (CMake looks for them in every build)
  libgtest-dev libgmock-dev libbenchmark-dev
  # configuration, JSON, command line, logs, metrics
  libyaml-cpp-dev nlohmann-json3-dev libcli11-dev libspdlog-dev libfmt-dev
  prometheus-cpp-dev libcivetweb-dev
  # the CPU's matrix products, tokenizer, durable state, checksums
  libdnnl-dev libpcre2-dev libutf8proc-dev libsqlite3-dev libxxhash-dev
  # packed data
  zlib1g-dev libzstd-dev
  # RDMA
  libibverbs-dev
  # what the static parts of the above link against
  libssl-dev libcurl4-openssl-dev
)
# Wanted, but not for everything: without them some tests are reported as skipped.
wanted=()
if [ "${1:-}" = --tests ]; then
  packages+=(clang libclang-rt-14-dev)
  packages+=(clang-format clang-tidy python3)  # scripts/lint.sh
  wanted+=(qemu-system-x86 cpio busybox-static xz-utils kmod iproute2 util-linux ibverbs-providers)
  wanted+=(gnuplot-nox zsh iptables openssl etcd-server)
elif [ $# -gt 0 ]; then
  echo "usage: $0 [--tests]" >&2
  exit 2
fi

missing() {  # packages...: those that are not installed
  local package
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null | cut -c2)" = i ] ||
      echo "$package"
  done
}
mapfile -t needed < <(missing "${packages[@]}")
mapfile -t wanted < <(missing ${wanted[@]+"${wanted[@]}"})
[ ${#needed[@]} -eq 0 ] && [ ${#wanted[@]} -eq 0 ] && exit 0

if [ "$(id -u)" = 0 ]; then
  sudo=()
elif command -v sudo >/dev/null; then
  sudo=(sudo)
elif [ ${#needed[@]} -eq 0 ]; then
  echo "neither root nor sudo to install ${wanted[*]}: tests that need them will be skipped" >&2
  exit 0
else
  echo "these packages are missing, and there is neither root nor sudo to install them:" \
    "${needed[*]}" >&2
  exit 1
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -o DPkg::Lock::Timeout=300 -q "$@" >"$log" 2>&1
}
install() {  # packages...
  [ $# -eq 0 ] && return 0
  echo "installing $# packages: $*" >&2
  apt install -y --no-install-recommends "$@"
}
if ! apt update || ! install ${needed[@]+"${needed[@]}"}; then
  cat "$log" >&2
  [ ${#needed[@]} -eq 0 ] || exit 1
fi
install ${wanted[@]+"${wanted[@]}"} ||
  echo "cannot install all of ${wanted[*]}: tests that need them will be skipped" >&2
