"""`attack`: one picture, one model, and what came of it."""

import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.analysis.ablation.effect import label_of_class
from modelscope_cli.analysis.attack.request import AttackRequest
from modelscope_cli.analysis.attack.search import Found, Goal, ScoresOf, as_pixels, search
from modelscope_cli.analysis.gradients.losses import class_index
from modelscope_cli.analysis.predictions.scores import class_scores, probabilities, top_guesses
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.session import HookSession, Intervention
from modelscope_cli.inputs.batch import Inputs
from modelscope_cli.inputs.files import PictureFile
from modelscope_cli.inputs.picture import decode
from modelscope_cli.inputs.preprocess import Preprocessing
from modelscope_cli.lean import without_dynamo
from modelscope_cli.models.load import LoadedModel
from modelscope_cli.records.attack import Answer, ClassShift
from modelscope_cli.records.run import Notice

with without_dynamo():
    from torchvision.transforms.functional import pil_to_tensor, to_pil_image

N_TOP = 5
_PICTURE_MODELS = ("classification", "quantization", "custom")


@dataclass(frozen=True, slots=True)
class Attacked:
    """What a search came to.

    Attributes:
        levels: the picture as the model sees it before normalisation, `(C, H, W)` uint8 on the CPU.
        before: what the model says of it, `(1, classes)`.
    """

    goal: Goal
    levels: Tensor
    before: Tensor
    found: Found


@dataclass(frozen=True, slots=True)
class ReadBack:
    """What was found, written to a file and read back.

    Attributes:
        levels: of the file, `(C, H, W)` uint8.
        logits: what the model says of these very pixels, `(1, classes)`; prepared_logits: and of the file resized
            and cropped once more, like any picture.
    """

    levels: Tensor
    logits: Tensor
    prepared_logits: Tensor


@contextmanager
def function_of_pixels(
    loaded: LoadedModel, preprocessing: Preprocessing, interventions: Sequence[Intervention] = ()
) -> Iterator[ScoresOf]:
    """Give the model as a function from pixels of 0..1 to logits, with the normalisation inside.

    Only the pixels are differentiated, whatever the caller has switched off: no parameter asks for a gradient while
    this is open. `interventions` change every pass alike.
    """
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        HookSession(loaded.module, with_gradients=True, interventions=interventions) as session,
    ):
        is_again = itertools.chain([False], itertools.repeat(True))
        for parameter in loaded.module.parameters():
            parameter.requires_grad_(False)

        def scores_of(pixels: Tensor) -> Tensor:
            repeats = next(is_again)
            for intervention in interventions:
                intervention.begin(is_again=repeats)
            prepared = preprocessing.normalize(pixels).to(loaded.dtype)
            return class_scores(session.run((prepared,)))

        yield scores_of


def check_family(loaded: LoadedModel) -> None:
    """Refuse models whose output is not a row of class scores for one image.

    Raises:
        CannotRunError: exit code 4.
    """
    if loaded.family not in _PICTURE_MODELS:
        kind = loaded.family.replace("_", " ")
        raise CannotRunError(
            f"'{loaded.info.name}' is a model for {kind}: an attack needs a classifier of single images",
            "modelscope models   lists classifiers",
        )


def check_inputs(inputs: Inputs, name: str) -> None:
    """Refuse what is not one picture: an attack needs pixels of 0..1, as they are before normalisation.

    Args:
        name: what to call them in the message.

    Raises:
        UsageError: exit code 2.
    """
    if inputs.preprocessing is None:
        what = "holds tensors" if inputs.info.files else "is not an image"
        raise UsageError(
            f"{name} {what}, and an attack changes the pixels of an image", "modelscope attack photo.jpg"
        )
    if inputs.n_images > 1:
        raise UsageError(f"one image at a time, {name} has {inputs.n_images}", "give one file")


def attack_picture(
    loaded: LoadedModel,
    inputs: Inputs,
    request: AttackRequest,
    tick: Callable[[], object] = lambda: None,
    interventions: Sequence[Intervention] = (),
) -> Attacked:
    """Attack the one picture of `inputs`; the model is left as it was. `tick` is called after every step.

    Raises:
        UsageError: no such target, or the model says so already (exit 2).
        CannotRunError: no classifier, nothing to differentiate, or the model raised (exit 4).
    """
    plan = _plan(inputs)
    levels = next(iter(inputs)).pictures[0][: len(plan.mean)]
    pixels = as_pixels(levels, loaded.device)[None]
    with function_of_pixels(loaded, plan, interventions) as scores_of:
        before = scores_of(pixels)
        goal = choose_goal(request.target, before, loaded.categories)
        return Attacked(goal, levels, before, search(scores_of, pixels, goal, request, tick))


