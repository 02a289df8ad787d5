#!/usr/bin/env python3
"""Makes tests/references/families/*.json: small random models of each family in Hugging Face's
transformers, with what worker/model/families_test.cc compares with Shoal's.

  tests/references/make_families.py           writes them (requirements.txt says what it needs)
  tests/references/make_families.py --check   says whether they are as it would write them

Either takes the names of some models, in place of all. Run it with transformers 5 first: that run
makes everything but `config_v4`, the config.json as transformers 4 writes it, which a run with that
adds. All numbers are float64. Weights are not stored: element i of a tensor follows from its name
and i (value_of), so that C++ makes the same. A gradient is stored as its norm and its products with
two such random vectors.
"""

import argparse
import json
import pathlib
import sys

import numpy
import torch
import transformers

FOLDER = pathlib.Path(__file__).parent / 'families'
COMMON = dict(vocab_size=97, hidden_size=48, intermediate_size=80, num_hidden_layers=4,
              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
              bos_token_id=1, eos_token_id=2, pad_token_id=None)  # a padding row gets no gradient
LLAMA3 = dict(rope_type='llama3', rope_theta=1e4, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=64)
LINEAR = dict(rope_type='linear', rope_theta=1e4, factor=4.0)
YARN = dict(rope_type='yarn', rope_theta=1e4, factor=4.0, original_max_position_embeddings=64)
OLMO3 = dict(sliding_attention=dict(rope_type='default', rope_theta=1e4), full_attention=YARN)
PARTIAL = dict(rope_type='default', rope_theta=1e4, partial_rotary_factor=0.5)
LONGROPE = dict(PARTIAL, rope_type='longrope', short_factor=[1.0, 1.5, 2.0],
                long_factor=[3.0, 4.0, 5.0])
GEMMA2 = dict(COMMON, head_dim=16, query_pre_attn_scalar=20, sliding_window=5,
              attn_logit_softcapping=2.0, final_logit_softcapping=3.0)
GEMMA3 = dict(COMMON, head_dim=16, query_pre_attn_scalar=20, sliding_window=5,
              sliding_window_pattern=3,
              rope_parameters=dict(sliding_attention=dict(rope_type='default', rope_theta=1e2),
                                   full_attention=LINEAR))
MODELS = {
    'gemma2': ('Gemma2', GEMMA2),
    'gemma2_uncapped': ('Gemma2', dict(GEMMA2, attn_logit_softcapping=None,
                                       final_logit_softcapping=None)),
    'gemma3': ('Gemma3', GEMMA3),
    'gemma3_capped': ('Gemma3', dict(GEMMA3, final_logit_softcapping=3.0)),
    'llama': ('Llama', dict(COMMON, head_dim=16)),
    'llama_llama3': ('Llama', dict(COMMON, head_dim=16, rope_parameters=LLAMA3)),
    'llama_linear': ('Llama', dict(COMMON, head_dim=16, rope_parameters=LINEAR)),
    'mistral': ('Mistral', dict(COMMON, head_dim=16, sliding_window=None)),
    'mistral_window': ('Mistral', dict(COMMON, head_dim=16, sliding_window=5)),
    'olmo2': ('Olmo2', dict(COMMON)),
    'olmo3': ('Olmo3', dict(COMMON, sliding_window=5, rope_parameters=OLMO3)),
    'phi3': ('Phi3', dict(COMMON)),
    'phi3_partial': ('Phi3', dict(COMMON, rope_parameters=PARTIAL)),
    'phi3_long': ('Phi3', dict(COMMON, max_position_embeddings=24,
                               original_max_position_embeddings=6, rope_parameters=LONGROPE)),
    'phi4_mini': ('Phi3', dict(COMMON, tie_word_embeddings=True, sliding_window=5,
                               original_max_position_embeddings=128, rope_parameters=LONGROPE)),
    'qwen2': ('Qwen2', dict(COMMON, tie_word_embeddings=True)),
    'qwen3': ('Qwen3', dict(COMMON, head_dim=16)),
    'qwen3_yarn': ('Qwen3', dict(COMMON, head_dim=16, rope_parameters=YARN)),
    'smollm3': ('SmolLM3', dict(COMMON, no_rope_layer_interval=2)),
}
LENGTHS = [23, 7, 1]
POSITIONS = [0, 11, 22, 29, 30]  # of the packed tokens, whose logits are kept
STEPS = 20
ADAMW = dict(lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip_norm=1.0)


