#!/usr/bin/env python3
"""Says whether an adapter that Shoal wrote is in PEFT what it is in Shoal.

  tests/references/load_lora.py MODEL ADAPTER MERGED

MODEL is the folder that was trained from, ADAPTER what the job left, MERGED what `shoal checkpoint
export --merge` made of its checkpoint. Logits of random tokens must agree within 1e-5 of the
largest one; requirements.txt says what it needs.
"""

import argparse
import sys

import peft
import torch
import transformers


def logits_of(model, tokens):
    with torch.no_grad():
        return model(tokens).logits.double()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ('model', 'adapter', 'merged'):
        parser.add_argument(name)
    options = parser.parse_args()

    def load(folder):
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    base = load(options.model)
    tokens = torch.randint(0, base.config.vocab_size, (2, 40),
                           generator=torch.Generator().manual_seed(1))
    before = logits_of(base, tokens)
    adapted = logits_of(peft.PeftModel.from_pretrained(base, options.adapter), tokens)
    merged = logits_of(load(options.merged), tokens)
    largest = adapted.abs().max().item()
    moved = (adapted - before).abs().max().item() / largest
    off = (merged - adapted).abs().max().item() / largest
    print(f'the adapter moves logits by {moved:.1e} of the largest; merged is {off:.1e} from it')
    sys.exit(off > 1e-5 or moved < 100 * off)


if __name__ == '__main__':
    main()
