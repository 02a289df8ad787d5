#!/usr/bin/env python3
"""Makes tests/references/dpo.json: losses of pairs and their derivatives, and runs of TRL's
trainer, for worker/loss/preference_test.cc and cli/train_preference_test.cc.

  tests/references/make_dpo.py           writes it (requirements.txt says what it needs)
  tests/references/make_dpo.py --check   says whether it is as it would write it

`losses`: the formulas of docs/preference.md in torch, in float64, on the same log-probabilities;
derivatives by autograd. They are those of TRL 1.16 (dpo_trainer.py, cpo_trainer.py,
orpo_trainer.py) but for two: TRL takes orpo's likelihood over prompt and reply, here it is of the
reply, and TRL's `sft` is a mean over the tokens of a batch, here it is one over those of each pair.

`runs`: the losses and rewards of some steps of TRL's DPOTrainer (sigmoid, ipo) on the CPU in
float32, over pairs of token ids in their order, from a model whose weights follow from their names
(value_of of make_families.py).
"""

import argparse
import json
import pathlib
import sys
import tempfile

import datasets
import numpy
import tokenizers
import torch
import torch.nn.functional as F
import transformers
import trl

from make_families import value_of

FILE = pathlib.Path(__file__).parent / 'dpo.json'
DEFAULTS = dict(beta=0.1, label_smoothing=0.1, gamma=0.5, sft_weight=0.0)
DEFAULTS['lambda'] = 0.1


def log1mexp(x):
    return torch.log(-torch.expm1(x))


def loss_of(options, chosen, rejected, ref_chosen, ref_rejected, n_chosen, n_rejected):
    kind, beta = options['loss'], options['beta']
    delta = (chosen - ref_chosen) - (rejected - ref_rejected)
    if kind == 'sigmoid':
        loss = -F.logsigmoid(beta * delta)
    elif kind == 'hinge':
        loss = torch.relu(1 - beta * delta)
    elif kind == 'ipo':
        mean = (chosen - ref_chosen) / n_chosen - (rejected - ref_rejected) / n_rejected
        loss = (mean - 1 / (2 * beta)) ** 2
    elif kind == 'robust':
        e = options['label_smoothing']
        clean = -(1 - e) * F.logsigmoid(beta * delta)
        flipped = -e * F.logsigmoid(-beta * delta)
        loss = (clean - flipped) / (1 - 2 * e)
    elif kind == 'simpo':
        logits = chosen / n_chosen - rejected / n_rejected - options['gamma'] / beta
        loss = -F.logsigmoid(beta * logits)
    elif kind == 'orpo':
        c, r = chosen / n_chosen, rejected / n_rejected
        odds = (c - r) - (log1mexp(c) - log1mexp(r))
        loss = -c - options['lambda'] * F.logsigmoid(odds)
    return loss - options['sft_weight'] * chosen / n_chosen


def losses():
    sums = [  # chosen, rejected, their references, their tokens
        (-12.5, -20.25, -13.0, -19.0, 7, 9),
        (-20.0, -12.0, -13.0, -19.0, 11, 4),
        (-300.0, -10.0, -40.0, -30.0, 64, 3),
        (-10.0, -300.0, -30.0, -40.0, 3, 64),
        (-0.25, -0.5, -0.25, -0.5, 1, 1),
        (-1e-3, -2000.0, -5.0, -1000.0, 5, 1000),
    ]
    jobs = [dict(loss='sigmoid'), dict(loss='sigmoid', beta=0.5, sft_weight=0.3),
            dict(loss='hinge'), dict(loss='hinge', beta=2.0), dict(loss='ipo'),
            dict(loss='ipo', beta=1.0), dict(loss='robust'),
            dict(loss='robust', label_smoothing=0.3), dict(loss='simpo', beta=2.0),
            dict(loss='simpo', gamma=1.5), dict(loss='orpo'), {'loss': 'orpo', 'lambda': 1.0},
            dict(loss='orpo', sft_weight=0.5)]
    cases = []
    for job in jobs:
        options = {**DEFAULTS, **job}
        for case in sums:
            chosen, rejected = (torch.tensor(x, dtype=torch.float64, requires_grad=True)
                                for x in case[:2])
            rest = [torch.tensor(x, dtype=torch.float64) for x in case[2:4]]
            if options['loss'] in ('simpo', 'orpo'):
                rest = [torch.zeros((), dtype=torch.float64)] * 2
            loss = loss_of(options, chosen, rejected, *rest, *case[4:])
            d_chosen, d_rejected = torch.autograd.grad(loss, (chosen, rejected),
                                                       allow_unused=True)
            cases.append(dict(options, sums=case, loss_value=loss.item(),
                              d_chosen=d_chosen.item(), d_rejected=d_rejected.item()))
    return cases


