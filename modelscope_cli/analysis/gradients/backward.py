"""The backward pass itself, its failures told in one line."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from modelscope_cli.errors import (
    LESS_MEMORY,
    OUT_OF_MEMORY,
    CannotRunError,
    ModelscopeError,
    is_out_of_memory,
)
from modelscope_cli.plain_text import in_one_line


@contextmanager
def backward_pass() -> Iterator[None]:
    """Differentiate inside.

    Raises:
        CannotRunError: an operation of the model has no derivative, or memory ran out (exit 4).
    """
    try:
        with warnings.catch_warnings():
            # Of the first layer, as a picture takes no gradient; what is asked for arrives all the same.
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            yield
    except ModelscopeError:
        raise
    except Exception as error:
        reason = in_one_line(error, 300) or "no message"
        hint = "modelscope stats ...   needs no gradients"
        if is_out_of_memory(error):
            reason, hint = OUT_OF_MEMORY, LESS_MEMORY
        elif "modified by an inplace operation" in reason:
            hint = (
                "return a new tensor from the function of --hook instead of writing to the one it was given"
            )
        raise CannotRunError(f"backward raised {type(error).__name__}: {reason}", hint) from error


def run_backward(loss: Tensor, *, retain_graph: bool = False) -> None:
    """Differentiate `loss` into the `grad` of every parameter that is trained; raises as `backward_pass`."""
    with backward_pass():
        loss.backward(retain_graph=retain_graph)
