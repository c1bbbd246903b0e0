"""All images of a data set, some hundred bytes each, in columns."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from modelscope_cli.analysis.dataset.look import COARSE_BYTES, FINE_BYTES, Look

_WHOLE, _REAL = ("width", "height"), ("light", "contrast", "sharpness")
_BYTES = {"sha256": 32, "coarse": COARSE_BYTES, "fine": FINE_BYTES}


@dataclass(slots=True)
class ImageTable:
    """The looks of images in the order of the list, a column each; of a broken one only its kind holds.

    Attributes:
        kinds: why images cannot be decoded, by number; not of those that can.
    """

    width: Any = field(default_factory=lambda: array("I"))
    height: Any = field(default_factory=lambda: array("I"))
    light: Any = field(default_factory=lambda: array("f"))
    contrast: Any = field(default_factory=lambda: array("f"))
    sharpness: Any = field(default_factory=lambda: array("f"))
    sha256: bytearray = field(default_factory=bytearray)
    coarse: bytearray = field(default_factory=bytearray)
    fine: bytearray = field(default_factory=bytearray)
    kinds: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.width)

    def add(self, look: Look) -> None:
        """Take the next image of the list."""
        if look.kind:
            self.kinds[len(self)] = look.kind
        for name in (*_WHOLE, *_REAL):
            getattr(self, name).append(getattr(look, name))
        self.sha256 += look.sha256 or bytes(32)
        self.coarse += look.coarse
        self.fine += look.fine

    def good(self) -> Any:
        """Return the numbers of the images that can be decoded, int64."""
        return np.array([n for n in range(len(self)) if n not in self.kinds], dtype=np.int64)

    def rows(self, name: str) -> Any:
        """Return a column of bytes as `(images, bytes)` uint8."""
        return np.frombuffer(bytes(getattr(self, name)), dtype=np.uint8).reshape(-1, _BYTES[name])

    def figures(self) -> Iterator[tuple[str, Any]]:
        """Give the columns of numbers by name."""
        return ((name, getattr(self, name)) for name in (*_WHOLE, *_REAL))