def value_of(name, count):
    """About normal, of deviation 0.3: the sum of four uniform numbers of 16 bits."""
    state = 0xcbf29ce484222325
    for byte in name.encode():
        state = (state ^ byte) * 0x100000001b3 % 2**64
    with numpy.errstate(over='ignore'):
        z = numpy.uint64(state) + (numpy.arange(count, dtype=numpy.uint64) + numpy.uint64(1)) * \
            numpy.uint64(0x9e3779b97f4a7c15)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xbf58476d1ce4e5b9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94d049bb133111eb)
        z = z ^ (z >> numpy.uint64(31))
    total = sum((z >> numpy.uint64(shift)) & numpy.uint64(0xffff) for shift in (0, 16, 32, 48))
    return (total.astype(numpy.float64) / 65536 - 2) * 0.519615


def weight_of(name, shape, norm):
    """Those of norms lie around `norm`."""
    values = value_of(name, int(numpy.prod(shape))).reshape(shape)
    if name.endswith('norm.weight'):
        values = norm + values
    return torch.from_numpy(values.astype(numpy.float32).astype(numpy.float64))


def config_of(kind, keys):
    """The keys are those of transformers 5."""
    keys = dict(keys)
    if transformers.__version__.startswith('4.'):
        rope = dict(keys.pop('rope_parameters', {}))
        if kind == 'Gemma3':
            keys['rope_local_base_freq'] = rope['sliding_attention']['rope_theta']
        rope = dict(rope.get('full_attention', rope))  # all that 4 scales
        if rope:
            keys.update(rope_theta=rope.pop('rope_theta'))
            if 'partial_rotary_factor' in rope:
                keys.update(partial_rotary_factor=rope.pop('partial_rotary_factor'))
            if rope['rope_type'] == 'longrope':  # it takes these three keys alone
                rope = dict(type='longrope', short_factor=rope['short_factor'],
                            long_factor=rope['long_factor'])
            keys.update(rope_scaling=None if rope == dict(rope_type='default') else rope)
    config_class = getattr(transformers, kind + 'ForCausalLM').config_class
    return config_class(**keys, attn_implementation='eager')


def loss_of(model, sequences):
    """The mean over all targets, and the logits of the sequences, one at a time."""
    total, targets, logits = 0, 0, []
    for tokens in sequences:
        out = model(torch.tensor([tokens])).logits[0]
        logits.append(out)
        total = total + torch.nn.functional.cross_entropy(
            out[:-1], torch.tensor(tokens[1:], dtype=torch.long), reduction='sum')
        targets += len(tokens) - 1
    return total / targets, torch.cat(logits)


def model_of(kind, keys):
    model = getattr(transformers, kind + 'ForCausalLM')(config_of(kind, keys)).double()
    norm = 0 if kind.startswith('Gemma') else 1  # Gemma adds one to the weights of norms
    with torch.no_grad():
        for tensor_name, tensor in model.named_parameters():
            tensor.copy_(weight_of(tensor_name, tuple(tensor.shape), norm))
    return model


def optimizer_of(model):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    return torch.optim.AdamW(
        [dict(params=matrices, weight_decay=ADAMW['weight_decay']),
         dict(params=vectors, weight_decay=0)],
        lr=ADAMW['lr'], betas=(ADAMW['beta1'], ADAMW['beta2']), eps=ADAMW['eps'])


