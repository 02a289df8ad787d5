#!/usr/bin/env bash
# systemd's units on a real systemd, process 1 of a container: jobs on the service that they start.
# One runs by itself; in the middle of another the worker and the server are restarted, the server
# is killed, the coordinator is restarted; the last one is over TLS. All end with one hash.
# SHOAL_BUILD: a folder with the programs in `bin`.
set -euo pipefail
cd "$(dirname "$0")/../.."
fail() { echo "systemd: $*" >&2; exit 1; }
folder=$(mktemp -d)
chmod 755 "$folder"
root=$folder/root
name=operate-systemd-$$
finish() {
  podman rm --force --time 20 "$name" >/dev/null 2>&1 || true
  rm -rf "$folder"
}
trap finish EXIT
sources=/etc/apt/sources.list
if [ -e /etc/apt/sources.list.d/debian.sources ]; then
  sources=$folder/apt.sources
  grep -v '^#' /etc/apt/sources.list.d/debian.sources >"$sources"
fi
mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,dbus bookworm "$root" \
  "$sources" 2>"$folder/mmdebstrap.log" ||
  fail "$(tail -n 3 "$folder/mmdebstrap.log")"

scripts/bundle.sh --build "$SHOAL_BUILD" --no-build --data '' --output "$folder/bundle" 2>&1 |
  tail -n 1
cp -r "$folder/bundle" "$root/opt/shoal"
cp deploy/systemd/*.service "$root/etc/systemd/system/"
install -d "$root"/{etc,srv}/shoal
head -c 32 /dev/urandom | base64 >"$folder/token"
install -m 600 "$folder/token" "$root/etc/shoal/token"
sed 's/[a-z0-9]*\.example\.com/127.0.0.1/' deploy/systemd/shoal.env >"$root/etc/shoal/shoal.env"
shoal=$SHOAL_BUILD/bin/shoal data=$root/srv/shoal
"$shoal" data synth --kind mixed --samples 500 --seed 1 --output "$data/train.jsonl" >/dev/null
"$shoal" data tokenizer "$data/train.jsonl" --vocabulary 320 --output "$data/tokenizer" >/dev/null
"$shoal" model init --shape examples/quickstart-model.json --tokenizer "$data/tokenizer" \
  --output "$data/model" >/dev/null
for job in calm rough encrypted; do
  cat >"$data/$job.yaml" <<YAML
model: model
data: {train: train.jsonl, template: chatml, max_sequence_tokens: 512, oversize: skip}
train: {steps: 100, minibatch_samples: 16, warmup_steps: 2}
service: {accumulate: exact}
cluster: {coordinator: "127.0.0.1:4000", servers: 1, workers: 1}
checkpoint: {directory: $job-checkpoints, every_steps: 10}
YAML
done

podman run --detach --name "$name" --privileged --systemd=always --network none \
  --rootfs "$root" /sbin/init >/dev/null
within() { timeout 120 podman exec "$name" "$@"; }
wait_for() {  # what seconds command...
  local deadline=$((SECONDS + $2))
  until "${@:3}"; do
    [ $SECONDS -lt $deadline ] || {
      within journalctl --no-pager --lines=30 >&2 || true
      fail "not within $2 s: $1"
    }
    sleep 0.3
  done
}
boots() { within systemctl list-units >/dev/null 2>&1; }
wait_for 'systemd answers' 60 boots
within mount --make-rshared /  # as on a host: credentials are mounts that units are to see
within useradd --system --no-create-home shoal
within chown -R shoal /srv/shoal
within systemctl enable --quiet --now shoal-coordinator shoal-server shoal-worker
train() {  # JOB [ARGUMENT]: to its end, as the user of the units
  timeout 300 podman exec --env "SHOAL_TOKEN=$(<"$folder/token")" "$name" \
    runuser -u shoal -- /opt/shoal/bin/shoal train "/srv/shoal/$1.yaml" --json "${@:2}" \
    >>"$folder/$1.log" 2>&1
}
steps() { grep -c '"event":"step"' "$folder/$1.log" || true; }
came_to() { [ "$(steps rough)" -ge "$1" ]; }

train calm || fail "$(tail -n 3 "$folder/calm.log")"
touch "$folder/rough.log"
train rough &
job=$!
for does in 'restart shoal-worker' 'restart shoal-server' 'kill --signal=KILL shoal-server' \
  'restart shoal-coordinator'; do
  wait_for "10 steps more" 120 came_to $(($(steps rough) + 10))
  # shellcheck disable=SC2086  # words
  within systemctl $does
  echo "systemctl $does after $(steps rough) steps"
done
status=0
wait $job || status=$?
[ $status = 75 ] || fail "shoal train ended with $status: $(tail -n 3 "$folder/rough.log")"
train rough --resume=auto || fail "$(tail -n 3 "$folder/rough.log")"

"$shoal" tls init "$root/etc/shoal/tls" >/dev/null
within chown -R shoal /etc/shoal/tls
sed -i 's/^#SHOAL_TLS/SHOAL_TLS/' "$root/etc/shoal/shoal.env"
within systemctl restart shoal-coordinator shoal-server shoal-worker
! train encrypted || fail 'a job was taken in plain text'
grep -F 'may want TLS' "$folder/encrypted.log"
train encrypted --tls /etc/shoal/tls || fail "$(tail -n 3 "$folder/encrypted.log")"
hashes=$(for job in calm rough encrypted; do
  "$shoal" checkpoint hash "$data/$job-checkpoints" | awk '{print $NF}'
done)
[ "$(sort -u <<<"$hashes" | wc -l)" = 1 ] || fail "the hashes differ: $hashes"
echo "three jobs end with $(head -n 1 <<<"$hashes")"

# A wrong file does not mend itself.
within rm /etc/shoal/tls/worker/tls.key
within systemctl restart shoal-worker
stays_down() { [ "$(within systemctl show --property=Result,NRestarts --value shoal-worker |
  tr '\n' ' ')" = 'exit-code 0 ' ]; }
wait_for 'the worker without a key is not started again' 30 stays_down
within journalctl --no-pager --lines=20 --unit=shoal-worker | grep -m 1 'tls.key'
