"""A loaded model. Imports nothing heavy, as public functions take one and are imported before torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelscope_cli.library_types import Device, DType, Module
from modelscope_cli.records.run import ModelInfo, Notice


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
        module: in eval mode, on `device`, its floating point values in `dtype`.
        info: model and weights, for the record.
        family: as in `Architecture`: `classification`, ..., `custom`.
        transforms: torchvision's preset for the weights, else for the default weights, or the module's own
            configuration; None if unknown.
        categories: the class labels in order; None if unknown.
        notes: what each `auto` became and what was done to fit a checkpoint, one line each.
        warnings: reasons to doubt the results.
        image_size: the side of the images it was trained on, in pixels; None if its checkpoint does not say so.
        weights_file: the file or folder that the weights are from, which `check` scans; None without one.
        output_kind: what its output is read as, `--output-kind`; `auto` for a guess.
    """

    module: Module
    info: ModelInfo
    device: Device
    dtype: DType
    family: str
    transforms: Any | None
    categories: tuple[str, ...] | None
    notes: tuple[str, ...] = ()
    warnings: tuple[Notice, ...] = ()
    output_kind: str = "auto"
    image_size: int | None = None
    weights_file: Path | None = None

    @property
    def is_feedforward(self) -> bool:
        """Whether a layer with parameters of its own runs at most once in a forward.

        True for torchvision's classifiers, segmentation and video models, which reuse only activations.
        """
        families = ("classification", "segmentation", "video", "quantization")
        return self.info.source == "zoo" and self.family in families
