"""The adapter from any model output to a `ModelOutput`, used by every command.

The main tensor and its kind are derived from the family and the configuration of the model, then from names, then
from shapes; see `output_kinds.main_leaf`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from modelscope_cli.analysis.outputs.boxes import Boxes, boxes_of, boxes_of_queries, boxes_of_yolo
from modelscope_cli.analysis.outputs.classes import ClassScores, PixelScores
from modelscope_cli.analysis.outputs.model_output import ModelOutput
from modelscope_cli.analysis.outputs.output_kinds import (
    AUXILIARY,
    Leaves,
    OutputPart,
    is_features,
    last_name,
    leaves_of,
    main_leaf,
)
from modelscope_cli.analysis.outputs.vectors import Vectors
from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.inputs.model_config import ConfiguredOutputs, configured_outputs, yolo_of
from modelscope_cli.models.load import LoadedModel
from modelscope_cli.records.naming import dtype_name, with_article

_IN_A_BOX = {"boxes", "scores", "labels"}


@dataclass(frozen=True, slots=True)
class OutputReader:
    """What is known of a model's output before it runs.

    Attributes:
        family: as in `LoadedModel`.
        categories: the labels of the classes; None if unknown.
        module: its configuration may state the number of classes, and whether it is multi-label.
    """

    family: str
    categories: Sequence[str] | None
    module: nn.Module
    _stated: ConfiguredOutputs = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_stated", configured_outputs(self.module))  # once, and not for every pass

    @classmethod
    def of(cls, loaded: LoadedModel) -> "OutputReader":
        """Return the reader of a loaded model's outputs."""
        return cls(loaded.family, loaded.categories, loaded.module)

    def read(self, output: Any, args: Any, n_images: int | None = None) -> ModelOutput:
        """Interpret an output.

        Args:
            args: the inputs of the model; boxes are in pixels of its image.
            n_images: number of input images, if known.
        """
        images = _boxes_in(output)
        if images is not None:
            boxes = boxes_of(images)
            self._check_rows(len(boxes), n_images, "boxes")
            return ModelOutput((("", boxes),), leaves_of(output))
        leaves = leaves_of(output)
        if not leaves:
            raise CannotRunError(
                f"the model returns {what_is_in(output)}, which cannot be compared or predicted",
                "modelscope summary ...   shows its output",
            )
        if (yolo_boxes := self._yolo(leaves, args)) is not None:
            return ModelOutput(((leaves[0][0], yolo_boxes),), leaves)
        # Each estimate of optical flow refines the one before.
        path, main = main_leaf(leaves) if self.family != "optical_flow" else leaves[-1]
        boxes_by_query = self._queries(path, main, leaves, args)
        if boxes_by_query is not None:
            return ModelOutput(((path, boxes_by_query),), leaves)
        part = self._one(path, main, args)
        self._check_rows(len(part), n_images, "x".join(map(str, main.shape)))
        return ModelOutput(((path, part), *self._other_heads(output, path, part, leaves, args)), leaves)

    def kind_of(self, path: str, tensor: Tensor, args: Any) -> str:
        """Return what one tensor of an output is: `classes`, `pixels` or `vectors`."""
        return self._one(path, tensor, args).kind

    def _one(self, path: str, tensor: Tensor, args: Any) -> OutputPart:
        stated = self._stated
        if tensor.ndim == 2 and tensor.shape[1] > 1 and not is_features(path) and not stated.has_no_classes:
            return ClassScores(tensor, stated.has_several_labels)
        if tensor.ndim == 4 and tensor.shape[1] > 1 and self._is_per_pixel(path, tensor, args):
            return PixelScores(tensor)
        return Vectors(tensor if tensor.ndim > 1 else tensor.reshape(-1, 1))

    def _is_per_pixel(self, path: str, tensor: Tensor, args: Any) -> bool:
        """Whether a tensor holds scores of pixels, not feature maps, optical flow or an image."""
        if self.family == "segmentation" or (last_name(path) in ("logits", "out") and path):
            return True
        image = _image_in(args)
        has_size_of_image = image is not None and tensor.shape[-2:] == image.shape[-2:]
        is_image = image is not None and tensor.shape[1] == image.shape[-3]
        return self.family == "custom" and has_size_of_image and not is_image

    def _yolo(self, leaves: Leaves, args: Any) -> Boxes | None:
        """Return the boxes of a detector of ultralytics; those of rotated boxes are not read."""
        kind, image, found = type(self.module).__name__, _image_in(args), leaves[0][1]
        if yolo_of(self.module) is None or image is None or found.ndim != 3:
            return None
        if kind.removesuffix("Model") not in ("Detection", "Segmentation", "Pose", "RTDETRDetection"):
            return None
        height, width = image.shape[-2:]
        yolo: Any = self.module
        return boxes_of_yolo(
            found,
            len(yolo.names),
            (height, width),
            has_queries=kind.startswith("RTDETR"),
            is_final=bool(getattr(yolo.model[-1], "end2end", False)),
        )

    def _queries(self, path: str, logits: Tensor, leaves: Leaves, args: Any) -> Boxes | None:
        """Return the boxes of DETR-like models: `logits` with `pred_boxes`."""
        centres = next((t for other, t in leaves if last_name(other) == "pred_boxes"), None)
        image = _image_in(args)
        is_pair = centres is not None and logits.ndim == 3 and centres.shape[:2] == logits.shape[:2]
        if (
            centres is None
            or not is_pair
            or image is None
            or last_name(path) not in ("logits", "pred_logits")
        ):
            return None
        n_classes = self._stated.n_classes
        height, width = image.shape[-2:]
        return boxes_of_queries(logits, centres, (height, width), has_nothing=n_classes != logits.shape[2])

    def _other_heads(
        self, output: Any, main: str, part: OutputPart, leaves: Leaves, args: Any
    ) -> list[tuple[str, OutputPart]]:
        """Return the other heads with scores that have a name; entries of a tuple have none."""
        if part.kind not in ("classes", "pixels") or not main or main.rpartition(".")[2].isdigit():
            return []
        others = [
            (path, self._one(path, tensor, args))
            for path, tensor in leaves
            if path != main and tensor.shape[:1] == (len(part),) and last_name(path) not in AUXILIARY
        ]
        return [
            (path, other) for path, other in others if other.kind == part.kind and not path[-1:].isdigit()
        ]

    def _check_rows(self, n_rows: int, n_images: int | None, shape: str) -> None:
        if n_images not in (None, n_rows):
            raise CannotRunError(
                f"the model's output is {shape}, and it was given {n_images} images: the rows cannot be "
                "matched to images",
                "--batch 1   gives it one image at a time"
                if n_images != 1
                else "modelscope summary ...   shows its outputs",
            )


def _boxes_in(output: Any) -> list[Mapping[str, Tensor]] | None:
    """Return the boxes per image of torchvision's detection models; None for anything else."""
    images = [output] if isinstance(output, Mapping) else output
    is_detection = (
        isinstance(images, list | tuple)
        and len(images) > 0
        and all(isinstance(image, Mapping) and image.keys() >= _IN_A_BOX for image in images)
    )
    return list(images) if is_detection else None


def _image_in(args: Any) -> Tensor | None:
    """Return the first tensor in the arguments that can be an image, or a batch of them."""
    return next((t for _, t in tensors_in(args) if t.is_floating_point() and t.ndim >= 3), None)


def what_is_in(output: Any) -> str:
    """Describe an output by the dtypes of its tensors."""
    kinds = sorted({dtype_name(tensor.dtype) for _, tensor in tensors_in(output)})
    without = f"{with_article(type(output).__name__)} without tensors"
    return f"tensors of {', '.join(kinds)}" if kinds else without
