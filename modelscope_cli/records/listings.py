"""What `models` and `report` return: lists that no model was run for."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from modelscope_cli.records.display import Row, column, words
from modelscope_cli.records.run import Listing, Shape


@dataclass(frozen=True, slots=True)
class ModelEntry(Row):
    """One of torchvision's models, or of timm's, as published for its default weights.

    Attributes:
        family: of torchvision's as in its folders; of timm's, the module that defines it.
        params, macs: None for timm's models, whose library does not say. Multiply-adds are those of one forward at
            `input_shapes`; torchvision publishes them in units of 1e9.
        input_shapes: one per input; empty where any size will do.
        weights: every name `--weights` takes for this model.
        default_weights: None where there are no weights.
    """

    name: Annotated[str, words("model", rank=0)]
    family: Annotated[str, words(rank=3)]
    params: Annotated[int | None, column(rank=0)]
    macs: int | None
    input_shapes: tuple[Shape, ...]
    weights: tuple[str, ...]
    default_weights: str | None


@dataclass(frozen=True, slots=True)
class Catalogue(Listing):
    """What `models` returns: no model was loaded, so it has a header of its own."""

    document: ClassVar[str] = "models"
    models: tuple[ModelEntry, ...]


@dataclass(frozen=True, slots=True)
class Page(Row):
    """A page that was written.

    Attributes:
        file: where it is. `bytes`: how long.
        command: whose result it shows.
        model: the name of the model.
        verdict: the result in one sentence, the heading of the page.
    """

    file: Annotated[str, words("page", rank=0)]
    bytes: Annotated[int, column("size")]
    command: Annotated[str, words(rank=2)]
    model: Annotated[str, words(rank=3)] = ""
    verdict: Annotated[str, words(rank=0, wraps=True)] = ""


@dataclass(frozen=True, slots=True)
class ReportRecord(Listing):
    """What `report` returns: the page that was written."""

    document: ClassVar[str] = "report"
    pages: tuple[Page, ...]
