"""Run one program of the bench as a script: `modelscope watch tests/verdict/train.py dev plain_cnn`.

A third argument is added to the seed of the program.
"""

import sys

import torch
from programs.registry import load

half, name, *shift = sys.argv[1:]
program = next(one for one in load(half) if one.name == name)
torch.set_num_threads(1)
torch.manual_seed(program.seed + int(*shift or "0"))
program.train()
