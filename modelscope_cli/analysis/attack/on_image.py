"""The goals of an attack, and an attack on one image."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from modelscope_cli.analysis.attack.request import AttackRequest
from modelscope_cli.analysis.attack.search import BestAttempt, Goal, as_pixels, search, smallest
from modelscope_cli.analysis.outputs.model_output import FollowedOutput, ModelOutput
from modelscope_cli.analysis.outputs.output_kinds import Scoring
from modelscope_cli.analysis.outputs.read import OutputReader
from modelscope_cli.analysis.outputs.target_spec import (
    THE_PREDICTED,
    TargetSpec,
    class_index,
    label_of_class,
    name_class,
)
from modelscope_cli.analysis.outputs.vectors import Vectors
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.forward_passes import opened
from modelscope_cli.hooks.session import Intervention
from modelscope_cli.inputs.batch import Inputs, ModelSide
from modelscope_cli.inputs.forward_signature import needed_beside_an_image
from modelscope_cli.inputs.image import decode
from modelscope_cli.inputs.listing import ListedImage
from modelscope_cli.inputs.preprocess import Preprocessing
from modelscope_cli.lean import without_dynamo
from modelscope_cli.models.load import LoadedModel
from modelscope_cli.records.attack import Answer as Said
from modelscope_cli.records.attack import ClassShift
from modelscope_cli.records.naming import some
from modelscope_cli.records.run import Arguments, Notice

# The share of the pixels, of a box's score or of a similarity that has to change.
_MOST = 0.5


@dataclass(frozen=True, slots=True)
class ClassGoal:
    """A class other than `index`, or (targeted) that class."""

    goal: Goal
    words: str
    loss_name: str = "cross-entropy"

    @property
    def is_targeted(self) -> bool:
        return self.goal.is_targeted

    @property
    def index(self) -> int:
        return self.goal.index

    def loss(self, answer: ModelOutput) -> Tensor:
        return self.goal.loss(answer.main.tensor())

    def is_reached(self, answer: ModelOutput) -> bool:
        return self.goal.is_reached(answer.main.tensor())


@dataclass(frozen=True, slots=True)
class PixelGoal:
    """Another class, or (targeted) one class, for more than half of some pixels."""

    classes: Tensor  # `(1, H, W)`, the class of each pixel, now or (targeted) wanted
    pixels: Tensor  # mask of the pixels that count
    is_targeted: bool
    words: str
    index: int | None
    loss_name: str = "mean cross-entropy of the pixels"

    def loss(self, answer: ModelOutput) -> Tensor:
        logits = answer.main.tensor()
        each = F.cross_entropy(logits, self.classes.to(logits.device), reduction="none")
        return each[self.pixels.to(logits.device)].mean()

    def is_reached(self, answer: ModelOutput) -> bool:
        has_class = answer.main.tensor().detach().argmax(1).cpu() == self.classes
        share = float(has_class[self.pixels].float().mean())
        return share > _MOST if self.is_targeted else share < 1 - _MOST


@dataclass(frozen=True, slots=True)
class NumberGoal:
    """A followed number in 0..1 below half of its first value, or (targeted) above 0.5."""

    followed: FollowedOutput
    before: float
    is_targeted: bool
    words: str
    index: int | None
    loss_name: str

    def loss(self, answer: ModelOutput) -> Tensor:
        # 1e-6 is far below any score a detector reports, and keeps the loss finite without a box.
        return -self.followed.score(answer)[0].clamp_min(1e-6).log()

    def is_reached(self, answer: ModelOutput) -> bool:
        score = float(self.followed.score(answer)[0].detach())
        return score > _MOST if self.is_targeted else score < _MOST * self.before


@dataclass(frozen=True, slots=True)
class LikenessGoal:
    """An output unlike the image's own, or (targeted) more similar to another image's output."""

    own: FollowedOutput
    other: FollowedOutput | None
    words: str
    loss_name: str = "1 - cosine similarity"
    index: int | None = None

    @property
    def is_targeted(self) -> bool:
        return self.other is not None

    def loss(self, answer: ModelOutput) -> Tensor:
        return 1 - (self.other or self.own).score(answer)[0]

    def is_reached(self, answer: ModelOutput) -> bool:
        likeness = float(self.own.score(answer)[0].detach())
        return (
            likeness < _MOST if self.other is None else float(self.other.score(answer)[0].detach()) > likeness
        )


AnswerGoal = ClassGoal | PixelGoal | NumberGoal | LikenessGoal
# `loss` has to fall (`is_targeted`) or rise; `words` name the goal, and `index` its class.


def choose_goal(aim: TargetSpec | None, answer: ModelOutput, categories: Sequence[str] | None) -> AnswerGoal:
    """Return the goal for the model's output. `aim`: None for any other output."""
    answer.checked()
    if aim is not None and aim.kind == "logit":
        raise UsageError(
            f"'--target {aim.typed}' is an output value, but an attack needs a class",
            "--target CLASS, or leave out --target",
        )
    kind = answer.main.kind
    if kind == "classes":
        return _class_goal(aim, answer, categories)
    if kind == "pixels":
        return _pixel_goal(aim, answer, categories)
    if kind == "boxes":
        return _box_goal(aim, answer, categories)
    if isinstance(answer.main, Vectors) and answer.main.is_one_value:
        raise CannotRunError(
            "the model outputs one value per image, but an attack needs classes, pixels, boxes or an "
            "embedding",
            "modelscope grads ... --target 'logit:[0]'   differentiates it",
        )
    own_output = answer.follow(THE_PREDICTED, categories)
    other = None if aim is None else answer.follow(aim, categories)
    return LikenessGoal(own_output, other, (other or own_output).words)


