"""The maps of one image, and the receipt of each."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.explaining.layer import Map, no_gradient
from modelscope_cli.analysis.explaining.methods import LAYER, METHODS
from modelscope_cli.analysis.explaining.receipt.faithfulness import Faithfulness
from modelscope_cli.analysis.explaining.receipt.randomisation import Maps, find_head, head_randomisation
from modelscope_cli.analysis.explaining.receipt.rankings import spearman
from modelscope_cli.analysis.explaining.receipt.verdict import judged
from modelscope_cli.analysis.explaining.scored import Scored, UnfitError, ZeroGradientError
from modelscope_cli.analysis.explaining.target import ClassTarget
from modelscope_cli.analysis.explaining.where import agreement, evidence_box
from modelscope_cli.analysis.outputs.degenerate import Degenerate
from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.fetch import numbers
from modelscope_cli.hooks.layers import without_gradient
from modelscope_cli.records.explain import NONE, ExplainedImage, Receipt, ShownMap
from modelscope_cli.records.naming import percent


@dataclass(frozen=True, slots=True)
class MethodResult(ShownMap):
    """A map and its tests."""

    map: Map
    adds_up_to: float | None = None  # the sum of a map in logits over its expected value
    agreement: float | None = None  # see `Explanation`

    def figures(self) -> "MethodResult":
        """Return a copy without maps, which are large."""
        nothing = self.shown.new_empty(0, 0)
        return replace(self, map=replace(self.map, cells=nothing, brief=None), cells=nothing, shown=nothing)


@dataclass(frozen=True, slots=True)
class ImageResult(ExplainedImage):
    """The explanation of one image: plain numbers and small maps, which are stored for the first images only."""

    maps: dict[str, MethodResult]
    unfit: dict[str, str]  # why methods do not fit, by method
    degenerate: Degenerate
    passes: int  # number of images that went through the model


@dataclass(frozen=True, slots=True)
class ImageQuery:
    """One image to explain."""

    name: str  # the file's name, or a number
    scored: Scored
    image: Tensor  # `(1, C, H, W)`, preprocessed
    # logit, probability: the model's output for the target
    logit: float
    probability: float
    degenerate: Degenerate
    is_normalised: bool = True  # whether zero is the mean colour
    # The image before normalisation, `(3, H, W)` uint8; None for noise and tensors
    picture: Tensor | None = None


def explain_image(
    question: ImageQuery,
    names: tuple[str, ...],
    model: nn.Module,
    *,
    receipt: str,
    is_asked_for: bool,
    has_maps: bool,
) -> ImageResult:
    """Explain one image by every method that fits.

    Args:
        receipt: `quick` or `none`.
        is_asked_for: whether the methods were named, so that one that does not fit is an error.
        has_maps: whether to return maps and image, and not only figures.
    """
    outcomes, unfit = _outcomes(question, names, model, is_asked_for=is_asked_for)
    if receipt != NONE:
        outcomes = _with_receipts(question, outcomes, model)
    return ImageResult(
        name=question.name,
        words=question.scored.target.words,
        index=getattr(question.scored.target, "index", None),
        logit=question.logit,
        probability=question.probability if question.scored.target.has_probability else None,
        maps=outcomes if has_maps else {method: one.figures() for method, one in outcomes.items()},
        unfit=unfit,
        degenerate=question.degenerate,
        picture=question.picture if has_maps else None,
        passes=question.scored.run.images,
        score_name=question.scored.target.score_name,
    )


def _outcomes(
    question: ImageQuery, names: tuple[str, ...], model: nn.Module, *, is_asked_for: bool
) -> tuple[dict[str, MethodResult], dict[str, str]]:
    """Return the result of each method, and why the others do not fit."""
    scored, image = question.scored, question.image
    size = (image.shape[-2], image.shape[-1])
    outcomes: dict[str, MethodResult] = {}
    unfit: dict[str, UnfitError] = {}
    flat = {name for name in names if METHODS[name].is_local and question.scored.target.is_at_peak}
    for name in sorted(names, key=flat.__contains__):
        try:
            if name in flat:  # but for rounding, whatever the image
                message = "the similarity of the output to itself is at its maximum, so its gradient is zero"
                raise UnfitError(message, "--method integrated-gradients,occlusion")
            explanation = METHODS[name].explain(scored, image)
            if not explanation.cells.any():
                raise no_gradient("the image")
        except UnfitError as error:
            if is_asked_for:
                raise _because(error, model) from error
            unfit[name] = error
            continue
        full_size = explanation.on(size)
        units = METHODS[name].units and question.scored.target.score_name.replace("logit", "logits")
        box = evidence_box(full_size)
        outcomes[name] = MethodResult(explanation.cells, full_size, units, Receipt(), box, explanation)
    if not outcomes:
        raise _because(next(iter(unfit.values())), model)
    in_logits = [n for n, one in outcomes.items() if METHODS[n].units and (one.map.completeness or 0.0) <= 1]
    # The logit at the baseline of a map in logits: a layer or an image of zeros
    kinds = {METHODS[name].kind for name in in_logits}
    baselines = (
        scored.at(scored.find(scored, image), image, is_blank=True).score
        if kind == LAYER
        else scored.scores(torch.zeros_like(image))
        for kind in kinds
    )
    blanks = dict(zip(kinds, numbers(baselines)(), strict=True))
    agreements = agreement({name: outcome.cells for name, outcome in outcomes.items()})
    for name, outcome in outcomes.items():
        due = question.logit - blanks[METHODS[name].kind] if name in in_logits else 0.0
        share = float(outcome.cells.double().sum()) / due if due else None
        outcomes[name] = replace(outcome, adds_up_to=share, agreement=agreements[name])
    return outcomes, {name: error.message for name, error in unfit.items()}


def _because(error: UnfitError, model: nn.Module) -> UnfitError:
    """Return the error for a model that cannot be differentiated if it is one, else the original error."""
    quantized = without_gradient(model)
    if quantized is not None:
        return UnfitError(quantized, "--method occlusion   needs no gradient")
    zeros = [name for name, one in model.named_parameters() if one.ndim > 1 and not one.any()]
    if zeros and isinstance(error, ZeroGradientError):
        message = f"every value of '{zeros[-1]}' is zero, so the score does not depend on the image"
        return UnfitError(
            message, "--checkpoint FILE   with trained weights; for torchvision models also --weights DEFAULT"
        )
    return error


_LEAST_CELLS = 9  # of fewer, the order may stay the same when half of the image is covered


def _with_receipts(
    question: ImageQuery, outcomes: Mapping[str, MethodResult], model: nn.Module
) -> dict[str, MethodResult]:
    scored, image = question.scored, question.image
    faithfulness = Faithfulness(
        scored.probability,
        image,
        batch=scored.batch,
        seed=scored.seed,
        is_normalised=question.is_normalised,
        whole=question.probability,
    )

    def again(image: Tensor = image) -> Maps:
        maps: dict[str, Tensor] = {}
        for name in outcomes:
            with suppress(CannotRunError):  # for example because the gradient is zero
                maps[name] = METHODS[name].briefly(scored, image)
        return maps

    repeated, elsewhere = again(), again(faithfulness.left_half)
    elsewhere = {name: one for name, one in elsewhere.items() if one.numel() >= _LEAST_CELLS}
    head = find_head(model, partial(scored.scores, image))
    references = {n: one.cells if one.map.brief is None else one.map.brief for n, one in outcomes.items()}
    is_linear = all(METHODS[name].units for name in outcomes)  # maps in logits are linear in them
    score = partial(scored.scores, image) if is_linear else None
    randomised = {} if head is None else head_randomisation(head, again, references, score, seed=scored.seed)
    unseen = _unseen(question)
    reasons = {"covering": unseen or faithfulness.unmade or "the map is flat or not finite"}
    reasons |= dict.fromkeys(("repeat", "image"), "the map to compare with is missing, flat or not finite")
    reasons["head"] = (
        "the model with a random head has no map" if randomised else "the score is the same for any weights"
    )
    receipts = {}
    for name, outcome in outcomes.items():
        figures: dict[str, Any] = {} if unseen else faithfulness.covering(outcome.shown)
        for key, others in (("repeatability", repeated), ("other_image", elsewhere)):
            figures[key] = spearman(others[name], references[name]) if name in others else None
        figures["head_randomisation"] = randomised.get(name)
        few = {"image": f"the map has fewer than {_LEAST_CELLS} cells"}
        why = reasons | few if references[name].numel() < _LEAST_CELLS else reasons
        receipt = judged(replace(outcome.receipt, **figures), why, outcome.map.completeness)
        receipts[name] = replace(outcome, receipt=receipt)
    return receipts


def _unseen(question: ImageQuery) -> str:
    """Say why covering cannot be tested: the class is improbable, and not the predicted one; empty if it can."""
    target = question.scored.target
    if not isinstance(target, ClassTarget) or target.is_predicted:
        return ""
    words = f"another class is predicted, and this one is below {percent(target.least_probability)}"
    return words if question.probability < target.least_probability else ""
