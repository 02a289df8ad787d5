#!/usr/bin/env bash
# Part 2: the image of deploy/image, built twice from one build: one digest, at most 150 MB, four
# programs that run as 65532 with a read-only root and no rights, a list of what is in it.
# SHOAL_BUILD: a folder with the programs in `bin`.
set -euo pipefail
cd "$(dirname "$0")/../.."
most=150000000
work=$PWD/build/operate
tag=localhost/shoal:operate-$$
fail() { echo "image: $*" >&2; exit 1; }
trap 'podman rmi --force "$tag" >/dev/null 2>&1 || true' EXIT

"$work/venv/bin/hadolint" --ignore DL3006 deploy/image/Containerfile
first=$(deploy/image/build.sh --build "$SHOAL_BUILD" --tag "$tag")
podman rmi --force "$tag" >/dev/null
second=$(deploy/image/build.sh --build "$SHOAL_BUILD" --tag "$tag")
echo "$first"
[ "$first" = "$second" ] || fail "two builds differ: $second"
size=$(podman image inspect --format '{{.Size}}' "$tag")
[ "$size" -le "$most" ] || fail "$size bytes, at most $most"

for program in shoal shoal-coordinator shoal-server shoal-worker; do
  # Read-only, no rights, no network.
  podman run --rm --read-only --cap-drop all --security-opt no-new-privileges --network none \
    "$tag" "$program" --version
done
user=$(podman image inspect --format '{{.User}}' "$tag")
[ "$user" = 65532:65532 ] || fail "runs as $user"
! podman run --rm --network none "$tag" sh -c true 2>/dev/null || fail "there is a shell in it"

SYFT_CHECK_FOR_APP_UPDATE=false "$work/venv/bin/syft" scan --quiet "dir:build/image/rootfs" \
  --output "spdx-json=$work/image.spdx.json"
python3 - "$work/image.spdx.json" <<'PYTHON'
import json
import sys

packages = {each["name"] for each in json.load(open(sys.argv[1], encoding="utf-8"))["packages"]}
missing = {"libgrpc++1.51", "libc6", "libssl3", "ibverbs-providers"} - packages
assert not missing, f"the list of what is in it lacks {missing}: {sorted(packages)}"
print(f"SPDX names {len(packages)} packages")
PYTHON
