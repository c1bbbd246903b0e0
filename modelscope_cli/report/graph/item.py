"""One thing in the picture of a model."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from modelscope_cli.records.run import Shape
from modelscope_cli.records.summary import LayerShape


@dataclass(eq=False, slots=True)
class Item:
    """A thing that is drawn: a call, an operation, blocks that were folded, an input or the output.

    Attributes:
        kind: `layer` (nothing is drawn inside it), `box`, `operation`, `fold`, `input`, `output`.
        name: in the box it is in: `conv1`. `full_name`: `layer1.0.conv1`.
        row: of a call; `rows`: of all calls that it stands for.
        number: in the edges of the flow.
        marks: what else there is to say of it, in words.
    """

    kind: str
    name: str
    full_name: str
    type: str = ""
    shapes: tuple[Shape, ...] = ()
    row: LayerShape | None = None
    rows: tuple[LayerShape, ...] = ()
    number: int = 0
    key: tuple[int, int, int] = (0, 0, 0)
    inside: list["Item"] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)
    marks: list[str] = field(default_factory=list)

    @property
    def stands_for(self) -> set[int]:
        """The numbers, in the edges of the flow, of everything that is drawn as this."""
        is_one = self.kind in ("operation", "input", "output")
        return {*self.numbers, self.number} if is_one else self.numbers

    def walk(self) -> Iterator["Item"]:
        """Give the thing itself and everything in it, in the order in which they are drawn."""
        waiting = [self]
        while waiting:
            item = waiting.pop()
            yield item
            waiting += reversed(item.inside)