CONFIG = dict(vocab_size=97, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
              bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
              architectures=['LlamaForCausalLM'], dtype='float32')
PAIRS, STEPS, MINIBATCH, LEARNING_RATE = 24, 20, 4, 3e-4


def ids_of(name, count):
    """From 3 on: 1 begins a sequence, and 2 ends it."""
    return [3 + int(abs(x) * 1e6) % 94 for x in value_of(name, count)]


def pairs():
    made = []
    for i in range(PAIRS):
        prompt, chosen, rejected = 1 + i % 5, 1 + i * 7 % 11, 1 + i * 5 % 13
        made.append(dict(prompt=[1] + ids_of(f'prompt {i}', prompt),
                         chosen=ids_of(f'chosen {i}', chosen) + [2],
                         rejected=ids_of(f'rejected {i}', rejected) + [2]))
    return made


def model_of():
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            mean = 1 if 'norm' in name else 0
            values = value_of(name, weight.numel()).reshape(weight.shape)
            weight.copy_(torch.from_numpy((mean + 0.5 * values).astype(numpy.float32)))
    return model


WORDS = ['<pad>', '<s>', '</s>'] + [f'w{i}' for i in range(3, CONFIG['vocab_size'])]


def tokenizer_of():
    words = {word: i for i, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token='<pad>'))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token='<s>',
                                                eos_token='</s>', pad_token='<pad>')


class InOrder(trl.DPOTrainer):
    """Takes samples as they come, and keeps each step's loss as it is."""

    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        self.__dict__.setdefault('kept', []).append(loss.item())
        return loss


def run_of(loss, beta, folder):
    text = [{key: ('' if key == 'prompt' else ' ') + ' '.join(WORDS[i] for i in ids)
             for key, ids in pair.items()} for pair in pairs()]
    torch.manual_seed(0)
    config = trl.DPOConfig(
        output_dir=folder, loss_type=[loss], beta=beta, max_steps=STEPS, max_length=None,
        per_device_train_batch_size=MINIBATCH, learning_rate=LEARNING_RATE,
        lr_scheduler_type='constant', weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.95,
        adam_epsilon=1e-8, max_grad_norm=1.0, bf16=False, fp16=False, use_cpu=True,
        gradient_checkpointing=False, logging_steps=1, save_strategy='no', report_to='none',
        disable_tqdm=True, dataloader_drop_last=True, optim='adamw_torch')
    trainer = InOrder(model=model_of(), ref_model=model_of(), args=config,
                      train_dataset=datasets.Dataset.from_list(text),
                      processing_class=tokenizer_of())
    trainer.train()
    assert [row['chosen_ids'] for row in trainer.train_dataset] == [p['chosen'] for p in pairs()]
    logs = [line for line in trainer.state.log_history if 'rewards/chosen' in line]
    names = ['rewards/chosen', 'rewards/rejected', 'rewards/accuracies', 'logps/chosen',
             'logps/rejected']
    assert len(trainer.kept) == STEPS == len(logs)
    return dict(loss=loss, beta=beta, losses=trainer.kept,
                **{name: [line[name] for line in logs] for name in names})


def runs():
    with tempfile.TemporaryDirectory() as folder:
        made = [run_of('sigmoid', 0.1, folder), run_of('ipo', 0.5, folder)]
    return dict(config=CONFIG, tensors={name: list(w.shape)
                                        for name, w in model_of().named_parameters()},
                minibatch=MINIBATCH, learning_rate=LEARNING_RATE, pairs=pairs(), runs=made)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--check', action='store_true')
    check = parser.parse_args().check
    made = dict(versions=dict(torch=torch.__version__.split('+')[0], trl=trl.__version__,
                              transformers=transformers.__version__),
                losses=losses(), end_to_end=runs())
    text = json.dumps(made, indent=None, separators=(',', ':')).replace('},{', '},\n{') + '\n'
    if not check:
        FILE.write_text(text)
    elif FILE.read_text() != text:
        sys.exit(f'{FILE} is not what this would write')


if __name__ == '__main__':
    main()
