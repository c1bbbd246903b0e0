"""The adapter from any model output to a `ModelOutput`, used by every command.

The main tensor and its kind are those that `--output-kind KIND:OUTPUT` names; else they are derived from the family
and the configuration of the model, then from names, then from shapes; see `output_kinds.main_leaf`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.outputs.boxes import Boxes, boxes_of, boxes_of_queries, boxes_of_yolo
from modelscope_cli.analysis.outputs.classes import ClassScores, PixelScores, logits_of, pixel_scores
from modelscope_cli.analysis.outputs.model_output import (
    LIKE_THE_IMAGE,
    MAY_BE_LABELS,
    MAY_BE_NUMBERS,
    ModelOutput,
)
from modelscope_cli.analysis.outputs.output_kinds import (
    Leaves,
    OutputPart,
    Scores,
    is_features,
    last_name,
    leaves_of,
    main_leaf,
)
from modelscope_cli.analysis.outputs.vectors import DepthMaps, Vectors
from modelscope_cli.errors import CannotRunError, nearest_names
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.selection import made_by_sigmoid
from modelscope_cli.inputs.model_config import ConfiguredOutputs, configured_outputs, yolo_of
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.records.naming import dtype_name, some, with_article

_IN_A_BOX = {"boxes", "scores", "labels"}
# Classes of models whose outputs as large as the image are scores, whatever the number of channels.
_SEGMENTERS = re.compile(
    r"segmentation_models_pytorch\.|torchvision\.models\.segmentation|monai\.networks\.nets\.(?!diffusion).*(unet|seg|vnet)"
)
# Names of models whose rows are numbers or features, not scores of classes.
_OF_NUMBERS = re.compile("regress|keypoint|landmark|embed", re.IGNORECASE)
_FEW = 4  # values in a row that are as often numbers, such as an angle or a box, as scores of classes
# Why rows of scores are read as probabilities.
_WHY = {
    "softmax": "probabilities, as no value is negative and each row sums to 1",
    "sigmoid": "probabilities, as they come from a sigmoid",
}
_SEVERAL = "several"  # of logits that are all clearly on or off, and not one of them on
_CLEAR = 2.0  # a logit this far from 0 is one of at most 12 %, or at least 88 %, by a sigmoid
# Dimensions of the tensor that is read as each kind.
_DIMENSIONS = {"classes": (2,), "labels": (1, 2), "segmentation": (4, 5), "depth": (3, 4)}


@dataclass(frozen=True, slots=True)
class OutputReader:
    """What is known of a model's output before it runs."""

    family: str  # as in `LoadedModel`
    categories: Sequence[str] | None  # the labels of the classes; None if unknown
    module: nn.Module  # its configuration may state the number of classes, and whether it is multi-label
    wanted: str = "auto"  # the requested kind, `auto` for a guess
    output: str = ""  # the path of the requested tensor, empty for a guess
    _stated: ConfiguredOutputs = field(init=False)
    # By the path of a tensor `(N, C)`, what its values were in the first batch; see `_values_of`
    _rows: dict[str, str] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_stated", configured_outputs(self.module))  # once, and not for every pass

    @classmethod
    def of(cls, loaded: LoadedModel) -> "OutputReader":
        kind, _, output = loaded.output_kind.partition(":")
        return cls(loaded.family, loaded.categories, loaded.module, kind, output)

    @property
    def named(self) -> str:
        """The requested tensor, behind what is read of it: ` of output 'damage'`; empty for a guess."""
        return f" of output '{self.output}'" if self.output else ""

    def read(self, output: Any, args: Any, n_images: int | None = None) -> ModelOutput:
        """Interpret an output.

        Args:
            args: the inputs of the model; boxes are in pixels of its image.
            n_images: number of input images, if known.
        """
        images = _boxes_in(output) if not self.output and self.wanted in ("auto", "detection") else None
        if images is not None:
            boxes = boxes_of(images)
            self._check_rows(len(boxes), n_images, "boxes")
            return ModelOutput("", boxes, leaves_of(output))
        leaves = self.chosen(leaves_of(output))
        if not leaves:
            message = f"the model returns {what_is_in(output)}, which cannot be compared or predicted"
            raise CannotRunError(message, "modelscope summary ...   shows its output")
        path, main = self.main_of(leaves)
        main = main[:, None] if main.ndim == 1 else main
        if self.wanted in ("auto", "detection"):
            boxes_found = self._yolo(leaves, args) or self._queries(path, main, leaves, args)
            if boxes_found is not None:
                return ModelOutput(path, boxes_found, leaves)
        if self.wanted == "detection":
            raise self._no(leaves, "boxes with scores and labels, as of torchvision, DETR or ultralytics")
        if self.wanted in ("auto", "segmentation") and (pixels := _masks_of_queries(leaves)) is not None:
            return ModelOutput("masks_queries_logits", pixels, leaves)
        kind, why = self._kind(path, main, args)
        part = self._part(kind, main, path, args)
        self._check_rows(len(part), n_images, "x".join(map(str, main.shape)))
        read_scores: Callable[[], Scores] | None = None
        if part.kind == "vectors" and main.ndim in (2, 4, 5):
            read_scores = partial(ClassScores if main.ndim == 2 else pixel_scores, main)
        return ModelOutput(path, part, leaves, why, read_scores)

    def part_of(self, path: str, tensor: Tensor, args: Any) -> OutputPart:
        """Return what one tensor of an output is: classes, pixels, depth or vectors."""
        return self._part(self._kind(path, tensor, args)[0], tensor, path, args)

    def main_of(self, leaves: Leaves) -> tuple[str, Tensor]:
        """Return the main output: of the wanted kind the first with its dimensions, or rows of all labels."""
        leaves = self.chosen(leaves)
        first, n = main_leaf(leaves), len(self.categories or ())
        rows = [leaf for leaf in (first, *leaves) if leaf[1].ndim == 2 and not is_features(leaf[0])]
        first = next((leaf for leaf in rows if leaf[1].shape[1] == n > 1 and first[1].ndim == 2), first)
        yolo: Any = yolo_of(self.module)
        if len(leaves) > 1 and type(yolo.model[-1] if yolo is not None else None).__name__ == "Classify":
            first = leaves[1]  # the logits, after their softmax
        if self.wanted not in _DIMENSIONS:
            return first
        fitting = (leaf for leaf in (first, *leaves) if leaf[1].ndim in _DIMENSIONS[self.wanted])
        if self.wanted == "depth":
            fitting = (leaf for leaf in fitting if leaf[1].ndim == 3 or leaf[1].shape[1] == 1)
        chosen = next(fitting, None)
        if chosen is None:
            needed = dict.fromkeys(("classes", "labels"), "scores of N images x classes")
            needed["depth"] = "one channel of N x height x width"
            raise self._no(leaves, needed.get(self.wanted, "scores of N x classes x height x width"))
        return chosen

    def chosen(self, leaves: Leaves) -> Leaves:
        """Return the tensor that was named, or all where none was."""
        chosen = tuple(leaf for leaf in leaves if self.output in ("", leaf[0]))
        if leaves and not chosen:
            paths = [path for path, _ in leaves]
            near = (nearest_names(self.output, paths) or paths)[0]
            message = f"the model has no output '{self.output}': it returns {some(paths)}"
            raise CannotRunError(message, f"--output-kind {self.wanted}:{near}")
        return chosen

    def _no(self, leaves: Leaves, needed: str) -> CannotRunError:
        shapes = ", ".join("x".join(map(str, tensor.shape)) for _, tensor in leaves[:4])
        is_map = self.wanted in ("classes", "labels") and any(tensor.ndim in (4, 5) for _, tensor in leaves)
        return CannotRunError(
            f"'--output-kind {self.wanted}' needs {needed}, but the model returns {shapes}",
            "--output-kind segmentation" if is_map else f"leave out --output-kind {self.wanted}",
        )

    def _part(self, kind: str, tensor: Tensor, path: str, args: Any) -> OutputPart:
        if kind in ("classes", "labels"):
            ending = self._ending(path, tensor, args)
            if kind == "labels" and ending == "softmax":
                message = "the scores of the model sum to 1, so they are not of independent classes"
                raise CannotRunError(message, "leave out --output-kind labels")
            has_several = kind == "labels" or self._stated.has_several_labels or ending == "sigmoid"
            return ClassScores(logits_of(tensor, ending), ending, has_several)
        if kind == "segmentation":
            return pixel_scores(tensor, self._ending(path, tensor, args))
        if kind == "depth":
            return DepthMaps(tensor if tensor.ndim == 3 else tensor[:, 0])
        return Vectors(tensor)

    def _kind(self, path: str, tensor: Tensor, args: Any) -> tuple[str, str]:
        """Return the kind of a tensor, and why where only its shape tells."""
        if self.wanted != "auto":
            return self.wanted, ""
        stated, name = self._stated, last_name(path)
        is_row = tensor.ndim == 2 and tensor.shape[1] > 1 and not is_features(path)
        kind = type(self.module).__name__
        if is_row and not stated.has_no_classes:
            values = "" if stated.n_classes else self._values_of(path, tensor, args)
            if values == "unit":
                return "embedding", "rows of length 1"
            is_said = bool(values in _WHY or stated.n_classes or self.categories) or self.family != "custom"
            if not is_said and _OF_NUMBERS.search(kind):
                return "embedding", f"rows of {with_article(kind)}"
            is_guess = not is_said and tensor.shape[1] <= _FEW
            is_assumed = not is_said or (values == _SEVERAL and self.family == "custom")
            return "classes", MAY_BE_NUMBERS if is_guess else _WHY.get(values, MAY_BE_LABELS * is_assumed)
        if tensor.ndim == 2 and not is_features(path) and self._values_of(path, tensor, args) == "sigmoid":
            return "classes", _WHY["sigmoid"]
        if name == "predicted_depth":
            return "depth", ""
        has_classes = tensor.ndim in (4, 5) and tensor.shape[1] > 1
        if has_classes and (self.family == "segmentation" or (name in ("logits", "out") and path)):
            return "segmentation", ""
        if tensor.ndim == 4 and tensor.shape[1] == 1 and "depth" in kind.lower():
            return "depth", f"one channel of a {kind}"
        if has_classes and "segmentation" in kind.lower():
            return "segmentation", f"{tensor.shape[1]} channels of a {kind}"
        image = _image_in(args)
        if self.family != "custom" or image is None or image.ndim not in (4, 5) or is_features(path):
            return "embedding", ""
        if tensor.shape[-2:] != image.shape[-2:] or (tensor.ndim > 3 and tensor.shape[2:] != image.shape[2:]):
            return "embedding", ""
        return self._dense(tensor, image.shape[1], path, self._ending(path, tensor, args))

    def _values_of(self, path: str, tensor: Tensor, args: Any) -> str:
        """Return what rows of numbers are: `unit` vectors, probabilities of a `softmax` or `sigmoid`, or ``.

        The values of the first batch decide, also for later ones and those of a changed model; a tensor on the
        meta device has none.
        """
        if tensor.is_meta:
            return ""
        if path not in self._rows:
            is_of_sigmoid = partial(made_by_sigmoid, self.module, args, path)
            # Of maps the pixels of one image tell
            rows = tensor.detach() if tensor.ndim < 3 else tensor.detach()[0].flatten(1).T
            self._rows[path] = _values_in(rows, is_of_sigmoid)
        return self._rows[path]

    def _ending(self, path: str, tensor: Tensor, args: Any) -> str:
        """Return `softmax` or `sigmoid` if scores come from one; else ``."""
        values = self._values_of(path, tensor, args)
        return values if values in _WHY else ""

    def _dense(self, tensor: Tensor, n_in: int, path: str, ending: str) -> tuple[str, str]:
        """Return the kind of a tensor as large as the image, which has `n_in` channels."""
        n_out = tensor.shape[1] if tensor.ndim > 3 else 1
        kind = type(self.module)
        if _SEGMENTERS.match(f"{kind.__module__}.{kind.__qualname__}".lower()):
            return "segmentation", f"{kind.__name__} is a model for segmentation"
        if ending and n_out != n_in:
            return "segmentation", f"as large as the image, after a {ending}"
        if n_out > 1 and self.categories and len(self.categories) == n_out:
            return "segmentation", "as large as the image, with as many channels as class names"
        if n_out > 1 and n_out != n_in:
            return "segmentation", f"as large as the image, with {n_out} channels"
        if n_out == 1 and n_in != 1 and not path.endswith(("sample", "reconstruction")):
            if re.search("seg|unet|mask", f"{kind.__module__}.{kind.__name__}", re.IGNORECASE):
                return "segmentation", f"as large as the image, one channel of a {kind.__name__}"
            return "depth", "as large as the image, with one channel"
        return "embedding", LIKE_THE_IMAGE if tensor.ndim > 3 else ""

    def _yolo(self, leaves: Leaves, args: Any) -> Boxes | None:
        yolo: Any = yolo_of(self.module)
        image, found = _image_in(args), leaves[0][1]
        if yolo is None or image is None or found.ndim != 3 or not hasattr(yolo.model[-1], "nc"):
            return None
        head, height, width = yolo.model[-1], *image.shape[-2:]
        n_classes = len(yolo.names) if type(head).__name__ == "RTDETRDecoder" else head.nc
        return boxes_of_yolo(found, head, n_classes, (height, width))

    def _queries(self, path: str, logits: Tensor, leaves: Leaves, args: Any) -> Boxes | None:
        """Return the boxes of DETR-like models: `logits` with `pred_boxes`."""
        centres = next((t for other, t in leaves if last_name(other) == "pred_boxes"), None)
        image = _image_in(args)
        is_pair = logits.ndim == 3 and last_name(path) in ("logits", "pred_logits")
        if centres is None or image is None or not is_pair or centres.shape[:2] != logits.shape[:2]:
            return None
        n_classes, size = self._stated.n_classes, (image.shape[-2], image.shape[-1])
        return boxes_of_queries(logits, centres, size, has_nothing=n_classes != logits.shape[2])

    def _check_rows(self, n_rows: int, n_images: int | None, shape: str) -> None:
        if n_images not in (None, n_rows):
            raise CannotRunError(
                f"the model's output for {n_images} images is {shape}: its rows cannot be matched to the images",
                "--batch 1   gives it one image at a time"
                if n_images != 1
                else "modelscope summary ...   shows its outputs",
            )