def _class_goal(aim: TargetSpec | None, answer: ModelOutput, categories: Sequence[str] | None) -> ClassGoal:
    predicted = int(answer.main.tensor().argmax(1))
    if aim is None:
        return ClassGoal(Goal(predicted, is_targeted=False), name_class(predicted, categories))
    followed = answer.follow(aim, categories)  # refuses what is not a class
    assert followed.classes is not None
    (index,) = followed.classes
    if index == predicted:
        raise _says_so_already(aim)
    return ClassGoal(Goal(index, is_targeted=True), name_class(index, categories))


def _pixel_goal(aim: TargetSpec | None, answer: ModelOutput, categories: Sequence[str] | None) -> PixelGoal:
    predicted = answer.main.tensor().detach().argmax(1).cpu()
    everywhere = torch.ones_like(predicted, dtype=torch.bool)
    if aim is None:
        return PixelGoal(predicted, everywhere, False, "each pixel's own class", None)
    followed = answer.follow(aim, categories)
    index = class_index(aim.name, answer.main.n_classes, categories)
    if aim.kind == "mask":
        return PixelGoal(predicted, predicted == index, False, followed.words, index)
    goal = PixelGoal(torch.full_like(predicted, index), everywhere, True, followed.words, index)
    if goal.is_reached(answer):
        raise _says_so_already(aim)
    return goal


def _box_goal(aim: TargetSpec | None, answer: ModelOutput, categories: Sequence[str] | None) -> NumberGoal:
    followed = answer.follow(aim or THE_PREDICTED, categories)
    assert followed.classes is not None
    (index,) = followed.classes
    is_targeted = aim is not None and aim.kind == "class"
    name = f"- log of the score of {followed.words}"
    goal = NumberGoal(
        followed, float(followed.score(answer)[0].detach()), is_targeted, followed.words, index, name
    )
    if is_targeted and aim is not None and goal.is_reached(answer):
        raise _says_so_already(aim)
    return goal


def _says_so_already(aim: TargetSpec) -> UsageError:
    return UsageError(
        f"target '{aim.typed}' is already the model's prediction for this image", "leave out --target"
    )


with without_dynamo():
    from torchvision.transforms.functional import pil_to_tensor, to_pil_image

N_TOP = 5
_OF_SEVERAL = ("video", "optical_flow")


@dataclass(frozen=True, slots=True)
class Attacked:
    """The result of a search."""

    goal: AnswerGoal
    levels: Tensor  # the image before normalisation, `(C, H, W)` uint8 on the CPU
    before: ModelOutput  # the model's output for it
    found: BestAttempt[ModelOutput]


@dataclass(frozen=True, slots=True)
class ReadBack:
    """The adversarial image, written to a file and read back."""

    levels: Tensor  # pixels of the file, `(C, H, W)` uint8
    answer: ModelOutput  # the model's output for these pixels
    prepared: ModelOutput  # the output for the file after the usual resize and crop


