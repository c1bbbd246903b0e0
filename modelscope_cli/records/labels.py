"""The name of one call of a layer, as people read it and layer patterns understand it. Standard library only."""

from typing import Protocol


class Called(Protocol):
    """A row about one call of a layer."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def call(self) -> int: ...


def call_label(name: str, call: int) -> str:
    """Return `relu`, and `relu#1` for its second call."""
    return f"{name}#{call}" if call else name


def label_of(row: Called) -> str:
    """Return the label of the call a row is about; the type stands for the model itself, which has no name."""
    return call_label(row.name or row.type, row.call)
