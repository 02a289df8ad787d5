#!/usr/bin/env bash
# Runs the tests with CTest's label "rdma" on soft-RoCE, in one start of the virtual machine of
# vm.sh. They must have been built.
#
#   tests/rdma/run.sh [--all] [--build FOLDER] [CTEST-ARGUMENT...]
#
#   --all     also the tests with the label "long"; without it, what takes about four minutes on two
#             emulated processors
#   --build   the build to test (default build/release)
#
# SHOAL_RDMA_RESULTS: the file to leave CTest's results in, as JUnit has them.
#
# Exit status: 0 when all passed; 1 when one failed, or was skipped although there is a device; 77
# when nothing could be run here, with the reason in one line; 124 and 125 as of vm.sh.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$(cd "$here/../.." && pwd)/build/release
selection=(-L '^rdma$' -LE '^long$')
time_limit=900

while [ $# -gt 0 ]; do
  case $1 in
    --all) selection=(-L '^rdma$') time_limit=3000 ;;
    --build) shift; build=$(cd "${1:-}" && pwd) || exit 2 ;;
    *) break ;;
  esac
  shift
done
selection+=("$@")

skip() {
  echo "RDMA tests are SKIPPED: $*"
  exit 77
}

[ -e "$build/CTestTestfile.cmake" ] || {
  echo "$build is not a build: cmake --preset release && cmake --build --preset release" >&2
  exit 2
}
reason=$("$here/vm.sh" --prepare 2>&1) || skip "${reason##*$'\n'}"
ctest --test-dir "$build" "${selection[@]}" -N | grep '^ *Test *#' >/dev/null ||
  skip "this build has none"

report=$(mktemp -d "${TMPDIR:-/tmp}/shoal-rdma.XXXXXX") || exit 125
trap 'rm -rf "$report"' EXIT
# Two devices, so that a connection has two rails; control goes over lo, so that a test may take
# their links down. There is a device in the machine, so a test that skips itself for want of one
# has failed.
run() {
  env SHOAL_REQUIRE_RDMA=1 SHOAL_VM_TIMEOUT="${SHOAL_VM_TIMEOUT:-$time_limit}" \
    SHOAL_VM_WRITABLE="$report" \
    SHOAL_VM_NETWORK="${SHOAL_VM_NETWORK:-dummy,dummy}" SHOAL_VM_MEMORY="${SHOAL_VM_MEMORY:-3072}" \
    "$here/vm.sh" ctest --test-dir "$build" "${selection[@]}" --output-on-failure \
    --output-junit "$report/results.xml"
}
status=0
run || status=$?
if [ $status = 125 ]; then
  echo "the virtual machine failed; trying once more" >&2
  status=0
  run || status=$?
fi
if [ $status = 0 ] && grep -q 'status="notrun"' "$report/results.xml" 2>/dev/null; then
  echo "skipped although the machine has RDMA devices:" >&2
  grep -o 'name="[^"]*".*status="notrun"' "$report/results.xml" | cut -d'"' -f2 | sed 's/^/  /' >&2
  status=1
fi
if [ -n "${SHOAL_RDMA_RESULTS:-}" ] && [ -e "$report/results.xml" ]; then
  cp "$report/results.xml" "$SHOAL_RDMA_RESULTS"
fi
case $status in 0 | 124 | 125) exit $status ;; *) exit 1 ;; esac
