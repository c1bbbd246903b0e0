"""What an attack wants, for every kind of output: how far it is from there, and whether it has arrived."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from modelscope_cli.analysis.attack.search import Goal
from modelscope_cli.analysis.outputs.aim import THE_PREDICTED, Aim, class_index, name_class
from modelscope_cli.analysis.outputs.answer import Answer, FollowedAnswer
from modelscope_cli.analysis.outputs.vectors import Vectors
from modelscope_cli.errors import CannotRunError, UsageError

# A share of the pixels, of a box's score, or of a likeness: more than this much has to go.
_MOST = 0.5


@dataclass(frozen=True, slots=True)
class ClassGoal:
    """Another class than `index`, or (targeted) that one."""

    goal: Goal
    words: str
    loss_name: str = "cross-entropy"

    @property
    def is_targeted(self) -> bool:
        return self.goal.is_targeted

    @property
    def index(self) -> int:
        return self.goal.index

    def loss(self, answer: Answer) -> Tensor:
        return self.goal.loss(answer.main.tensor())

    def is_reached(self, answer: Answer) -> bool:
        return self.goal.is_reached(answer.main.tensor())


@dataclass(frozen=True, slots=True)
class PixelGoal:
    """More than half of some pixels get another class, or (targeted) one class.

    Attributes:
        classes: `(1, H, W)`, the class that each pixel has, or is to get.
        pixels: which of them count.
    """

    classes: Tensor
    pixels: Tensor
    is_targeted: bool
    words: str
    index: int | None
    loss_name: str = "mean cross-entropy of the pixels"

    def loss(self, answer: Answer) -> Tensor:
        logits = answer.main.tensor()
        each = F.cross_entropy(logits, self.classes.to(logits.device), reduction="none")
        return each[self.pixels.to(logits.device)].mean()

    def is_reached(self, answer: Answer) -> bool:
        has_class = answer.main.tensor().detach().argmax(1).cpu() == self.classes
        share = float(has_class[self.pixels].float().mean())
        return share > _MOST if self.is_targeted else share < 1 - _MOST


@dataclass(frozen=True, slots=True)
class NumberGoal:
    """A number in 0..1 that is followed falls below half of what it was, or (targeted) rises above a half."""

    followed: FollowedAnswer
    before: float
    is_targeted: bool
    words: str
    index: int | None
    loss_name: str

    def loss(self, answer: Answer) -> Tensor:
        # 1e-6 is far below any score a detector reports, and keeps the loss finite where there is none.
        return -self.followed.score(answer)[0].clamp_min(1e-6).log()

    def is_reached(self, answer: Answer) -> bool:
        score = float(self.followed.score(answer)[0].detach())
        return score > _MOST if self.is_targeted else score < _MOST * self.before


@dataclass(frozen=True, slots=True)
class LikenessGoal:
    """The output turns away from the image's own, or (targeted) is more like another image's than like that."""

    own: FollowedAnswer
    other: FollowedAnswer | None
    words: str
    loss_name: str = "1 - cosine similarity"
    index: int | None = None

    @property
    def is_targeted(self) -> bool:
        return self.other is not None

    def loss(self, answer: Answer) -> Tensor:
        return 1 - (self.other or self.own).score(answer)[0]

    def is_reached(self, answer: Answer) -> bool:
        own = float(self.own.score(answer)[0].detach())
        return own < _MOST if self.other is None else float(self.other.score(answer)[0].detach()) > own


AnswerGoal = ClassGoal | PixelGoal | NumberGoal | LikenessGoal
"""What an attack wants. Each has a loss and its name for a person, whether it `is_targeted`, so that the loss has
to fall and not to rise, what it is to get to or away from in `words`, and the `index` of a class it is about."""


def choose_goal(aim: Aim | None, answer: Answer, categories: Sequence[str] | None) -> AnswerGoal:
    """Return what is to be reached, from what the model says of the image.

    Args:
        aim: None for anything but what it says.

    Raises:
        UsageError: no such target, or the model says so already (exit 2).
        CannotRunError: the model says nothing finite, or nothing that could be attacked (exit 4).
    """
    if not answer.is_finite():
        raise CannotRunError(
            "the model's scores of this image are NaN or infinite", "modelscope stats ...   shows where"
        )
    if aim is not None and aim.kind == "logit":
        raise UsageError(
            f"'--target {aim.typed}' is a number, and an attack needs to know its goal",
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
            "the model outputs one value per image, and an attack needs classes, pixels, boxes or an embedding",
            "modelscope grads ... --target 'logit:[0]'   differentiates it",
        )
    own = answer.follow(THE_PREDICTED, categories)
    other = None if aim is None else answer.follow(aim, categories)
    return LikenessGoal(own, other, (other or own).words)


def _class_goal(aim: Aim | None, answer: Answer, categories: Sequence[str] | None) -> ClassGoal:
    predicted = int(answer.main.tensor().argmax(1))
    if aim is None:
        return ClassGoal(Goal(predicted, is_targeted=False), name_class(predicted, categories))
    followed = answer.follow(aim, categories)  # refuses what is not a class
    assert followed.classes is not None
    (index,) = followed.classes
    if index == predicted:
        raise _says_so_already(aim)
    return ClassGoal(Goal(index, is_targeted=True), name_class(index, categories))


def _pixel_goal(aim: Aim | None, answer: Answer, categories: Sequence[str] | None) -> PixelGoal:
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


def _box_goal(aim: Aim | None, answer: Answer, categories: Sequence[str] | None) -> NumberGoal:
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


def _says_so_already(aim: Aim) -> UsageError:
    return UsageError(
        f"target '{aim.typed}' is already the model's prediction for this image", "leave out --target"
    )
