#!/usr/bin/env bash
# Installs the Debian 12 packages that building and testing Shoal needs, through apt (with sudo when not root).
# Says nothing when all of them are there already.
#
#   scripts/install-dependencies.sh [--tests]     --tests: also what only scripts/test.sh needs (clang for the fuzz targets)
set -euo pipefail

packages=(
  # tools
  ca-certificates git g++ cmake ninja-build ccache pkg-config
  # control plane
  libgrpc++-dev libgrpc-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev
  # tests and benchmarks (CMake looks for them in every build)
  libgtest-dev libgmock-dev libbenchmark-dev
  # configuration, JSON, command line, logs, metrics
  libyaml-cpp-dev nlohmann-json3-dev libcli11-dev libspdlog-dev libfmt-dev prometheus-cpp-dev
  # the CPU's matrix products, tokenizer, durable state, checksums
  libdnnl-dev libpcre2-dev libutf8proc-dev libsqlite3-dev libxxhash-dev
  # RDMA
  libibverbs-dev
  # what the static parts of the above link against
  zlib1g-dev libssl-dev libcurl4-openssl-dev
)
if [ "${1:-}" = --tests ]; then
  packages+=(clang libclang-rt-14-dev)
elif [ $# -gt 0 ]; then
  echo "usage: $0 [--tests]" >&2
  exit 2
fi

missing=()
for package in "${packages[@]}"; do
  if [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null | cut -c2)" != i ]; then
    missing+=("$package")
  fi
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" = 0 ]; then
  sudo=()
elif command -v sudo >/dev/null; then
  sudo=(sudo)
else
  echo "these packages are missing, and there is neither root nor sudo to install them: ${missing[*]}" >&2
  exit 1
fi
echo "installing ${#missing[@]} packages: ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@" >"$log" 2>&1 || {
    cat "$log" >&2
    echo "apt-get $1 failed" >&2
    exit 1
  }
}
install -q update
install -q install -y --no-install-recommends "${missing[@]}"
