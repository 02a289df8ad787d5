#!/usr/bin/env bash
# Makes what compose.yaml mounts and what is nobody else's: the token, certificates for a year,
# Grafana's password, the data folder. What is there stays as it is. Needs the image.
#
#   deploy/compose/prepare.sh [--digests]
#
#     --digests  also writes into .env the digests that the tags of Prometheus and Grafana have now,
#                so that nothing else is ever pulled (needs skopeo and a registry in reach)
#
# CONTAINER=docker takes docker, as in deploy/image/build.sh.
set -euo pipefail
cd "$(dirname "$0")"
umask 077
image_of() { sed -n "s/.*\${$1_IMAGE:-\(.*\)}.*/\1/p" compose.yaml; }  # NAME
mkdir -p secrets data
[ -e secrets/token ] || head -c 32 /dev/urandom | base64 >secrets/token
[ -e secrets/grafana-password ] || head -c 18 /dev/urandom | base64 >secrets/grafana-password
# Containers run as who called this; root's as nobody of importance.
if [ "$(id -u)" = 0 ]; then
  user=65532:65532
  chown -R "$user" secrets data
else
  user=$(id -u):$(id -g)
fi
touch .env
sed -i '/^SHOAL_USER=/d' .env
echo "SHOAL_USER=$user" >>.env
[ -e secrets/tls ] || "${CONTAINER:-podman}" run --rm --network none --user "$user" \
  --volume "$PWD/secrets:/secrets" "${SHOAL_IMAGE:-$(image_of SHOAL)}" \
  shoal tls init /secrets/tls --namespace compose --days 365 >/dev/null
if [ "${1:-}" = --digests ]; then
  for name in PROMETHEUS GRAFANA; do
    image=$(image_of "$name")
    digest=$(skopeo inspect --no-tags --format '{{.Digest}}' "docker://$image")
    sed -i "/^${name}_IMAGE=/d" .env
    echo "${name}_IMAGE=${image%:*}@$digest" >>.env
  done
elif [ $# -gt 0 ]; then
  sed -n '/^#   deploy/,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
