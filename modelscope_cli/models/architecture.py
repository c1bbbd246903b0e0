"""A model before it has values: where it comes from and how to build it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from modelscope_cli.models.inside import model_inside
from modelscope_cli.models.on_meta import on_meta


@dataclass(frozen=True, slots=True)
class Architecture:
    """What torchvision names, models of hubs and imported code have in common.

    Attributes:
        source: `zoo`, `timm`, `hf` or `import`, as in `records.ModelInfo`.
        name: the torchvision name, or what was typed.
        family: `classification`, `segmentation`, `detection`, `video`, `optical_flow`, `quantization`;
            `custom` for all others.
        build: make the module, seeded, in train mode, with a number of classes or (None) its own.
        takes_num_classes: whether `build` accepts a number of classes.
        is_instance: `build` returns a module that was there already.
        is_factory: `build` calls a function, or takes a module, that may have loaded weights by itself.
        defaults: of the arguments that it takes, as far as they are known; None where one follows from others.
    """

    source: str
    name: str
    family: str
    build: Callable[[int | None], nn.Module]
    takes_num_classes: bool
    is_instance: bool = False
    is_factory: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def on_meta(self) -> "Architecture":
        """Return the same architecture with a `build` that makes no values, on the meta device."""

        def build(num_classes: int | None) -> nn.Module:
            with on_meta():
                module = self.build(num_classes)
            model_inside(module, self.name).to("meta")  # also what constructors had to read
            return module

        return replace(self, build=build)
