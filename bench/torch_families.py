#!/usr/bin/env python3
"""Shoal's training microbatch over PyTorch's, for each dense family at about 25M parameters.

  torch_families.py --bench build/release/bench/bench_compute [--compute bf16] [FAMILY ...]

Each family's own class of transformers, random weights, through torch.compile: forward, backward
and loss of the same tokens in the same sequences. Both in turns in one run; the median of the
rounds' ratios counts (bar 1.3). Neither has an optimizer. Needs what tests/references/
requirements.txt says, and a C++ compiler for torch.compile; never more than that many threads.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import torch
import transformers

BAR = 1.3
VOCABULARY = 4096
COMMON = dict(vocab_size=VOCABULARY, hidden_size=512, intermediate_size=1408, num_hidden_layers=8,
              num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=2048,
              bos_token_id=1, eos_token_id=2, pad_token_id=None, tie_word_embeddings=False)
FAMILIES = {
    'llama': ('Llama', {}),
    'mistral': ('Mistral', dict(sliding_window=None, head_dim=64)),
    'qwen2': ('Qwen2', {}),
    'qwen3': ('Qwen3', dict(head_dim=64)),
    'phi3': ('Phi3', {}),
    'olmo2': ('Olmo2', {}),
    'olmo3': ('Olmo3', dict(sliding_window=256)),
    'gemma2': ('Gemma2', dict(head_dim=64, query_pre_attn_scalar=64, sliding_window=256,
                              tie_word_embeddings=True)),
    'gemma3': ('Gemma3Text', dict(head_dim=64, query_pre_attn_scalar=64, sliding_window=256,
                                  tie_word_embeddings=True)),
}


class Peer:
    """A family's model in PyTorch, and tokens for it."""

    def __init__(self, config, options):
        torch.manual_seed(1)
        torch._dynamo.reset()
        dtype = torch.bfloat16 if options.compute == 'bf16' else torch.float32
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).train()
        self.parameters = list(model.parameters())
        self.model = torch.compile(model)
        shape = (options.tokens // options.sequence, options.sequence)
        self.ids = torch.randint(0, VOCABULARY, shape)

    def seconds(self):
        begin = time.perf_counter()
        self.model(input_ids=self.ids, labels=self.ids, use_cache=False).loss.backward()
        end = time.perf_counter()
        for parameter in self.parameters:
            parameter.grad = None
        return end - begin


def seconds_of_shoal(folder, options):
    command = [options.bench, '--model', folder, '--rounds', '1', '--tokens', str(options.tokens),
               '--sequence', str(options.sequence), '--threads', str(options.threads),
               '--only', {'bf16': 'BF16', 'fp32': 'F32'}[options.compute]]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    return json.loads(result.stdout)


def measure(family, options):
    name, more = FAMILIES[family]
    config = getattr(transformers, name + 'Config')(**(COMMON | more))
    config.architectures = [name.removesuffix('Text') + 'ForCausalLM']
    peer = Peer(config, options)
    for _ in range(2):
        peer.seconds()  # compiles, and warms up
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / 'config.json').write_text(config.to_json_string(use_diff=False))
        for _ in range(options.rounds):
            theirs = min(peer.seconds() for _ in range(2))
            told = seconds_of_shoal(folder, options)
            ours = told['microbatch_ms'] / 1e3
            ratios.append(theirs / ours)
    assert told['parameters'] == sum(p.numel() for p in peer.parameters), 'another model'
    print(f"| {family} | {told['parameters'] / 1e6:.1f} | {options.tokens / theirs:.0f} |"
          f" {options.tokens / ours:.0f} | **{statistics.median(ratios):.2f}** |"
          f" {min(ratios):.2f} to {max(ratios):.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--bench', required=True, help='the program bench_compute')
    parser.add_argument('--compute', choices=['bf16', 'fp32'], default='bf16')
    parser.add_argument('--tokens', type=int, default=2048)
    parser.add_argument('--sequence', type=int, default=512)
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('families', nargs='*', metavar='FAMILY')
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f'{options.compute}, {options.tokens} tokens in sequences of {options.sequence}, '
          f'{options.threads} threads, torch {torch.__version__}, transformers '
          f'{transformers.__version__}; bar {BAR}')
    print('| family | M parameters | tokens/s, torch.compile | tokens/s, Shoal | ratio | rounds |')
    print('|---|---|---|---|---|---|')
    for family in options.families or FAMILIES:
        measure(family, options)


if __name__ == '__main__':
    main()
