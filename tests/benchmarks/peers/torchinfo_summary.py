"""The peer of `modelscope summary NAME`: torchinfo, as its documentation shows it. Arguments: name, side."""

import sys

import torchinfo
import torchvision

name, side = sys.argv[1], int(sys.argv[2])
torchinfo.summary(
    torchvision.models.get_model(name),
    input_size=(1, 3, side, side),
    col_names=("kernel_size", "input_size", "output_size", "num_params", "params_percent", "mult_adds"),
    depth=100,  # every layer, as modelscope does
    device="cpu",
    verbose=1,
)
