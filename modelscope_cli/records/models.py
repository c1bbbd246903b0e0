"""What `models` returns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from modelscope_cli.records.run import Shape, first_keys, to_plain
from modelscope_cli.records.shown import Shown


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One of torchvision's models, or of timm's, as published for its default weights.

    Attributes:
        family: of torchvision's as in its folders; of timm's, the module that defines it.
        params, macs: None for timm's models, whose library does not say. Multiply-adds are those of one forward at
            `input_shapes`; torchvision publishes them in units of 1e9.
        input_shapes: one per input; empty where any size will do.
        weights: every name `--weights` takes for this model.
        default_weights: None where there are no weights.
    """

    name: str
    family: str
    params: int | None
    macs: int | None
    input_shapes: tuple[Shape, ...]
    weights: tuple[str, ...]
    default_weights: str | None


@dataclass(frozen=True, slots=True)
class Catalogue(Shown):
    """What `models` returns: no model was loaded, so it has a header of its own."""

    versions: Mapping[str, str]
    argv: tuple[str, ...]
    models: tuple[ModelEntry, ...]

    @property
    def command(self) -> str:
        return "models"

    def to_dict(self) -> dict[str, Any]:
        return {**first_keys("models", self.versions, self.argv), "models": to_plain(self.models)}