def save_and_ask(
    loaded: LoadedModel,
    inputs: Inputs,
    found: Found,
    file: Path | None = None,
    interventions: Sequence[Intervention] = (),
) -> ReadBack:
    """Write what was found as a PNG, read that as any picture is read, and ask the model about it.

    Args:
        file: where the PNG goes; None to keep it in memory.
    """
    plan = _plan(inputs)
    png = io.BytesIO()
    to_pil_image(found.levels[0]).save(png, format="PNG")
    if file is not None:
        file.write_bytes(png.getvalue())
    image = decode(PictureFile("adversarial.png", png.getvalue()), plan.mode)
    levels = pil_to_tensor(image)
    prepared = plan.picture(plan.apply(image, "adversarial.png"))[: len(plan.mean)]
    for intervention in interventions:
        intervention.repeat()
    with function_of_pixels(loaded, plan, interventions) as scores_of:
        answers = [scores_of(as_pixels(x, loaded.device)[None]) for x in (levels, prepared)]
    return ReadBack(levels, *answers)


def _plan(inputs: Inputs) -> Preprocessing:
    assert inputs.preprocessing is not None  # as `check_inputs` has seen
    return inputs.preprocessing


def choose_goal(target: str | None, logits: Tensor, categories: tuple[str, ...] | None) -> Goal:
    """Return what is to be reached, from what the model says of the picture.

    Raises:
        UsageError: no such class, or it is the answer already (exit 2).
        CannotRunError: the model says nothing finite (exit 4).
    """
    if not logits.isfinite().all():
        raise CannotRunError(
            "the model's scores of this image are NaN or infinite", "modelscope stats IMAGE   shows where"
        )
    predicted = int(logits.argmax(1))
    if target is None:
        return Goal(predicted, is_targeted=False)
    index = class_index(target, logits.shape[1], categories)
    if index == predicted:
        raise UsageError(
            f"target '{target}' is what the model says of this image already", "leave out --target"
        )
    return Goal(index, is_targeted=True)


def describe(
    attacked: Attacked, read: ReadBack, request: AttackRequest, categories: tuple[str, ...] | None
) -> dict[str, Any]:
    """Return the fields of `AttackRecord` that come from the attack, by name."""
    goal, found = attacked.goal, attacked.found
    change = found.pixels[0].cpu().double() - as_pixels(attacked.levels, "cpu").double()
    saved_change = (read.levels.int() - attacked.levels.int()).double() / 255
    answers = [attacked.before, found.logits, read.logits]
    tops = [Answer(top_guesses(logits, N_TOP, categories)[0]) for logits in (*answers, read.prepared_logits)]
    return {
        "method": request.method,
        "norm": request.norm,
        "epsilon": request.epsilon,
        "steps": request.steps,
        "step_size": request.step_size,
        "restarts": request.restarts,
        "targeted": goal.is_targeted,
        "target": goal.index if goal.is_targeted else None,
        "target_label": label_of_class(goal.index, categories) if goal.is_targeted else None,
        "before": tops[0],
        "after": tops[1],
        "after_saved": tops[2],
        "after_prepared": tops[3],
        "classes": _shifts(answers, tops[:3], goal, categories),
        "linf": float(change.abs().max()),
        "l2": float(change.norm()),
        "linf_saved": float(saved_change.abs().max()),
        "l2_saved": float(saved_change.norm()),
        "success": found.is_success,
        "success_saved": goal.is_reached(read.logits),
        "success_prepared": goal.is_reached(read.prepared_logits),
        "iterations": found.iterations,
        "restart": found.restart,
        "loss_before": float(goal.loss(attacked.before)),
        "losses": found.losses,
        "forward_passes": found.n_forward,
        "backward_passes": found.n_backward,
        "stuck_runs": found.n_stuck,
        "magnification": max(1, 127 // max(round(255 * float(saved_change.abs().max())), 1)),
    }


def notices(attacked: Attacked, read: ReadBack, request: AttackRequest) -> tuple[Notice, ...]:
    """Say why what was found may mean less than it seems.

    A failure where there is no gradient is no robustness: Athalye et al. 2018, "Obfuscated Gradients Give a False
    Sense of Security", section 3.
    """
    found, notices = attacked.found, []
    if found.n_stuck:
        hint = "" if request.target else "; --target CLASS may have another"
        message = (
            f"the gradient of the loss ({found.losses[-1][-1]:.3g}) is exactly zero in {found.n_stuck} of "
            f"{len(found.losses)} runs: the attack is blind there, which is not a proof of robustness{hint}"
        )
        notices.append(Notice("zero_gradient", message))
    if request.epsilon and read.levels.equal(attacked.levels):
        message = "the change is less than half a level of 8 bits everywhere: the file is the image itself"
        notices.append(Notice("lost_in_8_bits", message))
    return tuple(notices)


def _shifts(
    answers: list[Tensor], tops: list[Answer], goal: Goal, categories: tuple[str, ...] | None
) -> tuple[ClassShift, ...]:
    """Every class among the best of any answer, those of the picture first, and the target."""
    scores = [probabilities(logits)[0] for logits in answers]
    indices = dict.fromkeys([*(guess.index for answer in tops for guess in answer.top), goal.index])
    return tuple(
        ClassShift(index, label_of_class(index, categories), *(float(score[index]) for score in scores))
        for index in indices
    )
