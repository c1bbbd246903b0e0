"""A model as a function of images that can be differentiated by them, or by anything on the way."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.hooks.session import HookSession, Intervention, Observer
from modelscope_cli.hooks.torch_private import without_checkpointing
from modelscope_cli.records.run import Arguments

Run = Callable[[Tensor], Any]
"""From images `(N, C, H, W)` to the model's output."""


@contextmanager
def opened(
    model: nn.Module,
    arrange: Callable[[Tensor], Arguments],
    interventions: Sequence[Intervention] = (),
    observers: Sequence[Observer] = (),
) -> Iterator[Run]:
    """Give the model as a function of images, in eval mode, whatever the caller has switched off; it is left as it
    was found.

    No parameter asks for a gradient while this is open, so that a graph begins where something else does.

    Args:
        arrange: makes the arguments of one forward of images.
        interventions: change every pass alike, and count the first.
    """
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        without_checkpointing(),
        HookSession(model, observers, with_gradients=True, interventions=interventions) as session,
    ):
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        is_again = itertools.chain([False], itertools.repeat(True))

        def run(images: Tensor) -> Any:
            repeats = next(is_again)
            for intervention in interventions:
                intervention.begin(is_again=repeats)
            return session.run(arrange(images))

        yield run
