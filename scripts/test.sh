#!/usr/bin/env bash
# Installs what is missing, builds release, and runs the tests that a change should pass before it
# is committed: unit and integration tests, and on a machine with a GPU those that need one, but not
# those with the label `long`. At most 15 minutes on two cores from nothing. All other stages:
# scripts/ci.sh.
#
#   scripts/test.sh [REGEX]
#
#     REGEX  builds and runs the tests with such a name alone, e.g. server_store or 'tcp|shm'
#
# Without SHOAL_TEST_DATA, the folder with the real test data, tests that need it are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/build.sh
if [ $# -gt 1 ] || [[ ${1:-} == -* ]]; then
  sed -n '/^#   scripts/,/^$/s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
scripts/install-dependencies.sh
configure release
selection=(-L '^(unit|integration|gpu)$' -LE '^(long|nightly)$')
if [ $# -eq 1 ]; then
  build_tests release "${selection[@]}" -R "$1"
  run_tests release quick "${selection[@]}" -R "$1"
else
  build release
  run_tests release quick "${selection[@]}"
fi