def _boxes_in(output: Any) -> list[Mapping[str, Tensor]] | None:
    """Return the boxes per image of torchvision's detection models; None for anything else."""
    images = [output] if isinstance(output, Mapping) else output
    boxes = list(images) if isinstance(images, list | tuple) else []
    is_detection = all(isinstance(image, Mapping) and image.keys() >= _IN_A_BOX for image in boxes)
    return boxes if boxes and is_detection else None


def _masks_of_queries(leaves: Leaves) -> PixelScores | None:
    """Return the classes of pixels of MaskFormer-like models: the masks of all queries, weighted by their classes.
    Cheng et al. 2021, "Per-pixel classification is not all you need", equation 3; the last class is "no object"."""
    named = {last_name(path): tensor for path, tensor in leaves}
    classes, masks = named.get("class_queries_logits"), named.get("masks_queries_logits")
    if classes is None or masks is None:
        return None
    shares = torch.einsum("nqc,nqhw->nchw", classes.softmax(2)[..., :-1], masks.sigmoid())
    return PixelScores(shares.clamp_min(1e-12).log())


def _values_in(rows: Tensor, is_of_sigmoid: Callable[[], bool]) -> str:
    """Return `unit`, `softmax`, `sigmoid` or `` for rows of numbers, `(N, C)`."""
    values, slack = rows.cpu().double(), 1e-5 + 8 * torch.finfo(rows.dtype).eps
    is_positive, has_sums = values >= 0, (values.sum(1) - 1).abs() < slack
    has_lengths, is_at_most_one = (values.norm(dim=1) - 1).abs() < slack, values <= 1
    checks = has_sums.all() & is_positive.all(), has_lengths.all(), (is_positive & is_at_most_one).all()
    is_softmax, is_unit, is_inside = torch.stack(checks).tolist()
    if rows.shape[1] > 1 and (is_softmax or is_unit):
        return "softmax" if is_softmax else "unit"
    if is_inside:
        return "sigmoid" if is_of_sigmoid() else ""
    # Cross-entropy of one class leaves the mean of the logits where it was, and one of them far above the others.
    n_on, gaps = (values > 0).sum(1), values.sort(dim=1).values.diff(dim=1)
    is_apart = (values.abs() > _CLEAR).all(1) & (values.logsumexp(1).abs() > slack)  # not of a log-softmax
    if rows.shape[1] > 1:
        is_apart &= (n_on == 0) | ((n_on > 1) & (gaps.argmax(1) + 1 == rows.shape[1] - n_on))
    return _SEVERAL if rows.shape[1] > 1 and bool(is_apart.any()) else ""


def _image_in(args: Any) -> Tensor | None:
    """Return the first tensor in the arguments that can be an image, or a batch of them."""
    return next((t for _, t in tensors_in(args) if t.is_floating_point() and t.ndim >= 3), None)


def what_is_in(output: Any) -> str:
    """Describe an output by the dtypes of its tensors, or by the shapes of those without values."""
    tensors = [tensor for _, tensor in tensors_in(output)]
    if tensors and not any(tensor.numel() for tensor in tensors):
        return f"tensors without values, of shape {list(tensors[0].shape)}"
    kinds = sorted({dtype_name(tensor.dtype) for tensor in tensors})
    without = f"{with_article(type(output).__name__)} without tensors"
    return f"tensors of {', '.join(kinds)}" if kinds else without
