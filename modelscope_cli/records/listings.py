"""What `models` and `report` return: lists that no model was run for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from modelscope_cli.records.columns import column, words
from modelscope_cli.records.display import Row, Shown
from modelscope_cli.records.run import Shape, first_keys, to_plain


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
class Catalogue(Shown):
    """What `models` returns: no model was loaded, so it has a header of its own."""

    document: ClassVar[str] = "models"
    versions: Mapping[str, str]
    argv: tuple[str, ...]
    models: tuple[ModelEntry, ...]

    @property
    def command(self) -> str:
        return "models"

    def to_dict(self) -> dict[str, Any]:
        return {**first_keys("models", self.versions, self.argv), "models": to_plain(self.models)}


@dataclass(frozen=True, slots=True)
class Page(Row):
    """A page that was written, or that an index leads to.

    Attributes:
        file: where it is. `bytes`: how long.
        command: whose result it shows; `comparison` of two, `index` of a folder.
        model: the name of the model; empty for an index.
        verdict: the result in one sentence, the heading of the page; empty for a comparison.
    """

    file: Annotated[str, words("page", rank=0)]
    bytes: Annotated[int, column("size")]
    command: Annotated[str, words(rank=2)]
    model: Annotated[str, words(rank=3)] = ""
    verdict: Annotated[str, words(rank=0, wraps=True)] = ""


@dataclass(frozen=True, slots=True)
class ReportRecord(Shown):
    """What `report` returns: the requested page first; an index is followed by its pages.

    Attributes:
        left_out: errors of the results in a folder that are missing in its index.
    """

    document: ClassVar[str] = "report"
    versions: Mapping[str, str]
    argv: tuple[str, ...]
    pages: tuple[Page, ...]
    left_out: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        return "report"

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, numbers and strings under the keys of the JSON contract."""
        head = first_keys("report", self.versions, self.argv)
        return {**head, "pages": to_plain(self.pages), "left_out": list(self.left_out)}
