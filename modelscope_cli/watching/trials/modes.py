"""Trials that change the mode of a model, dropout, the scaling of the loss and the initial weights."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from modelscope_cli.hooks.random_states import kept_random_states
from modelscope_cli.watching.error_isolation import after, replaced
from modelscope_cli.watching.trials.change import Act
from modelscope_cli.watching.trials.roots import Arguments, Models, entered

DROPOUTS = "dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout"


def usual_modes(act: Act) -> AbstractContextManager[None]:
    """Run models in training mode with gradients, and in evaluation mode without."""

    def enter(root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        if root.training != torch.is_grad_enabled():
            root.train(torch.is_grad_enabled())
            act()
        return args, kwargs

    return entered(enter)


def no_dropout(act: Act) -> AbstractContextManager[None]:
    """Let torch's functions drop nothing; those of attention too."""
    attention = functional.scaled_dot_product_attention

    def kept(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        act()
        return input

    def attended(*args: Any, **kwargs: Any) -> Tensor:
        args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
        return attention(*args, **{**kwargs, "dropout_p": 0.0} if len(args) < 5 else kwargs)

    functions = [(functional, name, kept) for name in DROPOUTS]
    return replaced(*functions, (functional, "scaled_dot_product_attention", attended))


def no_scaler(act: Act) -> AbstractContextManager[None]:
    """Scale no loss."""

    def disable(new: Any) -> None:
        if new._enabled:
            new._enabled = False
            act()

    return replaced(after(torch.amp.GradScaler, disable))


def default_initialisation(act: Act) -> AbstractContextManager[None]:
    """Draw the weights of every layer of torch anew before the first pass with gradients."""

    def draw(root: nn.Module) -> None:
        with kept_random_states(), torch.no_grad():
            for module in root.modules():
                draws = callable(getattr(module, "reset_parameters", None))
                if draws and type(module).__module__.startswith("torch.nn"):
                    reset: Any = module.reset_parameters
                    reset()
                    act()

    return Models(draw).installed()
