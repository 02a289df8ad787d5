#!/usr/bin/env bash
# Trains a tiny model with log.tensorboard, resumed halfway, and compares what TensorBoard's own
# reader (from PyPI, as a reference) finds with the run's record.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/build.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q tensorboard || {
  echo "SKIPPED: PyPI's tensorboard cannot be installed here"
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
log: {tensorboard: true}
YAML
"$shoal" train "$work/job.yaml" --steps 5
"$shoal" train "$work/job.yaml" --resume
"$work/venv/bin/python" - "$work/checkpoints/record" <<'PYTHON'
import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1])
events.Reload()
with open(sys.argv[1] + "/metrics.jsonl", encoding="utf-8") as lines:
    steps = [line for line in map(json.loads, lines) if line["event"] == "step"]
for tag, key in (("loss/mean", "loss"), ("grad_norm", "grad_norm"), ("lr", "learning_rate")):
    found = {event.step: event.value for event in events.Scalars(tag)}
    assert sorted(found) == [line["step"] for line in steps], (tag, found)
    for line in steps:
        assert abs(found[line["step"]] - line[key]) <= 1e-6 * abs(line[key]), (tag, line)
print(f"TensorBoard reads all {len(steps)} steps")
PYTHON
