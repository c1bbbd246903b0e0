"""The peer of `modelscope weights FILE`: load it and print what is in it. Argument: the file."""

import sys

import torch

for name, tensor in torch.load(sys.argv[1], map_location="cpu").items():
    print(name, tuple(tensor.shape), tensor.dtype, tensor.numel(), tensor.nbytes)
