"""The goal of an attack, and an attack on one image."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from modelscope_cli.analysis.attack.request import AttackRequest
from modelscope_cli.analysis.attack.search import BestAttempt, Goal, as_pixels, search, smallest
from modelscope_cli.analysis.outputs.degenerate import Degenerate, look_at
from modelscope_cli.analysis.outputs.model_output import ModelOutput
from modelscope_cli.analysis.outputs.output_kinds import settle
from modelscope_cli.analysis.outputs.read import OutputReader
from modelscope_cli.analysis.outputs.target_spec import PREDICTED, TargetSpec, class_index, label_of_class
from modelscope_cli.analysis.predictions.scores import probabilities, top_guesses
from modelscope_cli.analysis.supported import check_output
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.forward_passes import opened
from modelscope_cli.hooks.session import Intervention
from modelscope_cli.inputs.batch import Inputs, ModelSide
from modelscope_cli.inputs.files import ListedImage
from modelscope_cli.inputs.forward_signature import needed_beside_an_image
from modelscope_cli.inputs.image import decode
from modelscope_cli.inputs.preprocess import Preprocessing
from modelscope_cli.lean import without_dynamo
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.records.attack import Answer, ClassShift
from modelscope_cli.records.naming import some
from modelscope_cli.records.run import Arguments, Notice


def choose_goal(aim: TargetSpec | None, logits: Tensor, categories: Sequence[str] | None) -> Goal:
    """Return the goal for a row of logits, `(1, classes)`. `aim`: None for any other class.

    Raises:
        UsageError: the target is not a class, or is the predicted one.
    """
    predicted = int(logits.argmax(1))
    if aim is None:
        return Goal(predicted, is_targeted=False)
    if not aim.is_class:
        raise UsageError(
            f"'--target {aim.typed}' is an output value, but an attack needs a class",
            "--target CLASS, or leave out --target",
        )
    index = predicted if aim.kind == PREDICTED else class_index(aim.name, logits.shape[1], categories)
    if index == predicted:
        raise UsageError(
            f"target '{aim.typed}' is already the model's prediction for this image", "leave out --target"
        )
    return Goal(index, is_targeted=True)


with without_dynamo():
    from torchvision.transforms.functional import pil_to_tensor, to_pil_image

N_TOP = 5


@dataclass(frozen=True, slots=True)
class Attacked:
    """The result of a search."""

    goal: Goal
    levels: Tensor  # the image before normalisation, `(C, H, W)` uint8 on the CPU
    before: Tensor  # the logits for it, `(1, classes)`
    note: str | None  # which of several tensors has the logits
    found: BestAttempt
    degenerate: Degenerate


@dataclass(frozen=True, slots=True)
class ReadBack:
    """The adversarial image as a file, read back."""

    png: bytes  # the file
    levels: Tensor  # pixels of the file, `(C, H, W)` uint8
    logits: Tensor  # for these pixels, `(1, classes)`
    prepared: Tensor  # the logits for the file after the usual resize and crop


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
        yield lambda pixels: reader.read(run(pixels), (pixels,), len(pixels))


def check_model(loaded: LoadedModel) -> None:
    """Refuse models that take more than an image."""
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
    with function_of_pixels(loaded, plan, interventions) as run:
        output = run(pixels)
        check_output("attack", output)
        before = settle(output.checked().main.tensor())
        goal = choose_goal(aim, before, loaded.categories)
        look = smallest if request.is_smallest else search
        found = look(lambda x: run(x).main.tensor(), pixels, goal, request, tick)
    degenerate = () if goal.is_targeted else look_at(output)  # the loss of another class has a gradient
    return Attacked(goal, levels, before, output.note, found, degenerate)


def encode_and_reread(
    loaded: LoadedModel,
    inputs: Inputs,
    best: BestAttempt,
    interventions: Sequence[Intervention] = (),
) -> ReadBack:
    """Encode the adversarial image as a PNG in memory, read it back and run the model on it."""
    plan = _plan(inputs)
    file = io.BytesIO()
    to_pil_image(best.levels[0]).save(file, format="PNG")
    png = file.getvalue()
    image = decode(ListedImage("adversarial.png", png), plan.mode)
    levels = pil_to_tensor(image)
    prepared = plan.picture(plan.apply(image, "adversarial.png"))[: len(plan.mean)]
    for intervention in interventions:
        intervention.repeat()
    with function_of_pixels(loaded, plan, interventions) as run:
        logits = [settle(run(as_pixels(x, loaded.device)[None]).main.tensor()) for x in (levels, prepared)]
    return ReadBack(png, levels, *logits)


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
    logits = [attacked.before, settle(best.logits), back.logits]
    tops = [_answer_of(one, categories) for one in (*logits, back.prepared)]
    return {
        "method": request.method,
        "norm": request.norm,
        "smallest": request.is_smallest,
        "not_within": best.not_within,
        "epsilon": best.epsilon,
        "steps": request.steps,
        "step_size": best.step_size,
        "targeted": goal.is_targeted,
        "target": goal.index if goal.is_targeted else None,
        "target_label": label_of_class(goal.index, categories) if goal.is_targeted else None,
        "before": tops[0],
        "after": tops[1],
        "after_saved": tops[2],
        "after_prepared": tops[3],
        "classes": _shifts(logits, tops[:3], goal, categories),
        "linf": float(change.abs().max()),
        "l2": float(change.norm()),
        "linf_saved": float(saved_change.abs().max()),
        "l2_saved": float(saved_change.norm()),
        "success": best.is_success,
        "success_saved": goal.is_reached(back.logits),
        "success_prepared": goal.is_reached(back.prepared),
        "iterations": best.iterations,
        "best_run": best.best_run,
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
    if best.n_stuck and not any(attacked.degenerate):
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
    logits: Sequence[Tensor], tops: Sequence[Answer], goal: Goal, categories: Sequence[str] | None
) -> tuple[ClassShift, ...]:
    """Return the top classes of all images, those of the original image first, and the class of the goal."""
    indices = dict.fromkeys([*(guess.index for top in tops for guess in top.top), goal.index])
    shares = [probabilities(one)[0].tolist() for one in logits]
    return tuple(
        ClassShift(index, label_of_class(index, categories), *(share[index] for share in shares))
        for index in indices
    )


def _answer_of(logits: Tensor, categories: Sequence[str] | None) -> Answer:
    """Return the top predictions for the image, and the first in words."""
    (top,) = top_guesses(logits, N_TOP, categories)
    return Answer(top, top[0].label or f"class {top[0].index}")
