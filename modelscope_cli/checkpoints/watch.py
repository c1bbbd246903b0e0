"""Who is told, step by step, what a pickle would do. Standard library."""

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from modelscope_cli.checkpoints.pickle_machine import Global


class Watch(Protocol):
    """Is told what Python would do, at the moment it would; `position` is that of the operation in the file."""

    def named(self, found: "Global", position: int) -> None:
        """A function, class or module is imported."""

    def called(self, how: str, callee: Any, args: Any, position: int) -> None:
        """`callee` is called with `args`; with BUILD it is given them as its state."""

    def altered(self, how: str, target: Any, items: list[Any], position: int) -> None:
        """Items are put into a target."""

    def hashed(self, keys: list[Any], position: int) -> None:
        """Keys of a dict or items of a set are hashed, and compared."""

    def referred(self, id: Any, position: int) -> None:
        """Something outside the pickle is asked for."""

    def strange(self, what: str, position: int) -> None:
        """Something happens that no writer of pickles does."""


class Blind:
    """Takes no notice."""

    def named(self, *_: Any) -> None: ...

    called = altered = hashed = referred = strange = named
