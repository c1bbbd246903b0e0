"""From the output of a model to the scalar that is differentiated."""

import inspect
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from modelscope_cli.analysis.gradients.request import AUTO, PREDICTED, LossRequest
from modelscope_cli.analysis.outputs.classes import ClassScores, logits_of
from modelscope_cli.analysis.outputs.read import OutputReader, what_is_in
from modelscope_cli.analysis.outputs.target_spec import TargetSpec, class_index, name_class
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.torch_private import graph_leaves
from modelscope_cli.inputs import forward_signature as targets
from modelscope_cli.models.importspec import import_object, user_code_failed
from modelscope_cli.records.naming import some, with_article

# Weights of the auxiliary heads of torchvision's models in training: GoogLeNet, Szegedy et al. 2014, section 5;
# Inception v3 and the segmentation models as in torchvision's training scripts.
_AUXILIARY = {"aux_logits1": 0.3, "aux_logits2": 0.3, "aux_logits": 0.4, "aux": 0.5}
# Targets of a loss that are not a class.
_NOTHING, _RANDOM, _OWN = "none", "fixed random numbers", "the model's own"
_OF_IMAGES = "the true class of each image"
Truth = Callable[[int], Tensor | None]
_SEED = 20_260_401  # unlike one that models and noise are made of
_WITHOUT_CLASS = (_NOTHING, _RANDOM, _OWN)

NO_GRADIENT = (
    "the model's output does not depend on anything trainable: its forward runs under no_grad, detaches, or uses "
    "none of the trainable parameters"
)


@dataclass(frozen=True, slots=True)
class Loss:
    """A scalar loss with its graph."""

    value: Tensor  # zero-dimensional
    # name, target: in words, for the report
    name: str
    target: str
    outputs: tuple[Tensor, ...]  # the output tensors it was computed from: where the gradient starts
    classes: Tensor | None = None  # the target class of each image, `(N,)`; None if there are none


