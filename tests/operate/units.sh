#!/usr/bin/env bash
# systemd's units: valid, with programs and folders where they say.
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v systemd-analyze >/dev/null || {
  echo "SKIPPED: there is no systemd-analyze"
  exit 77
}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{etc/systemd/system,opt/shoal/bin,usr/lib/systemd/system}
cp deploy/systemd/*.service "$root/etc/systemd/system/"
cp -L /usr/lib/systemd/system/{network-online,multi-user,sysinit,basic,shutdown,network}.target \
  "$root/usr/lib/systemd/system/"
for program in coordinator server worker; do
  cp "$SHOAL_BIN/shoal-$program" "$root/opt/shoal/bin/"
done
systemd-analyze verify --root="$root" --recursive-errors=no \
  "$root"/etc/systemd/system/shoal-*.service
# Every flag that a unit passes is one that its program has, those in shoal.env too.
for unit in deploy/systemd/*.service; do
  program=$(basename "$unit" .service)
  help=$("$SHOAL_BIN/$program" --help)
  passed=("$unit")
  [ "$program" != shoal-coordinator ] || passed+=(deploy/systemd/shoal.env)
  for flag in $(grep -ohE -- ' --[a-z-]+' "${passed[@]}"); do
    grep -qE -- "^  .*$flag\b" <<<"$help" || {
      echo "$unit: $program has no $flag"
      exit 1
    }
  done
done
echo "$(ls deploy/systemd/*.service | wc -l) units are valid"
