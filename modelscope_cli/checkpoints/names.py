"""What a pickle names, makes and refers to, as descriptions. Standard library."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Global:
    """The name of a function or class, `collections.OrderedDict`, and which part of it is the module."""

    name: str
    module: str = field(default="", compare=False)


@dataclass(eq=False, repr=False, slots=True)
class Opaque:
    """What `name` would have made of `args`, and what it would have been given afterwards.

    It is written as its name: what is in it may be nested without end.
    """

    name: str
    args: Any = ()
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Persistent:
    """A reference to something outside the pickle; torch keeps its storages so."""

    id: Any
