#!/usr/bin/env python3
"""Makes tests/references/lora/nf4.json: matrices in NF4 by bitsandbytes, without its double
quantisation, with which core/base/nf4_test.cc compares Shoal's bits.

  tests/references/make_nf4.py           writes it (requirements.txt says what it needs)
  tests/references/make_nf4.py --check   says whether it is as it would write it

A matrix's elements follow from their place (value_of), so that C++ makes the same: a float32 is
made of integers alone. bitsandbytes divides by the scale where a matrix's last block is short and
multiplies by its inverse elsewhere, as its kernels for GPUs do everywhere; here both agree.
"""

import argparse
import pathlib
import sys

import bitsandbytes.functional as bnb
import numpy
import torch

import make_families as families

FILE = pathlib.Path(__file__).parent / 'lora' / 'nf4.json'
SHAPES = [(4, 64), (3, 48), (5, 26), (6, 192)]


def value_of(place):
    bits = (place * 2654435761) % 2**32
    return numpy.float32((bits >> 8) - 2**23) * numpy.float32(2.0 ** (place // 64 % 5 - 23))


def matrix_of(shape):
    count = shape[0] * shape[1]
    values = numpy.array([value_of(place) for place in range(count)], dtype=numpy.float32)
    if shape == (4, 64):
        values[64:128] = 0  # a block of zeros
    return torch.from_numpy(values).reshape(shape)


def hexadecimal(values):
    return [f'{bits:08x}' for bits in values.reshape(-1).view(numpy.uint32).tolist()]


def case_of(shape):
    matrix = matrix_of(shape)
    codes, state = bnb.quantize_4bit(matrix, blocksize=64, quant_type='nf4',
                                     compress_statistics=False)
    narrow = bnb.dequantize_4bit(codes, absmax=state.absmax, blocksize=64, quant_type='nf4',
                                 quant_state=bnb.QuantState(
                                     absmax=state.absmax, shape=state.shape, code=state.code,
                                     blocksize=64, quant_type='nf4', dtype=torch.bfloat16))
    return {
        'shape': list(shape),
        'codes': bytes(codes.reshape(-1).tolist()).hex(),
        'scales': hexadecimal(state.absmax.numpy()),
        'values': hexadecimal(bnb.dequantize_4bit(codes, state).numpy()),
        'bfloat16': [f'{bits & 0xffff:04x}'
                     for bits in narrow.reshape(-1).view(torch.int16).tolist()],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--check', action='store_true')
    golden = [case_of(shape) for shape in SHAPES]
    sys.exit(families.settle(FILE, golden, parser.parse_args().check))


if __name__ == '__main__':
    main()
