"""Files of weights among what is typed: told by their names, and by the names of what is in them."""

import os
from pathlib import Path

from modelscope_cli.checkpoints.reading import is_checkpoint_name, read_contents
from modelscope_cli.errors import ModelscopeError

_PARTS = ("weight", "bias", "running_mean", "running_var")


def is_checkpoint_file(typed: str) -> bool:
    """Tell a file that has the name of a checkpoint."""
    return is_checkpoint_name(typed) and os.path.isfile(typed)


def is_weights_file(typed: str) -> bool:
    """Tell the weights of a model from tensors to give to one, which may have the same suffix."""
    if not is_checkpoint_file(typed):
        return False
    try:
        names = [tensor.name for tensor in read_contents(Path(typed)).tensors]
    except ModelscopeError:
        return False
    return any(name.rpartition(".")[2] in _PARTS for name in names)