@contextmanager
def function_of_pixels(
    loaded: LoadedModel, preprocessing: Preprocessing, interventions: Sequence[Intervention] = ()
) -> Iterator[Callable[[Tensor], ModelOutput]]:
    """Open the model as a function from pixels in 0..1 to its output, normalisation included.

    Only the pixels are differentiated. `interventions` apply to every pass.
    """
    reader, side = OutputReader.of(loaded), ModelSide(loaded.family, loaded.device, loaded.dtype)

    def arrange(pixels: Tensor) -> Arguments:
        return side.arrange([preprocessing.normalize(pixels).to(loaded.dtype)])

    with opened(loaded.module, arrange, interventions) as run:
        yield lambda pixels: reader.read(run(pixels), (pixels,), len(pixels)).as_vectors()


def check_family(loaded: LoadedModel) -> None:
    """Refuse models that take several images per prediction."""
    if loaded.family in _OF_SEVERAL:
        kind = loaded.family.replace("_", " ")
        raise CannotRunError(
            f"'{loaded.info.name}' is a model for {kind}: an attack changes one image, and this model takes "
            "several",
            "modelscope models   lists models that take single images",
        )
    more = needed_beside_an_image(loaded.module)
    if more:
        message = f"the forward of {loaded.info.class_name} needs more than an image: {some(more)}"
        raise CannotRunError(f"{message}, but an attack changes one image", "modelscope grads --help")


def check_inputs(inputs: Inputs, name: str) -> None:
    """Refuse inputs other than one image: an attack needs pixels in 0..1, before normalisation.

    Args:
        name: the name of the inputs in messages.
    """
    if inputs.info.names:
        message = f"{name} are named inputs, but an attack needs an image as the only input"
        raise UsageError(message, "give one image file")
    if inputs.preprocessing is None:
        problem = "holds tensors" if inputs.info.files else "is not an image"
        raise UsageError(
            f"{name} {problem}, but an attack changes the pixels of an image", "give one image file"
        )
    if inputs.n_images > 1:
        raise UsageError(f"one image at a time; {name} has {inputs.n_images}", "give one image file")


def attack_image(
    loaded: LoadedModel,
    inputs: Inputs,
    request: AttackRequest,
    tick: Callable[[], object] = lambda: None,
    interventions: Sequence[Intervention] = (),
    aim: TargetSpec | None = None,
) -> Attacked:
    """Attack the one image of `inputs`; the model is not changed. `tick` is called after every step.

    Args:
        aim: `request.target`, resolved; None for any other output.
    """
    plan = _plan(inputs)
    levels = next(iter(inputs)).pictures[0][: len(plan.mean)]
    pixels = as_pixels(levels, loaded.device)[None]
    with function_of_pixels(loaded, plan, interventions) as predict:
        before = predict(pixels).settled()
        goal = choose_goal(aim, before, loaded.categories)
        look = smallest if request.is_smallest else search
        return Attacked(goal, levels, before, look(predict, pixels, goal, request, tick))


def save_and_reread(
    loaded: LoadedModel,
    inputs: Inputs,
    best: BestAttempt[ModelOutput],
    file: Path | None = None,
    interventions: Sequence[Intervention] = (),
) -> ReadBack:
    """Write the adversarial image as a PNG, read it back and run the model on it.

    Args:
        file: path of the PNG; None to keep it in memory.
    """
    plan = _plan(inputs)
    png = io.BytesIO()
    to_pil_image(best.levels[0]).save(png, format="PNG")
    if file is not None:
        file.write_bytes(png.getvalue())
    image = decode(ListedImage("adversarial.png", png.getvalue()), plan.mode)
    levels = pil_to_tensor(image)
    prepared = plan.picture(plan.apply(image, "adversarial.png"))[: len(plan.mean)]
    for intervention in interventions:
        intervention.repeat()
    with function_of_pixels(loaded, plan, interventions) as predict:
        answers = [predict(as_pixels(x, loaded.device)[None]).settled() for x in (levels, prepared)]
    return ReadBack(levels, *answers)


def _plan(inputs: Inputs) -> Preprocessing:
    assert inputs.preprocessing is not None  # as `check_inputs` has seen
    return inputs.preprocessing


