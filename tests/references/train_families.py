#!/usr/bin/env python3
"""Trains the models of make_families.py with Shoal and with torch in float64, and compares them.

  tests/references/train_families.py BIN [NAME...]   BIN has the programs, e.g. build/release/bin

Of each model: writes it with transformers, of whatever version runs this, trains three steps
through two servers and two workers, and compares loss (3e-5) and gradient norm (5e-4 of it) of each
step with torch's; then loads the export in transformers, where no tensor may be missing or left
over. Exits with 1 where a bar is missed.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import make_families
import torch
import transformers
from make_families import ADAMW

STEPS = 3
JOB = f'''
model: model
data: {{train: train.jsonl, shuffle: false, max_sequence_tokens: 64, microbatch_tokens: 64}}
train: {{steps: {STEPS}, minibatch_samples: 2, compute: fp32, learning_rate: {ADAMW['lr']:.0e},
        schedule: constant, warmup_steps: 0, weight_decay: {ADAMW['weight_decay']},
        beta1: {ADAMW['beta1']}, beta2: {ADAMW['beta2']}, epsilon: {ADAMW['eps']:.0e},
        clip_norm: {ADAMW['clip_norm']}}}
service: {{partition_bytes: 8KiB}}
cluster: {{local: {{servers: 2, workers: 2}}}}
checkpoint: {{directory: checkpoints, every_steps: {STEPS}, export_huggingface: true}}
'''


def reference(model, sequences):
    """[(loss, gradient norm)] of each step."""
    optimizer = make_families.optimizer_of(model)
    steps = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss, _ = make_families.loss_of(model, sequences)
        loss.backward()
        steps.append((loss.item(), make_families.clipped_norm(model.parameters())))
        optimizer.step()
    return steps


def compare(name, programs, folder):
    """The worst of what was compared, over its bar."""
    torch.set_default_dtype(torch.float64)
    model = make_families.model_of(*make_families.MODELS[name])
    model.float().save_pretrained(folder / 'model')
    stored = json.loads((make_families.FOLDER / f'{name}.json').read_text())
    sequences = stored['sequences'][:2]  # the third is one token, with no target
    samples = [json.dumps(dict(input_ids=tokens, labels=tokens)) for tokens in sequences]
    (folder / 'train.jsonl').write_text('\n'.join(samples) + '\n')
    (folder / 'job.yaml').write_text(JOB)
    expected = reference(model.double(), sequences)
    run = subprocess.run([programs / 'shoal', 'train', folder / 'job.yaml', '--json'],
                         capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f'{name}: {run.stderr}')
    events = [json.loads(line) for line in run.stdout.splitlines() if line.startswith('{')]
    steps = [event for event in events if event.get('event') == 'step']
    loss = max(abs(a[0] - b['loss']) for a, b in zip(expected, steps, strict=True))
    norm = max(abs(a[1] / b['grad_norm'] - 1) for a, b in zip(expected, steps, strict=True))
    export = next((folder / 'checkpoints').glob('**/huggingface'))
    torch.set_default_dtype(torch.float32)
    _, info = transformers.AutoModelForCausalLM.from_pretrained(export, output_loading_info=True)
    wrong = {key: keys for key, keys in info.items() if keys}
    print(f'{name}: loss {loss:.1e}, gradient norm {norm:.1e}, loads with {wrong or "all tensors"}')
    return max(loss / 3e-5, norm / 5e-4, 2 if wrong else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('programs', type=pathlib.Path)
    parser.add_argument('names', nargs='*', help='all unless said')
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    worst = 0
    for name in options.names or make_families.MODELS:
        with tempfile.TemporaryDirectory() as folder:
            worst = max(worst, compare(name, options.programs.resolve(), pathlib.Path(folder)))
    sys.exit(worst > 1)


if __name__ == '__main__':
    main()