class Criterion:
    """Turns the output of a model into its loss.

    Args:
        reader: of the model's output.
        aim: `--target`, if it is a box or a mask.
    """

    def __init__(self, request: LossRequest, reader: OutputReader, aim: TargetSpec | None = None) -> None:
        self._request = request
        self._reader = reader
        self._family, self._categories = reader.family, reader.categories
        self._aim = aim
        self._custom = request.function
        if request.is_custom and not self._custom:
            self._custom = import_object(request.name, "--loss")
            if not callable(self._custom):
                kind = with_article(type(self._custom).__name__)
                message = f"loss '{request.name}' is {kind}, not a function"
                raise UsageError(message, "--loss path/to/file.py:fn")

    def detection_label(self) -> int:
        """Return the label of the synthetic object: the target, or 1 by default."""
        if self._aim is not None:
            message = f"'--target {self._aim.typed}' is a box, but in train mode the model returns losses"
            raise UsageError(message, "--mode eval")
        if self._request.target == PREDICTED:
            return 1
        return class_index(self._request.target, None, self._categories)

    def target_in_words(self, loss: Loss, classes: Sequence[int], n_passes: int) -> str:
        """Return the target of a loss, with the class of one image but of bce; `classes`: those of the loss."""
        is_one = loss.target == PREDICTED and len(classes) == n_passes == 1 and "bce" not in loss.name
        return f"{PREDICTED}: {name_class(classes[0], self._categories)}" if is_one else loss.target

    def __call__(self, output: Any, args: Any = (), truth: Truth = lambda n_classes: None) -> Loss:
        """Return the loss of one pass; `truth` gives the class of each image, `(N,)`, or None for the target."""
        self._truth = truth
        floats = [(path, tensor) for path, tensor in tensors_in(output) if tensor.is_floating_point()]
        outputs = [(path, tensor) for path, tensor in floats if tensor.requires_grad]
        if not outputs:
            other = f"the model returns {what_is_in(output)}, which cannot be differentiated"
            raise CannotRunError(
                NO_GRADIENT if floats else other, "modelscope stats ...   needs no gradients"
            )
        if self._aim is not None:
            return self._of_aim(self._aim, output, args)
        loss = self._compute(output, outputs, args)
        target = self._request.target
        if target != PREDICTED and loss.target in _WITHOUT_CLASS:
            message = f"'--target {target}' does not apply to the loss '{loss.name}'"
            raise UsageError(message, "leave out --target")
        return loss

    def _of_aim(self, aim: TargetSpec, output: Any, args: Any) -> Loss:
        """Return the mean of the followed number as the loss."""
        if self._request.name not in (AUTO, "logit"):
            raise UsageError(
                f"'--target {aim.typed}' is an output value, but the loss '{self._request.name}' needs a class",
                f"--loss logit --target {shlex.quote(aim.typed)}",
            )
        answer = self._reader.read(output, args)
        followed = answer.follow(aim, self._categories)
        value = followed.score(answer.main).mean()
        if not value.requires_grad:
            message = f"'--target {aim.typed}' does not depend on anything trainable"
            raise CannotRunError(message, "modelscope stats ...   needs no gradients")
        tensors = tuple(tensor for _, tensor in answer.leaves if tensor.requires_grad)
        return Loss(value, followed.name, followed.words, tensors)

    def _compute(self, output: Any, outputs: list[tuple[str, Tensor]], args: Any) -> Loss:
        if self._custom is not None:
            return self._run_custom(self._custom, output, outputs)
        outputs = [*self._reader.chosen(tuple(outputs))]
        whole = self._whole_output(outputs) if self._request.name == AUTO else None
        if whole is not None:
            return whole
        path, main = self._reader.main_of(tuple(outputs))
        part = self._reader.part_of(path, main, args) if _has_classes(main) else None
        classes = part if isinstance(part, ClassScores) else None
        is_scores = part is not None and part.kind in ("classes", "pixels")
        loss = self._of_main_output(path, main, outputs, classes, is_scores=is_scores)
        return self._with_the_others(loss, outputs) if self._request.name == AUTO else loss

    def _with_the_others(self, loss: Loss, outputs: list[tuple[str, Tensor]]) -> Loss:
        """Add the mean square errors of other outputs that parameters of their own lead to, for their gradients."""
        reached = set(map(id, graph_leaves(loss.value)))
        others = {
            path: one for path, one in outputs if {*map(id, graph_leaves(one))} - reached and one.numel()
        }
        if not others:
            return loss
        errors = [_error(tensor).to(loss.value) for tensor in others.values()]
        named = some([f"'{path}'" for path in others])
        name = f"{loss.name} + mean square error of {named} from random numbers"
        value = torch.stack([loss.value, *errors]).sum()
        return Loss(value, name, loss.target, (*loss.outputs, *others.values()), loss.classes)

    def _whole_output(self, outputs: list[tuple[str, Tensor]]) -> Loss | None:
        """Return the loss of outputs that are more than one tensor of scores; None for the others."""
        tensors = tuple(tensor for _, tensor in outputs)
        if all(tensor.ndim == 0 for tensor in tensors):
            name = f"sum of the model's own losses ({', '.join(path for path, _ in outputs)})"
            is_detection = self._family == "detection"
            target = f"{targets.IN_WORDS}, label {self.detection_label()}" if is_detection else _OWN
            return Loss(torch.stack(tensors).sum(), name if len(tensors) > 1 else _OWN, target, tensors)
        if self._family == "detection":
            has_boxes = any(tensor.numel() for tensor in tensors)
            hint = "--target box:0   the score of a box" if has_boxes else "--mode train"
            raise UsageError("a detection model in eval mode returns boxes, not a loss", hint)
        return None

    def _of_main_output(
        self,
        path: str,
        main: Tensor,
        outputs: list[tuple[str, Tensor]],
        said: ClassScores | None,
        *,
        is_scores: bool,
    ) -> Loss:
        fitting = "bce" if said is not None and said.has_several else "cross-entropy" if is_scores else "mse"
        name = self._request.name if self._request.name != AUTO else fitting
        where = f" of output '{path}'" if path and len(outputs) > 1 else ""
        if name == "mean":
            return Loss(main.mean(), f"mean{where}", _NOTHING, (main,))
        if name == "mse" and fitting == "mse":
            return Loss(_error(main), f"mean square error{where}", _RANDOM, (main,))
        if not _has_classes(main):
            shape = "x".join(map(str, main.shape)) or "a scalar"
            message = f"loss '{name}' needs an output of N x classes, but this model's is {shape}"
            raise UsageError(message, "--loss mean or --loss mse")
        classes, words = self._classes(main, is_of_one=said is None or not said.has_several)
        # These losses take logits, so a softmax or sigmoid at the end of the model is undone.
        undone = said.ending if said is not None and (self._request.name == AUTO or name == "bce") else ""
        parts = [(main, 1.0)]
        if name == "cross-entropy":
            parts += [
                (tensor, _AUXILIARY[key])
                for other, tensor in outputs
                if (key := other.rpartition(".")[2]) in _AUXILIARY and tensor.shape == main.shape
            ]
            for _, weight in parts[1:]:
                where += f" + {weight:g} x an auxiliary head's"
        losses = [weight * self._score(name, logits_of(x, undone), classes, words) for x, weight in parts]
        per_pixel = " per pixel" if main.ndim > 2 else ""
        labels = classes if classes.ndim == 1 else None
        tensors = tuple(tensor for tensor, _ in parts)
        return Loss(torch.stack(losses).sum(), name + per_pixel + where, words, tensors, labels)

    def _classes(self, main: Tensor, *, is_of_one: bool = True) -> tuple[Tensor, str]:
        """Return the target class of every image (and pixel), and the same in words."""
        truth = self._truth(main.shape[1]) if main.ndim == 2 and is_of_one else None
        if truth is not None:
            return truth.to(main.device), _OF_IMAGES
        if self._request.target == PREDICTED:
            return main.detach().argmax(1), PREDICTED
        index = class_index(self._request.target, main.shape[1], self._categories)
        return torch.full_like(main[:, 0], index, dtype=torch.long), name_class(index, self._categories)

    def _score(self, name: str, scores: Tensor, classes: Tensor, target: str) -> Tensor:
        if name == "cross-entropy":
            return F.cross_entropy(scores, classes)
        if name == "nll":
            if bool(scores.detach().amax() > 1e-3):
                message = "loss 'nll' needs log-probabilities, but this model's output has values above 0"
                raise UsageError(message, "--loss cross-entropy   takes the scores before the softmax")
            return F.nll_loss(scores, classes)
        if name == "logit":
            return scores.gather(1, classes[:, None]).mean()
        hot = F.one_hot(classes, scores.shape[1]).movedim(-1, 1).to(scores.dtype)
        if name == "mse":
            return F.mse_loss(scores, hot)
        if target == PREDICTED:  # several labels or none
            hot = (scores.detach() > 0).to(scores.dtype)
        return F.binary_cross_entropy_with_logits(scores, hot)

    def _run_custom(
        self, function: Callable[..., Any], output: Any, outputs: list[tuple[str, Tensor]]
    ) -> Loss:
        spec = self._request.name
        arguments, words = [output], _NOTHING
        labels: Tensor | None = None
        if _takes_two(function):
            main = next((tensor for _, tensor in outputs if _has_classes(tensor)), None)
            if main is None:
                message = f"loss '{spec}' expects a target, but the output has no classes"
                raise UsageError(message, "def fn(output): ...")
            classes, words = self._classes(main)
            labels = classes if classes.ndim == 1 else None
            arguments.append(classes)
        try:
            value = function(*arguments)
        except Exception as error:
            raise user_code_failed(f"loss '{spec}'", error) from error
        if not isinstance(value, Tensor) or value.numel() != 1:
            kind = with_article(type(value).__name__)
            kind = f"a tensor of {tuple(value.shape)}" if isinstance(value, Tensor) else kind
            raise CannotRunError(f"loss '{spec}' returned {kind}, not a scalar", "return loss.mean()")
        if not value.requires_grad:
            message = f"loss '{spec}' returned a number without a gradient graph"
            raise CannotRunError(message, "compute it from the output")
        return Loss(value.reshape(()), spec, words, tuple(tensor for _, tensor in outputs), labels)


def _error(tensor: Tensor) -> Tensor:
    """Return the mean square error of an output that is not scores, `(N, ...)`, from random numbers.

    The squares alone are constant for outputs of one length, as of `F.normalize`, CLIP or a last layer norm: their
    gradient would be rounding. At zero, as of a last layer that begins with zeros, they have none.
    """
    shape, random = tensor.shape[1:], torch.Generator().manual_seed(_SEED)
    return (tensor - torch.randn(shape, generator=random).to(tensor)).square().mean()


def _has_classes(tensor: Tensor) -> bool:
    return tensor.ndim >= 2 and tensor.shape[1] >= 2


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError):
        return False
    return True
