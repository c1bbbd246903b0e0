"""Whether a model does the same each time it runs, and keeps nothing of what it did."""

from typing import Any

from torch import nn

from modelscope_cli.hooks.torch_private import version_of


class Holdings:
    """Everything the modules of a model hold on to at one moment, by identity, and how often buffers were
    written."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._held, self._versions = _held_by(model)

    def are_same(self) -> bool:
        """Tell whether the model still holds the same: no attribute set, no cache filled, no buffer written."""
        held, versions = _held_by(self._model)
        is_same = len(held) == len(self._held) and all(map(_is_one, held, self._held))
        return is_same and versions == self._versions


def _held_by(model: nn.Module) -> tuple[list[Any], list[int]]:
    held: list[Any] = []
    for module in model.modules():
        for value in module.__dict__.values():
            held.append(value)
            if isinstance(value, (dict, list, set)):
                held.extend(value.values() if isinstance(value, dict) else value)
    return held, [version_of(buffer) for buffer in model.buffers()]


def _is_one(one: Any, other: Any) -> bool:
    return one is other