def clipped_norm(parameters):
    """Clips the gradients and returns the norm that they had."""
    parameters = list(parameters)
    norm = torch.nn.utils.clip_grad_norm_(parameters, float('inf')).item()
    for p in parameters:
        p.grad *= min(1.0, ADAMW['clip_norm'] / (norm + 1e-6))
    return norm


def golden_of(name, kind, keys):
    torch.set_default_dtype(torch.float64)
    model = model_of(kind, keys)
    numbers = value_of('tokens of ' + name, sum(LENGTHS))
    tokens = [int(abs(x) * 1e6) % keys['vocab_size'] for x in numbers]
    sequences = [tokens[sum(LENGTHS[:i]):sum(LENGTHS[:i + 1])] for i in range(len(LENGTHS))]
    golden = dict(versions=f'transformers {transformers.__version__}, torch {torch.__version__}',
                  sequences=sequences, positions=POSITIONS, adamw=ADAMW, losses=[])
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, logits = loss_of(model, sequences)
        loss.backward()
        golden['losses'].append(loss.item())
        if step == 0:
            golden['logits'] = [[float(f'{x:.7g}') for x in logits[p].tolist()] for p in POSITIONS]
            golden['gradients'] = {n: gradient_of(n, p.grad) for n, p in model.named_parameters()}
        norm = clipped_norm(model.parameters())
        golden.setdefault('gradient_norm', norm)
        optimizer.step()
    return golden


def gradient_of(name, gradient):
    flat = gradient.flatten().numpy()
    return dict(shape=list(gradient.shape), norm=float(numpy.linalg.norm(flat)),
                products=[float(flat @ value_of(f'{name} {i}', len(flat))) for i in range(2)])


def config_text(kind, keys):
    """As save_pretrained writes it."""
    config = config_of(kind, keys)
    config.architectures = [kind + 'ForCausalLM']
    config.dtype = torch.float32
    return json.loads(config.to_json_string())


def differ(a, b, where):
    """Where two documents differ, but for roundings and versions."""
    if isinstance(a, dict) and isinstance(b, dict):
        found = [differ(a.get(k), b.get(k), f'{where}.{k}') for k in {*a, *b} - {'versions'}]
        return ', '.join(x for x in found if x)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        found = [differ(x, y, f'{where}[{i}]') for i, (x, y) in enumerate(zip(a, b))]
        return ', '.join(x for x in found if x)
    if isinstance(a, float) and isinstance(b, float):
        return '' if abs(a - b) <= 1e-5 * max(1, abs(a)) else f'{where}: {a} and {b}'
    return '' if a == b else f'{where}: {a} and {b}'


def settle(path, golden, check):
    """Writes a golden, or says whether it is as stored. Returns whether it is not."""
    if not check:
        path.write_text(json.dumps(golden, separators=(',', ':')) + '\n')
        print(f'{path.name}: {path.stat().st_size} bytes')
        return False
    said = differ(golden, json.loads(path.read_text()), path.stem)
    print(f'{path.stem}: {said or "as stored"}')
    return bool(said)


def be_reproducible():
    transformers.logging.set_verbosity_error()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # products of a few elements


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--check', action='store_true')
    parser.add_argument('names', nargs='*', help='all unless said')
    options = parser.parse_args()
    be_reproducible()
    bad = False
    for name in options.names or MODELS:
        kind, keys = MODELS[name]
        path = FOLDER / (name + '.json')
        stored = json.loads(path.read_text()) if path.exists() else {}
        golden = dict(stored)
        if transformers.__version__.startswith('4.'):
            golden['config_v4'] = config_text(kind, keys)
        else:
            golden.update(golden_of(name, kind, keys), config_v5=config_text(kind, keys))
        bad |= settle(path, golden, options.check)
    sys.exit(bad)


if __name__ == '__main__':
    main()
