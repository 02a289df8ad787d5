#!/usr/bin/env bash
# Faults on a real cluster while jobs train (tests/operate/campaign.py), all of which end with the
# weights of an undisturbed one. In a network of its own, where processes are cut off from each
# other without a trace in this machine's; needs root.
#
#   scripts/campaign.sh [--faults N] [--seed N] [--report FILE]      (default: 50 faults, seed 1)
#
# SHOAL_BIN: the folder of the programs (default: built here).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/build.sh
skip() {
  echo "SKIPPED: $*"
  exit 77
}
[ "$(id -u)" = 0 ] || skip "there is no root for a network of its own"
command -v iptables >/dev/null || skip "there is no iptables"
unshare --net true 2>/dev/null || skip "this machine gives no network of its own"
if [ -z "${SHOAL_BIN:-}" ]; then
  configure release
  build release shoal shoal-coordinator shoal-server shoal-worker
fi
exec unshare --net sh -c 'ip link set lo up && exec python3 tests/operate/campaign.py "$@"' sh "$@"