def describe(
    attacked: Attacked, back: ReadBack, request: AttackRequest, categories: tuple[str, ...] | None
) -> dict[str, Any]:
    """Return the fields of `AttackRecord` that come from the attack, by name."""
    goal, best = attacked.goal, attacked.found
    change = best.pixels[0].cpu().double() - as_pixels(attacked.levels, "cpu").double()
    saved_change = (back.levels.int() - attacked.levels.int()).double() / 255
    answers = [attacked.before, best.answer, back.answer]
    tops = [_answer_of(answer, attacked.before, categories) for answer in (*answers, back.prepared)]
    return {
        "method": request.method,
        "norm": request.norm,
        "smallest": request.is_smallest,
        "not_within": best.not_within,
        "epsilon": best.epsilon,
        "steps": request.steps,
        "step_size": best.step_size,
        "restarts": request.restarts,
        "targeted": goal.is_targeted,
        "target": goal.index if goal.is_targeted else None,
        "target_label": _label(goal.index, categories) if goal.is_targeted else None,
        "output": attacked.before.kind,
        "goal": goal.words,
        "loss_name": goal.loss_name,
        "before": tops[0],
        "after": tops[1],
        "after_saved": tops[2],
        "after_prepared": tops[3],
        "classes": _shifts(answers, tops[:3], goal, categories),
        "linf": float(change.abs().max()),
        "l2": float(change.norm()),
        "linf_saved": float(saved_change.abs().max()),
        "l2_saved": float(saved_change.norm()),
        "success": best.is_success,
        "success_saved": goal.is_reached(back.answer),
        "success_prepared": goal.is_reached(back.prepared),
        "iterations": best.iterations,
        "restart": best.restart,
        "loss_before": float(goal.loss(attacked.before)),
        "losses": best.losses,
        "forward_passes": best.n_forward,
        "backward_passes": best.n_backward,
        "stuck_runs": best.n_stuck,
        "magnification": max(1, 127 // max(round(255 * float(saved_change.abs().max())), 1)),
    }


def notices(attacked: Attacked, back: ReadBack, request: AttackRequest) -> tuple[Notice, ...]:
    """Return warnings about results that may mislead.

    Failure for lack of a gradient is not robustness: Athalye et al. 2018, "Obfuscated Gradients Give a False Sense
    of Security", section 3.
    """
    best, notices = attacked.found, []
    if best.n_stuck:
        hint = "" if request.target else "; another --target CLASS may have a gradient"
        message = (
            f"the gradient of the loss ({best.losses[-1][-1]:.3g}) is exactly zero in {best.n_stuck} of "
            f"{len(best.losses)} runs: the attack has no direction, which does not prove robustness{hint}"
        )
        notices.append(Notice("zero_gradient", message))
    if request.epsilon and back.levels.equal(attacked.levels):
        message = "the perturbation is below half an 8-bit level everywhere: the file equals the image"
        notices.append(Notice("lost_in_8_bits", message))
    return tuple(notices)


def _shifts(
    answers: list[ModelOutput], tops: list[Said], goal: AnswerGoal, categories: tuple[str, ...] | None
) -> tuple[ClassShift, ...]:
    """Return the top classes of all outputs, those of the original image first, and the class of the goal."""
    if answers[0].main.kind == "vectors":
        first = answers[0].follow(THE_PREDICTED, categories)
        return (ClassShift(None, "cosine similarity", *(float(first.score(answer)) for answer in answers)),)
    indices = dict.fromkeys(guess.index for top in tops for guess in top.top)
    if goal.index is not None:
        indices[goal.index] = None
    scores = [_scores(answer) for answer in answers]
    return tuple(
        ClassShift(index, _label(index, categories), *(score.get(index, 0.0) for score in scores))
        for index in indices
    )


def _scores(answer: ModelOutput) -> dict[int, float]:
    """Return the probability of every class, its share of the pixels, or the score of its best box."""
    every = answer.main.guesses(None, None, Scoring()) or ((),)
    scores: dict[int, float] = {}
    for guess in every[0]:
        scores.setdefault(guess.index, guess.score if guess.share is None else guess.share)
    return scores


def _answer_of(answer: ModelOutput, before: ModelOutput, categories: tuple[str, ...] | None) -> Said:
    """Return the top predictions for the image, and the first in words."""
    guesses = answer.main.guesses(N_TOP, categories, Scoring())
    if guesses is None:
        similarity = before.follow(THE_PREDICTED, categories)
        return Said((), f"cosine similarity {float(similarity.score(answer)):.3f}")
    (top,) = guesses
    if not top:
        return Said((), "no box")
    name = top[0].label or f"class {top[0].index}"
    if top[0].share is not None:
        return Said(top, f"{name} in {100 * top[0].share:.1f} % of the image")
    return Said(top, f"a box of {name} ({100 * top[0].score:.1f} %)" if top[0].box is not None else name)


def _label(index: int | None, categories: tuple[str, ...] | None) -> str | None:
    return None if index is None else label_of_class(index, categories)
