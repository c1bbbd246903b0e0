"""The trial that starts a model from the weights that torch's layers draw by themselves."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from modelscope_cli.hooks.random_states import kept_random_states
from modelscope_cli.watching.trials.change import Act
from modelscope_cli.watching.trials.roots import Models


@contextmanager
def default_initialisation(act: Act) -> Iterator[None]:
    """Draw the weights of every layer of torch anew before the first pass with gradients."""

    def draw(root: nn.Module) -> None:
        with kept_random_states(), torch.no_grad():
            for module in root.modules():
                draws = callable(getattr(module, "reset_parameters", None))
                if draws and type(module).__module__.startswith("torch.nn"):
                    reset: Any = module.reset_parameters
                    reset()
                    act()

    with Models(draw).installed():
        yield
