#!/usr/bin/env bash
# Part 7: the cluster of deploy/compose, on podman: it trains, twice on the same servers, over TLS,
# and its Prometheus reads all of it. (Prometheus is Debian's, in an image made here: no registry is
# reached. Grafana cannot be had; its files are read by dashboards/check.py.) SHOAL_BUILD: a folder
# with the programs in `bin`.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$PWD/build/operate
fail() { echo "compose: $*" >&2; exit 1; }
folder=$(mktemp -d)
port=$(PYTHONPATH=tests/operate python3 -c 'import processes; print(processes.free_port())')
export SHOAL_IMAGE=localhost/shoal:operate-$$ PROMETHEUS_PORT=$port
export PROMETHEUS_IMAGE=localhost/prometheus:operate-$$ COMPOSE_PROJECT_NAME=operate-$$
compose_within() {  # SECONDS WORDS...
  (cd "$folder/deploy/compose" &&
    timeout --kill-after=5 "$1" "$work/venv/bin/podman-compose" "${@:2}")
}
compose() { compose_within 120 "$@"; }
finish() {  # within the minute that operate-test.sh gives it
  compose_within 35 down --volumes >"$folder/down.log" 2>&1 || {
    local label=label=io.podman.compose.project=$COMPOSE_PROJECT_NAME
    timeout 10 podman ps --all --quiet --filter "$label" |
      timeout 10 xargs --no-run-if-empty podman rm --force --time 0 --volumes
    timeout 5 podman network rm --force "${COMPOSE_PROJECT_NAME}_default"
    timeout 5 podman volume rm --force "${COMPOSE_PROJECT_NAME}_prometheus"
  } >>"$folder/down.log" 2>&1 || true
  podman rmi --force "$SHOAL_IMAGE" "$PROMETHEUS_IMAGE" >/dev/null 2>&1 || true
  rm -rf "$folder"
}
trap finish EXIT

deploy/image/build.sh --build "$SHOAL_BUILD" --tag "$SHOAL_IMAGE"
mkdir "$folder/prometheus"
cp "$work/debian/usr/bin/prometheus" "$folder/prometheus/"
cat >"$folder/prometheus/Containerfile" <<END
FROM $SHOAL_IMAGE
COPY prometheus /usr/bin/prometheus
USER 0:0
ENTRYPOINT ["/usr/bin/prometheus"]
END
podman build --quiet --tag "$PROMETHEUS_IMAGE" "$folder/prometheus" >/dev/null

cp -r deploy dashboards "$folder/"
"$folder/deploy/compose/prepare.sh"
data=$folder/deploy/compose/data
shoal=$SHOAL_BUILD/bin/shoal
"$shoal" data synth --kind mixed --samples 500 --seed 1 --output "$data/train.jsonl" >/dev/null
"$shoal" data tokenizer "$data/train.jsonl" --vocabulary 320 --output "$data/tokenizer" >/dev/null
"$shoal" model init --shape tiny --tokenizer "$data/tokenizer" --output "$data/model" >/dev/null
for name in first second; do
  cat >"$data/$name.yaml" <<YAML
model: model
data: {train: train.jsonl, template: chatml, max_sequence_tokens: 512, oversize: skip}
train: {steps: 20, minibatch_samples: 8, warmup_steps: 2}
cluster: {coordinator: "coordinator:4000", servers: 2, workers: 2}
checkpoint: {directory: $name-checkpoints}
YAML
done
[ "$(id -u)" != 0 ] || chown -R 65532:65532 "$data"

members=(coordinator server-0 server-1 worker-0 worker-1 prometheus)
compose up --detach "${members[@]}" >"$folder/up.log" 2>&1 || {
  cat "$folder/up.log" >&2
  fail "does not come up"
}
for name in first second; do
  compose exec -T coordinator shoal train "/data/$name.yaml" --json --wait-for-servers \
    --token-file /etc/shoal/token >"$folder/$name.log" 2>&1 || {
    cat "$folder/$name.log" >&2
    podman ps -a >&2
    fail "the $name job did not end well"
  }
  grep -q '"event":"done".*"step":20' "$folder/$name.log" ||
    fail "the $name job: $(tail -n 3 "$folder/$name.log")"
done
echo "two jobs trained on the same servers"
reads() {  # query answer
  curl -sG "http://127.0.0.1:$port/api/v1/query" --data-urlencode "query=$1" | grep -F "\"$2\"" >/dev/null
}
wait_for() {  # what query answer
  for _ in $(seq 120); do
    ! reads "$2" "$3" || break
    sleep 1
  done
  reads "$2" "$3" || fail "not so: $1"
  echo "$1"
}
wait_for 'Prometheus reads all five processes' \
  'count(up{shoal_job="default", component!="", instance!=""} == 1)' 5
wait_for 'all five have certificates' \
  'count(shoal_tls_certificate_expiry_timestamp_seconds{kind="identity"})' 5
