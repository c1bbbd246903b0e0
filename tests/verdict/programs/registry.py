"""Every program of the bench by its name: which half it belongs to, what is wrong with it, and how to run it."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from programs.kinds import KINDS, Kind
from programs.scores import Score

MODULES = ("healthy", "objectives", "recipes", "bookkeeping", "wiring", "numbers", "layers", "ranks")
HALVES = ("dev", "final")


@dataclass(frozen=True, slots=True)
class Program:
    """A training as people write it.

    Attributes:
        kind: a key of `KINDS`, which says what the right answer is.
        train: runs it from the state of torch's generator on, and returns how good the model has become.
        ranks: processes that train together; those of more than one are started by torchrun.
    """

    name: str
    kind: str
    half: str
    train: Callable[[], Score]
    ranks: int

    @property
    def label(self) -> Kind:
        return KINDS[self.kind]

    @property
    def seed(self) -> int:
        """Every program has data and weights of its own."""
        return zlib.crc32(f"{self.half} {self.name}".encode()) % 10_000


PROGRAMS: dict[str, Program] = {}


def program(kind: str, ranks: int = 1) -> Callable[[Callable[[], Score]], Callable[[], Score]]:
    """Enter the function below under its own name, in the half whose folder its module lies in."""

    def enter(train: Callable[[], Score]) -> Callable[[], Score]:
        name, half = train.__name__, train.__module__.split(".")[1]
        assert kind in KINDS, kind
        assert name not in PROGRAMS, name
        PROGRAMS[name] = Program(name, kind, half, train, ranks)
        return train

    return enter


def load(half: str | None = None) -> list[Program]:
    """Return the programs of one half, or of both; the modules of the other half are not even imported."""
    for one in HALVES if half is None else (half,):
        for module in MODULES:
            import_module(f"programs.{one}.{module}")
    return [found for found in PROGRAMS.values() if half in (None, found.half)]
