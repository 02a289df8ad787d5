#!/usr/bin/env bash
# ThreadSanitizer over the unit and integration tests, with nothing suppressed but one report inside
# gRPC's own build.
#
# The packaged gRPC and Abseil are not instrumented, so with them TSan reports hundreds of races
# that are none, and suppressing those would hide real ones. This builds both from the
# distribution's sources, instrumented, into a cached prefix (about 10 minutes on 2 cores, once),
# then configures the `tsan` preset against it and runs the tests. GPU kernels, which tests run on
# a fake GPU, are checked for races between the threads of a block
# (core/gpu/fake_cuda/races.h).
#
#   scripts/tsan.sh [ctest arguments]      e.g. scripts/tsan.sh -R transport
#
# SHOAL_TSAN_PREFIX: where the prefix lies (default: .cache/tsan-prefix in the checkout).
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=${SHOAL_TSAN_PREFIX:-$PWD/.cache/tsan-prefix}
jobs=$(nproc)
sudo=; [ "$(id -u)" = 0 ] || sudo=sudo

scripts/install-dependencies.sh

# Fetches and unpacks Debian source packages into $1, from the archives this machine already uses.
fetch_sources() {
  local work=$1 apt; shift
  mkdir -p "$work/apt/parts" "$work/apt/lists/partial"
  for list in /etc/apt/sources.list.d/*.sources; do
    [ -f "$list" ] && grep -q '^Suites:.*bookworm' "$list" &&
      sed 's/^Types:.*/Types: deb-src/' "$list" > "$work/apt/parts/$(basename "$list")"
  done
  { grep -hE '^deb ' /etc/apt/sources.list 2>/dev/null || true; } |
    sed 's/^deb /deb-src /' > "$work/apt/sources.list"
  apt="-o Dir::Etc::sourcelist=$work/apt/sources.list -o Dir::Etc::sourceparts=$work/apt/parts"
  apt+=" -o Dir::State::lists=$work/apt/lists"
  # shellcheck disable=SC2086
  apt-get $apt -qq update
  # shellcheck disable=SC2086
  (cd "$work" && apt-get $apt -qq source "$@")
}

build_and_install() {
  local source=$1 build=$1/build-tsan; shift
  cmake -S "$source" -B "$build" -G Ninja \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_STANDARD=17 \
    -DCMAKE_C_FLAGS="-fsanitize=thread -g1 -w" -DCMAKE_CXX_FLAGS="-fsanitize=thread -g1 -w" \
    -DCMAKE_EXE_LINKER_FLAGS=-fsanitize=thread -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    -DBUILD_SHARED_LIBS=OFF \
    -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_PREFIX_PATH="$prefix" "$@"
  # The generators run while building; gRPC's own start-up must not stop the build.
  TSAN_OPTIONS="halt_on_error=0 exitcode=0" cmake --build "$build" -j "$jobs" --target install
}

if [ ! -f "$prefix/complete" ]; then
  $sudo apt-get install -y -qq --no-install-recommends \
    dpkg-dev libprotoc-dev libre2-dev libc-ares-dev libssl-dev zlib1g-dev
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  echo "fetching the sources of abseil and grpc"
  fetch_sources "$work" abseil grpc
  echo "building instrumented abseil"
  build_and_install "$(echo "$work"/abseil-*/)" -DABSL_PROPAGATE_CXX_STD=ON -DBUILD_TESTING=OFF
  echo "building instrumented gRPC (some minutes)"
  build_and_install "$(echo "$work"/grpc-*/)" -DgRPC_BUILD_TESTS=OFF -DgRPC_INSTALL=ON \
    -DgRPC_ABSL_PROVIDER=package -DgRPC_PROTOBUF_PROVIDER=package -DgRPC_RE2_PROVIDER=package \
    -DgRPC_CARES_PROVIDER=package -DgRPC_SSL_PROVIDER=package -DgRPC_ZLIB_PROVIDER=package \
    -DgRPC_BUILD_CSHARP_EXT=OFF -DgRPC_BUILD_GRPC_CSHARP_PLUGIN=OFF \
    -DgRPC_BUILD_GRPC_NODE_PLUGIN=OFF \
    -DgRPC_BUILD_GRPC_OBJECTIVE_C_PLUGIN=OFF -DgRPC_BUILD_GRPC_PHP_PLUGIN=OFF \
    -DgRPC_BUILD_GRPC_PYTHON_PLUGIN=OFF -DgRPC_BUILD_GRPC_RUBY_PLUGIN=OFF
  touch "$prefix/complete"
fi

cmake --preset tsan -DCMAKE_PREFIX_PATH="$prefix"
TSAN_OPTIONS="halt_on_error=0 exitcode=0" cmake --build --preset tsan -j "$jobs"

# oneDNN's threads come from libgomp, which is not instrumented: one thread keeps it out of the
# picture.
export OMP_NUM_THREADS=1
export TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1 suppressions=$PWD/scripts/tsan.supp"
# TSan needs a fixed address layout on kernels with many randomised bits.
exec setarch "$(uname -m)" -R ctest --preset tsan -L 'unit|integration' "$@"
