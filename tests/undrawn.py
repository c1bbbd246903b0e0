"""A figure on which nothing is drawn, for tests that look at something else: most of a short command is drawing."""

from functools import cache
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

DRAWN = Figure


class Blank:
    """Stands for axes and for all that is put on them: whatever is asked of it is blank again."""

    def __getattr__(self, name: str) -> "Blank":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def _blank(self, *_: Any, **__: Any) -> "Blank":
        return self

    def _pair(self) -> Any:
        return iter((self, self))  # the ends of an axis, handles and labels

    def _no(self, _: Any) -> bool:
        return False

    def plot(self, *_: Any, **__: Any) -> list["Blank"]:
        return [self]

    def __len__(self) -> int:
        return 1

    __call__ = __getitem__ = __setitem__ = _blank
    __lt__ = __gt__ = __le__ = __ge__ = _no
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = (
        _blank
    )
    __iter__ = _pair

    def __float__(self) -> float:
        return 1.0


class Undrawn(Figure):
    """A figure of the size asked for that takes everything, and leaves an empty one in its file."""

    def add_axes(self, *_: Any, **__: Any) -> Any:
        return Blank()

    def subplots(self, nrows: int = 1, ncols: int = 1, *, squeeze: bool = True, **_: Any) -> Any:
        blanks = np.empty(nrows * ncols, dtype=object)
        for place in range(blanks.size):
            blanks[place] = Blank()
        if squeeze:
            return blanks[0] if blanks.size == 1 else blanks.reshape(nrows, ncols).squeeze()
        return blanks.reshape(nrows, ncols)

    def suptitle(self, *_: Any, **__: Any) -> Any:
        return Blank()

    text = legend = colorbar = add_artist = suptitle

    def savefig(self, *where: Any, **how: Any) -> None:
        _empty().savefig(*where, **how)


@cache
def _empty() -> Figure:
    empty = DRAWN(figsize=(0.1, 0.1))
    FigureCanvasAgg(empty)
    return empty
