"""Run one program as a script: `python train.py dev.healthy plain_cnn SEED`."""

import sys

import torch
from programs import find

module, name, seed = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(int(seed))
find(module, name)()
