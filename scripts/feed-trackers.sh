#!/usr/bin/env bash
# Trains a tiny model with the trackers of examples/trackers as its log.command, resumed from a
# checkpoint before its last step, and compares what each tracker kept with the run's record. Their
# packages come from PyPI, as a reference; nothing is sent anywhere.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/build.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q mlflow wandb || {
  echo "SKIPPED: PyPI's mlflow and wandb cannot be installed here"
  exit 77
}
configure release
build release shoal shoal-coordinator shoal-server shoal-worker
shoal=build/release/bin/shoal
"$shoal" data synth --samples 200 --output "$work/train.jsonl"
"$shoal" data tokenizer "$work/train.jsonl" --vocabulary 320 --output "$work/tokenizer"
"$shoal" model init --shape tiny --tokenizer "$work/tokenizer" --output "$work/model"
cat >"$work/job.yaml" <<'YAML'
model: model
data: {train: train.jsonl, template: chatml, max_sequence_tokens: 512, oversize: skip}
train: {steps: 8, minibatch_samples: 8, warmup_steps: 2}
cluster: {local: {servers: 1, workers: 1}}
checkpoint: {every_steps: 3}
YAML
export WANDB_MODE=offline WANDB_DIR=$work MLFLOW_TRACKING_URI=sqlite:///$work/mlflow.db
for tracker in wandb mlflow; do
  run=$work/$tracker
  job=("$shoal" train "$work/job.yaml" --keep-logs --set "checkpoint.directory=$run"
    --set "log.command=$work/venv/bin/python examples/trackers/to_$tracker.py")
  "${job[@]}" --steps 5
  rm -r "$run/step-00000005"
  "${job[@]}" --resume
  cat "$run/logs/log-command.log"
  "$work/venv/bin/python" scripts/feed_trackers_check.py "$tracker" "$run/record/metrics.jsonl"
done
