#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test through CTest:
#   1. the release build, all tests;
#   2. the tests on RDMA devices, in a virtual machine with soft-RoCE (tests/rdma/run.sh; skipped,
#      with the reason, where there is no QEMU or no kernel for it);
#   3. AddressSanitizer and UndefinedBehaviorSanitizer over the unit and integration tests;
#   4. the fuzz targets, a few seconds each.
# Ends with CTest's summaries; the exit code is 0 only when none failed. About 50 minutes on 2 cores
# from nothing, 20 with a warm compiler cache. ThreadSanitizer is a command of its own,
# scripts/tsan.sh.
#
#   SHOAL_TEST_DATA    folder with the real test data; without it, tests that need it are reported
#                      as skipped
#   SHOAL_TEST_STAGES  which stages to run (default: "release rdma asan fuzz")
set -euo pipefail
cd "$(dirname "$0")/.."
stages=${SHOAL_TEST_STAGES:-release rdma asan fuzz}
jobs=$(nproc)
export CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=$PWD
# A sanitizer that finds something must fail the test, not print and go on.
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
# Memory that is refused is an error that programs tell, and tests ask for too much on purpose.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:strict_string_checks=1:allocator_may_return_null=1}
export LSAN_OPTIONS=${LSAN_OPTIONS:-suppressions=$PWD/scripts/lsan.supp:print_suppressions=0}

say() { printf '\n== %s\n' "$*"; }

say "installing what is missing"
scripts/install-dependencies.sh --tests

build() {  # preset [cmake --build arguments]
  mkdir -p build
  cmake --preset "$1" >"build/configure-$1.log" 2>&1 || { cat "build/configure-$1.log" >&2; return 1; }
  cmake --build --preset "$1" -j "$jobs" "${@:2}"
}

failed=()
skipped=()
run() {  # name, command...
  local name=$1
  shift
  local status=0
  "$@" || status=$?
  case $status in
    0) ;;
    77) skipped+=("$name") ;;
    *) failed+=("$name") ;;
  esac
}

for stage in $stages; do
  case $stage in
    release)
      say "release: build and all tests"
      build release
      run release ctest --test-dir build/release --output-on-failure -j "$jobs"
      ;;
    rdma)
      say "RDMA: tests in a virtual machine with soft-RoCE"
      build release
      run rdma tests/rdma/run.sh
      ;;
    asan)
      say "AddressSanitizer and UndefinedBehaviorSanitizer: build, unit and integration tests"
      build asan
      # What runs for minutes in release is left to release.
      run asan ctest --test-dir build/asan --output-on-failure -j "$jobs" -L 'unit|integration' -LE long
      ;;
    fuzz)
      say "fuzz targets"
      build fuzz --target fuzzers
      run fuzz ctest --test-dir build/fuzz --output-on-failure -j "$jobs" -L fuzz
      ;;
    *)
      echo "unknown stage $stage: release, rdma, asan, fuzz" >&2
      exit 2
      ;;
  esac
done

if [ ${#skipped[@]} -gt 0 ]; then
  say "SKIPPED, with the reason above: ${skipped[*]}"
fi
if [ ${#failed[@]} -gt 0 ]; then
  say "FAILED: ${failed[*]}"
  exit 1
fi
