"""One image: its maps, and the receipt of each."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from modelscope_cli.analysis.explaining.layer import UnfitError, no_gradient
from modelscope_cli.analysis.explaining.map import Map
from modelscope_cli.analysis.explaining.methods import LAYER, METHODS, PIXELS, Method
from modelscope_cli.analysis.explaining.receipt.faithfulness import Faithfulness
from modelscope_cli.analysis.explaining.receipt.folder import Lies, lies_of
from modelscope_cli.analysis.explaining.receipt.planted import Term, planted_evidence
from modelscope_cli.analysis.explaining.receipt.randomisation import randomisation
from modelscope_cli.analysis.explaining.receipt.rankings import agreement, spearman
from modelscope_cli.analysis.explaining.receipt.verdict import judged
from modelscope_cli.analysis.explaining.receipt.where import location
from modelscope_cli.analysis.explaining.scored import Scored, Target
from modelscope_cli.analysis.explaining.target import ClassTarget, OtherTarget
from modelscope_cli.hooks.layers import without_gradient
from modelscope_cli.records.receipt import Receipt


@dataclass(frozen=True, slots=True)
class Outcome:
    """A map and what it was held against.

    Attributes:
        shown: the map at the size of the image, `(H, W)` on the CPU.
        seconds: for the map alone.
        units: what the map is in; nothing where it has no unit.
    """

    map: Map
    shown: Tensor
    seconds: float
    units: str
    receipt: Receipt

    def figures(self) -> "Outcome":
        """Return this without its maps and curves, which are many numbers."""
        nothing = self.shown.new_empty(0, 0)
        receipt = replace(self.receipt, curves=())
        return replace(self, map=replace(self.map, cells=nothing), shown=nothing, receipt=receipt)


@dataclass(frozen=True, slots=True)
class Explained:
    """What came of one image: plain numbers and small maps, which are added up later.

    Attributes:
        name: of the file, or a number.
        words: what was explained; `index`: the class, where it is one.
        outcomes: by method. Of all but the first images of a run without maps.
        lies: where the evidence lies by each method.
        unfit: why a method does not fit.
        picture: what the model saw before normalisation, `(3, H, W)` uint8; None where that is not shown.
    """

    name: str
    words: str
    index: int | None
    logit: float
    probability: float
    outcomes: dict[str, Outcome]
    lies: dict[str, Lies]
    unfit: dict[str, str]
    picture: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """One image and what is asked of it.

    Attributes:
        name: of the file, or a number.
        image: `(1, C, H, W)`, prepared.
        target: what is explained; `logit`, `probability`: what the model says of it.
        other: another class, which has to have another map.
        inside: where the object is, `(H, W)` bool; None where nobody said.
        is_normalised: whether zero is the mean colour.
        picture: what the model saw before normalisation, `(3, H, W)` uint8; None of noise and tensors.
    """

    name: str
    scored: Scored
    image: Tensor
    target: ClassTarget | OtherTarget
    logit: float
    probability: float
    other: Target | None = None
    inside: Tensor | None = None
    is_normalised: bool = True
    picture: Tensor | None = None


def explain_image(
    question: Question,
    names: tuple[str, ...],
    model: nn.Module,
    *,
    has_receipt: bool,
    is_asked_for: bool,
    has_maps: bool,
) -> Explained:
    """Explain one image by every method that fits.

    Args:
        is_asked_for: whether the methods were named one by one, and one that does not fit is an error.
        has_maps: whether the maps and the picture are shown, and not only their figures.

    Raises:
        UnfitError: a method that was asked for does not fit, or none does (exit 4).
    """
    outcomes, unfit = _outcomes(question, names, model, has_receipt=has_receipt, is_asked_for=is_asked_for)
    return Explained(
        name=question.name,
        words=question.target.words,
        index=getattr(question.target, "index", None),
        logit=question.logit,
        probability=question.probability,
        outcomes=outcomes if has_maps else {method: one.figures() for method, one in outcomes.items()},
        lies={method: lies_of(outcome.shown, question.inside) for method, outcome in outcomes.items()},
        unfit=unfit,
        picture=question.picture if has_maps else None,
    )


def _outcomes(
    question: Question, names: tuple[str, ...], model: nn.Module, *, has_receipt: bool, is_asked_for: bool
) -> tuple[dict[str, Outcome], dict[str, str]]:
    """Return what came of each method, and of those that do not fit why."""
    scored, image = question.scored, question.image
    size = (image.shape[-2], image.shape[-1])
    outcomes: dict[str, Outcome] = {}
    unfit: dict[str, UnfitError] = {}
    for name in names:
        started = time.perf_counter()
        try:
            found = METHODS[name].explain(scored, image)
            if not found.cells.any():
                raise no_gradient("the image")
        except UnfitError as error:
            if is_asked_for:
                raise _because(error, model) from error
            unfit[name] = error
            continue
        seconds = time.perf_counter() - started
        shown = found.on(size)
        where: dict[str, Any] = location(shown, question.inside)
        outcomes[name] = Outcome(found, shown, seconds, METHODS[name].units, Receipt(**where))
    if not outcomes:
        raise _because(next(iter(unfit.values())), model)
    if has_receipt:
        outcomes = _with_receipts(question, outcomes, model)
    return outcomes, {name: error.message for name, error in unfit.items()}


def _because(error: UnfitError, model: nn.Module) -> UnfitError:
    """Return the error for a model in which nothing can be differentiated, where that is why."""
    quantized = without_gradient(model)
    return error if quantized is None else UnfitError(quantized, "--method occlusion   needs no gradient")


def _with_receipts(
    question: Question, outcomes: Mapping[str, Outcome], model: nn.Module
) -> dict[str, Outcome]:
    scored = question.scored
    faithfulness = Faithfulness(
        scored.probability,
        question.image,
        batch=scored.batch,
        seed=scored.seed,
        is_normalised=question.is_normalised,
    )
    agreed = agreement({name: outcome.shown for name, outcome in outcomes.items()})
    receipts = {}
    for name, outcome in outcomes.items():
        held = _held_against_itself(METHODS[name], question, outcome.map, model)
        receipt = replace(outcome.receipt, **faithfulness.of(outcome.shown), **held, agreement=agreed[name])
        receipts[name] = replace(outcome, receipt=judged(receipt))
    return receipts


def _held_against_itself(method: Method, question: Question, found: Map, model: nn.Module) -> dict[str, Any]:
    """Explain again what must have another map: shuffled weights, another class, planted evidence."""
    scored, image = question.scored, question.image

    def again(changed: Scored) -> Tensor:
        return method.briefly(changed, image).cells

    reference = found.cells if method.brief is None else again(scored)
    randomised = randomisation(model, lambda: again(scored), reference, seed=scored.seed)
    planted = None
    explained = _explained(method, scored, image)
    if explained is not None:

        def with_term(term: Term) -> Tensor:
            return again(replace(scored, term=term))

        planted = planted_evidence(with_term, reference, explained, question.logit, seed=scored.seed)
    return {
        "randomisation": randomised.rho if randomised else None,
        "randomisation_cascade": randomised.cascade if randomised else (),
        "other_class": _for_another(again, question, reference),
        "planted": planted.in_box if planted else None,
        "planted_recovered": planted.recovered if planted and method.units else None,
    }


def _for_another(again: Callable[[Scored], Tensor], question: Question, reference: Tensor) -> float | None:
    if question.other is None:
        return None
    try:
        return spearman(again(replace(question.scored, target=question.other)), reference)
    except UnfitError:  # nothing of that class comes back: no map is another map, but has no ranks
        return None


def _explained(method: Method, scored: Scored, image: Tensor) -> Tensor | None:
    """Return the tensor a method explains, `(1, C, rows, columns)`; None where it has rules of its own."""
    if method.kind == LAYER:
        layer = scored.find(scored, image)
        return layer.layout.maps(scored.at(layer, image).activation)
    return image if method.kind == PIXELS else None
