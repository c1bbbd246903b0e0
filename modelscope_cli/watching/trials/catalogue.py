"""All trials: what each changes, when it is suspected, what it proves and what to write in the script."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from modelscope_cli.records.naming import rounded
from modelscope_cli.rules.training.recipe import BY_MODE, PLATEAU
from modelscope_cli.watching.trials import data, examine, gradients, modes, optimizers
from modelscope_cli.watching.trials.change import Act, Change
from modelscope_cli.watching.trials.criterion_changes import expected_input, no_label_smoothing, usual_logits
from modelscope_cli.watching.trials.trial import Clues

ABSENT, PRESENT, SUSPECT = 0, 1, 2
"""Whether a change has anything to act on, and whether what it acts on is far from what is usual."""
Words = Callable[[Clues], str]


@dataclass(frozen=True, slots=True)
class Trial:
    """A change and what is known about it.

    Attributes:
        suspicion: one of `ABSENT`, `PRESENT` and `SUSPECT`.
        changed, write: what is changed, and what to write, in words; place: the line of the script.
        codes: of the rules that name the cause that it removes; cause: that in words, before what was changed.
        is_general: it makes many trainings better, and so proves its cause only if nothing is learnt without it.
        rescales: the loss has another scale with it, so that predictions are compared.
    """

    name: str
    change: Change
    suspicion: Callable[[Clues], int]
    changed: Words
    write: Words
    place: Callable[[Clues], str | None]
    codes: str = ""
    cause: Words = lambda _: ""
    is_general: bool = False
    rescales: bool = False


DIFFERENCES, HEART = "gradient check", "by heart"
BOTH, STRONG = "standardised inputs, rate / 10", "fresh AdamW"
_NEAR, _LOW = 0.1, 0.1  # share of a learning rate


def _found(codes: str, *criteria: str) -> Callable[[Clues], int]:
    """Suspect a trial only where a rule names its cause, whose facts are exact; with one of some criteria."""
    return lambda clues: _when(
        clues.has_found(codes) and (not criteria or not clues.criteria.isdisjoint(criteria)), False
    )


def _when(suspected: bool, present: bool) -> int:
    return SUSPECT if suspected else PRESENT if present else ABSENT


def _clip(clues: Clues) -> tuple[str, float, float]:
    """Return line, limit and median norm of the clipping that takes most."""
    return min(
        ((place, *pair) for place, pair in clues.survey.clips.items()),
        key=lambda one: one[1] / max(one[2], 1e-30),
        default=("", math.inf, 0.0),
    )


def _clipping(clues: Clues) -> int:
    _, limit, norm = _clip(clues)
    return _when(limit < 0.05 * norm, limit < norm)


def _settings(clues: Clues) -> int:
    found = {name: value for one in clues.survey.settings for name, (value, _) in one["unusual"].items()}
    first, second = found.get("betas", (0.9, 0.99))[:2]
    odd = found.get("momentum", 0) > 0.95 or found.get("eps", 0) > 1e-4 or found.get("dampening", 0) > 0.5
    return _when(odd or first > 0.97 or not 0.9 <= second < 0.99995, bool(found))


def _unusual(clues: Clues, at: int) -> str:
    """Return the settings that are unusual, or with 1 for `at` the usual ones in their place."""
    found = [one["unusual"] for one in clues.survey.settings]
    words = [f"{name}={_figures(pair[at])}" for unusual in found for name, pair in unusual.items()]
    return ", ".join(dict.fromkeys(words))


def _figures(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_figures, value))})"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _decay(clues: Clues) -> int:
    found = [(one["weight_decay"], one["rate"], one["class"]) for one in clues.survey.settings]
    taken = [decay * rate >= 2e-3 if "W" in kind else decay >= 0.05 for decay, rate, kind in found if decay]
    return _when(any(taken) or clues.has_found("MS744"), False)


def _inputs(clues: Clues) -> int:
    seen = clues.data
    largest = max(abs(seen.low), abs(seen.high))
    uneven = clues.survey.unevenness > 30 and seen.std > 3
    odd = largest > 50 or abs(seen.mean) > 5 * seen.std or uneven or 0 < seen.std < 0.01
    return _when(odd, not 0.2 < seen.std < 4 or abs(seen.mean) > 1) if seen.shape else ABSENT


def _standardised(clues: Clues) -> str:
    return f"inputs standardised (mean {clues.data.mean:.3g}, standard deviation {clues.data.std:.3g})"


@contextmanager
def _standardised_slower(act: Act) -> Iterator[None]:
    """Standardise the inputs and divide the rates by 10."""
    with data.standardised(act), optimizers.rate_times(0.1)(act):
        yield


def _standardise(clues: Clues) -> str:
    seen = clues.data
    if len(seen.shape) > 2 and seen.low >= 0 and 100 < seen.high <= 255:
        return "divide the images by 255, and normalise them"
    return "subtract the mean of each feature over the training data and divide by its standard deviation"


def _order(clues: Clues) -> int:
    within, overall = clues.labels_alike
    is_sorted = within > overall + 0.5 * (1 - overall)
    return _when(is_sorted, not clues.survey.shuffles) if clues.survey.loader else ABSENT


def _sign(clues: Clues) -> int:
    base = clues.base
    rises = base.last("cost") > 1.05 * base.first("cost") and math.isfinite(base.first("cost"))
    falls = base.last("loss") < base.first("loss")
    is_maximised = any(one.maximizes for one in clues.optimizers)
    return _when(is_maximised or (rises and falls), rises)


def _start(clues: Clues) -> int:
    far, _ = clues.far_weights
    return _when(far > 4 or clues.has_found("MS729 MS739"), far > 2)


def _logits(clues: Clues) -> int:
    std = clues.survey.logits
    return _when(0 < std < 0.05 or std > 20, False)  # a new last layer of torch outputs 0.1 to 1


def _optimizer_place(clues: Clues) -> str | None:
    return next((one["place"] for one in clues.survey.settings if one["place"]), None)


def _says(text: str) -> Words:
    return lambda _: text


def _recipe(clues: Clues) -> str:
    sign = "<=" if _is_scheduled(clues) else "="
    found = (f"{one['class']} with lr{sign}{one['rate']:.3g}" for one in clues.survey.settings)
    return " and ".join(dict.fromkeys(found))


def _rates(clues: Clues, factor: float) -> str:
    return " and ".join(dict.fromkeys(f"{one['rate'] * factor:.3g}" for one in clues.survey.settings))


def _is_scheduled(clues: Clues) -> bool:
    """Tell whether the highest learning rate is not the one that the script gives."""
    return any(abs(one["rate"] - one["given"]) > _NEAR * one["given"] for one in clues.survey.settings)


def _rate_of(clues: Clues, factor: float) -> str:
    return f"learning rate of {'at most ' * _is_scheduled(clues)}{_rates(clues, factor)}"


def _rate_to_write(clues: Clues, factor: float) -> str:
    rates = _rates(clues, factor)
    if not _is_scheduled(clues):
        return f"{clues.survey.settings[0]['argument']}={rates}"
    return f"change the schedule or its base rate: a highest learning rate of {rates}, not {_rates(clues, 1)}"


def _rate_place(clues: Clues) -> str | None:
    is_elsewhere = _is_scheduled(clues) or clues.survey.settings[0]["argument"] == "max_lr"
    return (clues.survey.schedule if is_elsewhere else None) or _optimizer_place(clues)


def _held_low(clues: Clues) -> dict[str, Any] | None:
    """Return the settings of the optimizer whose schedule keeps its mean learning rate far below the given one."""
    found = (one for one in clues.survey.settings if one["mean"] < _LOW * one["given"])
    return next(found, None) if clues.survey.schedule is not None else None


def _low_rate(clues: Clues) -> str:
    if (one := _held_low(clues)) is None:
        return ""
    rates = f"at {one['mean']:.2g}, far below {one['given']:.2g}"
    return f"{_schedule(clues)} keeps the mean learning rate {rates}: "


def _schedule(clues: Clues) -> str:
    found = (one.schedule for one in clues.record.facts.schedules if one.made == clues.survey.schedule)
    return next(found, "the schedule")


def _schedule_to_write(clues: Clues) -> str:
    one = _held_low(clues)
    if _schedule(clues) == PLATEAU:
        return BY_MODE
    if one is None or not 0 < one["rate"] <= _LOW * one["given"]:
        return "leave out the schedule, or set its length to the number of its step() calls"
    name, reached = _schedule(clues), f"the learning rate reaches only {one['rate']:.2g}"
    is_rare = all(2 * one.used < one.steps for one in clues.record.facts.schedules)
    how = f"call the step() of {name} after each batch, and" if is_rare else f"with {name},"
    return f"{how} make the warm-up shorter than the run: {reached}"


def _rate(factor: float) -> Trial:
    return Trial(
        f"rate x {factor:.0f}" if factor > 1 else f"rate / {1 / factor:.0f}",
        optimizers.rate_times(factor),
        lambda clues: _when(False, bool(clues.survey.settings)),
        lambda clues: f"a {_rate_of(clues, factor)}",
        lambda clues: _rate_to_write(clues, factor),
        _rate_place,
        "MS710 MS723" if factor > 1 else "MS704 MS709 MS701 MS706 MS723",
        lambda clues: f"the {_rate_of(clues, 1)} is too {'low' if factor > 1 else 'high'}: ",
        is_general=True,
    )


TRIALS = (
    Trial(
        "clear gradients",
        gradients.cleared,
        lambda clues: _when(any(2 * one.uncleared > one.cycles for one in clues.optimizers), False),
        _says("gradients cleared before each backward pass that follows a step"),
        _says("call optimizer.zero_grad() before each loss.backward() that follows a step"),
        lambda clues: clues.survey.backward or _optimizer_place(clues),
        "MS713",
    ),
    Trial(
        "no clipping",
        gradients.unclipped,
        _clipping,
        lambda clues: f"gradients not clipped (limit {_clip(clues)[1]:g}, median norm {_clip(clues)[2]:.3g})",
        lambda clues: f"leave out the clipping, or clip at {rounded(max(1.0, 2 * _clip(clues)[2]), 1)}",
        lambda clues: _clip(clues)[0] or None,
        "MS741 MS710",
    ),
    Trial(
        "no scaler",
        modes.no_scaler,
        lambda clues: _when(any(one.scaled for one in clues.optimizers), clues.survey.scaler is not None),
        _says("the loss not scaled by a GradScaler"),
        _says(
            "use scaler.step(optimizer), and clip after scaler.unscale_(optimizer); or leave out the scaler"
        ),
        lambda clues: clues.survey.scaler,
        "MS745",
    ),
    Trial(
        "no double softmax",
        expected_input,
        _found("MS720 MS738", "cross_entropy", "binary_cross_entropy_with_logits", "nll_loss"),
        _says("logits as the input of the criterion, or log-probabilities where it is nll_loss"),
        _says("pass the logits to the criterion, without a softmax or sigmoid; log_softmax before nll_loss"),
        lambda clues: clues.survey.criterion,
        "MS720 MS738",
        rescales=True,
    ),
    Trial(
        "missing parameters",
        optimizers.missing_added,
        lambda clues: _when(clues.n_missing > 0, False),
        lambda clues: f"the {clues.n_missing} missing parameters added to the optimizer",
        _says("pass all parameters of the model to the optimizer, after its last layer is in place"),
        _optimizer_place,
        "MS712 MS737 MS711",
    ),
    Trial(
        "unfreeze",
        optimizers.unfrozen,
        lambda clues: _when(clues.n_frozen > 0, False),
        lambda clues: f"the {clues.n_frozen} frozen parameters trained too",
        _says("train them too: requires_grad_(True) before the optimizer is made from all parameters"),
        lambda clues: clues.survey.model,
        "MS717 MS768",
    ),
    Trial(
        "usual modes",
        modes.usual_modes,
        _found("MS718 MS743"),
        _says("models trained in training mode and validated in evaluation mode"),
        _says("call model.train() before the steps, and model.eval() before validation only"),
        lambda clues: clues.survey.model,
        "MS718 MS743",
    ),
    Trial(
        "usual settings",
        optimizers.usual_settings,
        _settings,
        lambda clues: f"the usual {_unusual(clues, 1)} instead of {_unusual(clues, 0)}",
        lambda clues: f"{_unusual(clues, 1)} in place of {_unusual(clues, 0)}",
        _optimizer_place,
        "MS766",
    ),
    Trial(
        "no weight decay",
        optimizers.no_weight_decay,
        _decay,
        lambda clues: (
            f"no weight decay ({max([0, *(one['weight_decay'] for one in clues.survey.settings)]):g})"
        ),
        _says("weight_decay=0, or 1e-4 for SGD and 0.01 for AdamW"),
        _optimizer_place,
        "MS744",
    ),
    Trial(
        "constant rate",
        optimizers.constant_rate,
        lambda clues: _when(
            _held_low(clues) is not None, bool(clues.survey.schedule and clues.survey.settings)
        ),
        lambda clues: f"the learning rate constant at {clues.survey.settings[0]['given']:.3g}",
        _schedule_to_write,
        lambda clues: clues.survey.schedule,
        "MS719 MS758",
        _low_rate,
    ),
    Trial(
        "finite batches",
        data.finite_batches,
        lambda clues: _when(clues.has_found("MS728"), not math.isfinite(clues.base.last("loss"))),
        _says("batches with NaN or infinite values left out"),
        _says("leave out or repair the samples that hold NaN or infinite values"),
        lambda clues: clues.survey.model,
        "MS728 MS701 MS702 MS703",
    ),
    Trial(
        "standardised inputs",
        data.standardised,
        _inputs,
        _standardised,
        _standardise,
        lambda clues: clues.survey.model,
        "MS726 MS727",
    ),
    Trial(
        "default initialisation",
        modes.default_initialisation,
        _start,
        lambda clues: f"torch's default initial weights{_far(clues)}",
        _says("leave out the initialisation, or use the one of torch.nn.init that fits the activation"),
        lambda clues: clues.survey.model,
        "MS729 MS739 MS730",
    ),
    Trial(
        "random order",
        data.random_order,
        _order,
        _says("the samples in random order"),
        _says("shuffle=True in the training DataLoader"),
        lambda clues: clues.survey.loader,
        "MS725",
    ),
    Trial(
        "no dropout",
        modes.no_dropout,
        lambda clues: _when(clues.survey.dropout >= 0.7, clues.survey.dropout >= 0.3),
        lambda clues: f"no dropout (p={clues.survey.dropout:g})",
        _says("a lower probability of dropout, such as 0.1"),
        lambda clues: clues.survey.model,
        "MS764",
    ),
    Trial(
        "no label smoothing",
        no_label_smoothing,
        lambda clues: _when(clues.survey.label_smoothing >= 0.4, False),
        lambda clues: f"no label smoothing ({clues.survey.label_smoothing:g})",
        _says("label_smoothing=0.1 or less"),
        lambda clues: clues.survey.criterion,
        rescales=True,
    ),
    Trial(
        "usual logits",
        usual_logits,
        _logits,
        lambda clues: f"logits divided by {clues.survey.logits:.2g}, their standard deviation",
        _says(
            "leave out what scales the logits: a temperature, a factor, the size of the last initial weights"
        ),
        lambda clues: clues.survey.criterion,
        cause=lambda clues: f"the logits are too {'small' if clues.survey.logits < 1 else 'large'}: ",
        rescales=True,
    ),
    Trial(
        "sign",
        gradients.sign_exchanged,
        _sign,
        _says("the sign of the loss flipped"),
        _says("minimise the loss: no minus before the criterion, and no maximize=True"),
        lambda clues: clues.survey.criterion,
        "MS722",
        rescales=True,
    ),
    *map(_rate, (0.1, 0.01, 1e-3, 1e-4, 10, 100, 1000, 10000)),
    Trial(
        BOTH,
        _standardised_slower,
        lambda _: ABSENT,  # run after one of the two has not helped
        lambda clues: f"{_standardised(clues)} and a {_rate_of(clues, 0.1)}",
        lambda clues: f"{_standardise(clues)}; and {_rate_to_write(clues, 0.1)}",
        lambda clues: clues.survey.model,
        "MS726 MS727",
        is_general=True,
    ),
    Trial(
        STRONG,
        optimizers.fresh_adamw,
        lambda clues: _when(False, bool(clues.survey.settings)),
        lambda clues: f"AdamW with a learning rate of 0.001 over all parameters instead of {_recipe(clues)}",
        _says("torch.optim.AdamW(model.parameters(), lr=1e-3)"),
        _optimizer_place,
        "MS723 MS719 MS758 MS744 MS709 MS710 MS704 MS712 MS737 MS717 MS766 MS768",
        is_general=True,
    ),
)


BY_NAME = {one.name: one for one in TRIALS}
CHANGES = {one.name: one.change for one in TRIALS} | {
    DIFFERENCES: examine.gradients_beside_differences,
    HEART: examine.by_heart,
}


def ordered(clues: Clues) -> tuple[list[Trial], list[Trial]]:
    """Return the specific trials that are suspected, those of findings first, and the others that could act."""
    grades = {one.name: one.suspicion(clues) for one in TRIALS}
    for one in TRIALS:
        if grades[one.name] != ABSENT and not one.is_general and clues.has_found(one.codes):
            grades[one.name] = SUSPECT
    specific = [one for one in TRIALS if not one.is_general]
    suspected = [one for one in specific if grades[one.name] == SUSPECT]
    suspected.sort(key=lambda one: not clues.has_found(one.codes))
    return suspected, [one for one in specific if grades[one.name] == PRESENT]


def _far(clues: Clues) -> str:
    far, name = clues.far_weights
    return f" ({name} differs in size by {rounded(far)}x)" if name else ""
