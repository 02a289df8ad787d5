#!/usr/bin/env python3
"""Makes tests/references/lora/*.json: adapters by PEFT on the models of make_families.py, with what
worker/model/lora_test.cc compares with Shoal's.

  tests/references/make_lora.py           writes them (requirements.txt says what it needs)
  tests/references/make_lora.py --check   says whether they are as it would write them

All numbers are float64. Weights are not stored: an element follows from the name that its tensor
has in PEFT's files and from its place (DEVIATION of value_of), so that C++ makes the same. Adapters
as large as the model's own matrices make its losses in float32 leave those in float64 by 1e-3
within 20 steps (llama, phi3; in PyTorch), which says nothing of either; so each recipe is run in
float32 too, and must stay within 1e-5.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import numpy
import peft
import torch
import transformers

import make_families as families

FOLDER = pathlib.Path(__file__).parent / 'lora'
LINEAR = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj']
MODELS = {
    'llama': dict(target_modules=LINEAR, rank_pattern={'layers.1.mlp.down_proj': 2},
                  alpha_pattern={'layers.1.mlp.down_proj': 6}),
    'qwen3': dict(target_modules=['q_proj', 'v_proj']),
    'gemma3': dict(target_modules=LINEAR, use_rslora=True),
    'olmo2': dict(target_modules=LINEAR),
    'phi3': dict(target_modules=['qkv_proj', 'o_proj', 'gate_up_proj', 'down_proj']),
}
ADAMW = dict(families.ADAMW, weight_decay=0.05)
DEVIATION = 0.3


def stored_name(name):
    return name.replace('.default.', '.')


def weight_of(name, shape):
    values = DEVIATION * families.value_of(name, int(numpy.prod(shape)))
    return torch.from_numpy(values.astype(numpy.float32).astype(numpy.float64)).reshape(shape)


def adapted(name, options, dtype):
    kind, keys = families.MODELS[name]
    model = families.model_of(kind, keys)
    config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, bias='none',
                             task_type='CAUSAL_LM', **options)
    model = peft.get_peft_model(model, config).double()
    with torch.no_grad():
        for tensor_name, tensor in model.named_parameters():
            if tensor.requires_grad:
                tensor.copy_(weight_of(stored_name(tensor_name), tuple(tensor.shape)))
    return model.to(dtype)


def config_text(model):
    """As save_pretrained writes it."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads((pathlib.Path(folder) / 'adapter_config.json').read_text())
    config['target_modules'].sort()
    return config


def golden_of(name, options, dtype=torch.float64):
    torch.set_default_dtype(dtype)
    model = adapted(name, options, dtype)
    stored = json.loads((families.FOLDER / (name + '.json')).read_text())
    sequences = stored['sequences']
    golden = dict(versions=f'peft {peft.__version__}, transformers {transformers.__version__}, '
                           f'torch {torch.__version__}',
                  adapter_config=config_text(model), adamw=ADAMW, losses=[])
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW([p for _, p in trained], lr=ADAMW['lr'],
                                  weight_decay=ADAMW['weight_decay'],
                                  betas=(ADAMW['beta1'], ADAMW['beta2']), eps=ADAMW['eps'])
    for step in range(families.STEPS):
        optimizer.zero_grad()
        loss, logits = families.loss_of(model, sequences)
        loss.backward()
        golden['losses'].append(loss.item())
        if step == 0:
            golden['logits'] = [[float(f'{x:.7g}') for x in logits[p].tolist()]
                                for p in families.POSITIONS]
            golden['gradients'] = {stored_name(n): families.gradient_of(stored_name(n), p.grad)
                                   for n, p in trained}
        norm = families.clipped_norm(p for _, p in trained)
        golden.setdefault('gradient_norm', norm)
        optimizer.step()
    return golden


def checked_golden_of(name, options):
    golden = golden_of(name, options)
    rounded = golden_of(name, options, torch.float32)
    off = max(abs(a - b) for a, b in zip(golden['losses'], rounded['losses']))
    if off > 1e-5:
        sys.exit(f'{name}: losses in float32 are {off:.1e} from those in float64')
    return golden


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--check', action='store_true')
    options = parser.parse_args()
    families.be_reproducible()
    FOLDER.mkdir(exist_ok=True)
    bad = False
    for name, adapter in MODELS.items():
        golden = checked_golden_of(name, adapter)
        bad |= families.settle(FOLDER / (name + '.json'), golden, options.check)
    sys.exit(bad)


if __name__ == '__main__':
    main()
