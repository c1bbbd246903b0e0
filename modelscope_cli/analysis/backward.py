"""What goes wrong in a backward pass, as an error a person can act on."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from modelscope_cli.errors import CannotRunError, ModelscopeError


@contextmanager
def backward_pass() -> Iterator[None]:
    """Run a backward pass inside.

    Raises:
        CannotRunError: it raised, or memory ran out (exit 4).
    """
    try:
        yield
    except ModelscopeError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or "no message"
        hint = "modelscope stats   needs no gradients"
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in reason:
            reason, hint = "out of memory", "--batch 1, a smaller --size, or --device cpu"
        raise CannotRunError(f"backward raised {type(error).__name__}: {reason}", hint) from error
