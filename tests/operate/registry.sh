#!/usr/bin/env bash
# A registry on this host alone: the image is pushed to it, and prepare.sh --digests pins what
# compose pulls to what the registry has (under the names of Prometheus and Grafana here, since no
# other registry is reached). SHOAL_BUILD: a folder with the programs in `bin`.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$PWD/build/operate
fail() { echo "registry: $*" >&2; exit 1; }
folder=$(mktemp -d)
image=localhost/shoal:operate-$$
export SHOAL_IMAGE=$image
port=$(PYTHONPATH=tests/operate python3 -c 'import processes; print(processes.free_port())')
host=127.0.0.1:$port
cat >"$folder/registry.yaml" <<END
version: 0.1
storage: {filesystem: {rootdirectory: $folder/store}}
http: {addr: "$host"}
END
"$work/debian/usr/bin/docker-registry" serve "$folder/registry.yaml" >"$folder/registry.log" 2>&1 &
registry=$!
finish() {
  kill "$registry" 2>/dev/null || true
  podman rmi --force "$image" >/dev/null 2>&1 || true
  rm -rf "$folder"
}
trap finish EXIT

deploy/image/build.sh --build "$SHOAL_BUILD" --tag "$image"
for _ in $(seq 60); do
  ! curl -sf "http://$host/v2/" >/dev/null || break
  sleep 0.5
done
push() { podman push --quiet --tls-verify=false "$image" "$host/$1"; }  # NAME
push shoal:0.1.0
podman pull --quiet --tls-verify=false "$host/shoal:0.1.0" >/dev/null
podman run --rm --network none "$host/shoal:0.1.0" shoal --version
podman rmi "$host/shoal:0.1.0" >/dev/null
echo 'pushed, and pulled again'

cp -r deploy "$folder/"
names=(prom/prometheus grafana/grafana)
for name in "${names[@]}"; do
  push "$(grep -o "$name:[^}]*" deploy/compose/compose.yaml)"
done
mkdir -p "$folder/.config/containers"
cat >"$folder/.config/containers/registries.conf" <<END
[[registry]]
prefix = "docker.io"
location = "$host"
insecure = true
END
HOME=$folder PATH=$work/debian/usr/bin:$PATH "$folder/deploy/compose/prepare.sh" --digests
digest_of() {  # NAME TAG
  curl -sfI -H 'Accept: application/vnd.oci.image.manifest.v1+json' \
    "http://$host/v2/$1/manifests/$2" | tr -d '\r' | sed -n 's/^Docker-Content-Digest: //p'
}
for name in "${names[@]}"; do
  tag=$(sed -n "s|.*$name:\([^}]*\).*|\1|p" deploy/compose/compose.yaml)
  pinned=docker.io/$name@$(digest_of "$name" "$tag")
  [[ $pinned == *@sha256:* ]] || fail "the registry has no digest of $name:$tag"
  grep -F "_IMAGE=$pinned" "$folder/deploy/compose/.env" ||
    fail "$name is not pinned to $pinned: $(<"$folder/deploy/compose/.env")"
done
