"""`explain`: the public function, and the totals over images."""

import re
import shlex
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os import PathLike
from statistics import fmean, median
from typing import Any, Unpack

import torch
from torch import Tensor

from modelscope_cli.analysis.blocks.blocks import Blocks
from modelscope_cli.analysis.explaining.layer import ModuleNames, find_layer
from modelscope_cli.analysis.explaining.one_image import ImageQuery, ImageResult, MethodResult, explain_image
from modelscope_cli.analysis.explaining.receipt.faithfulness import COVERED
from modelscope_cli.analysis.explaining.receipt.verdict import together, winner_first
from modelscope_cli.analysis.explaining.request import (
    ALL,
    AUTO,
    METHOD_NAMES,  # noqa: F401, of the docstring
    check_requirement,
    choose_methods,
    receipt_kind,
)
from modelscope_cli.analysis.explaining.scored import Counted, ExplainedLayer, Scored
from modelscope_cli.analysis.explaining.target import ClassTarget, choose_target
from modelscope_cli.analysis.outputs.degenerate import Degenerate, look_at
from modelscope_cli.analysis.outputs.read import OutputReader
from modelscope_cli.analysis.outputs.target_spec import PREDICTED, TargetSpec, parse_aim
from modelscope_cli.analysis.predictions.preprocessing_check import tell_of_size
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.errors import CannotRunError, UsageError, nearest_names
from modelscope_cli.hooks.fetch import numbers
from modelscope_cli.hooks.forward_passes import opened
from modelscope_cli.hooks.layers import list_layers, map_tensors, tensors_in
from modelscope_cli.hooks.session import ForwardError
from modelscope_cli.inputs.batch import Batch, ModelSide
from modelscope_cli.inputs.grammar import by
from modelscope_cli.inputs.python_inputs import to_inputs
from modelscope_cli.models.request import Model
from modelscope_cli.records.explain import (
    FAILED,
    FIGURES,
    MOST_SHOWN,
    NONE,
    PASSED,
    QUICK,
    SCATTERED,
    ExplainedImage,
    ExplainRecord,
    Explanation,
    Receipt,
)
from modelscope_cli.records.keywords import OutputBlockKeywords, block_keywords, spelled_out
from modelscope_cli.records.naming import label
from modelscope_cli.records.progress import Progress, counting
from modelscope_cli.records.run import Arguments

_MEDIANS = ("adds_up_to", "completeness")


@dataclass(slots=True)
class Totals:
    """Totals over images; stores a few numbers per method and image, and maps of the first images only."""

    images: int = 0
    logit: float = 0.0
    probability: float | None = 0.0
    score_name: str = "logit"
    degenerate: Degenerate = field(default_factory=Degenerate)
    passes: int = 0
    # words, index: the target; None once two images have different targets
    words: str | None = None
    index: int | None = None
    unfit: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)  # the first `MOST_SHOWN`
    kept: list[ExplainedImage] = field(default_factory=list)  # the first `MOST_SHOWN`
    _first: dict[str, MethodResult] = field(default_factory=dict)
    _values: dict[str, dict[str, "array[float]"]] = field(default_factory=dict)  # method -> figure
    _judged: dict[str, list[Receipt]] = field(default_factory=dict)
    _places: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, result: ImageResult) -> None:
        is_same = self.images == 0 or self.words == result.words
        self.words, self.index = (result.words, result.index) if is_same else (None, None)
        self.images += 1
        self.logit += result.logit
        both = self.probability, result.probability
        self.probability = None if None in both else sum(filter(None, both))
        self.score_name = result.score_name
        self.degenerate += result.degenerate
        self.passes += result.passes
        self.unfit = {**result.unfit, **self.unfit}
        for method, outcome in result.maps.items():
            self._first.setdefault(method, outcome)
            self._places.setdefault(method, Counter()).update([outcome.where.place] if outcome.where else [])
            failed = [one.test for one in outcome.receipt.tests if one.answer == FAILED]
            self.failures += [f"{test} of {method} on {result.name}" for test in failed]
            figures = {key: getattr(outcome.receipt, key) for key in FIGURES}
            figures |= {key: getattr(outcome, key) for key in ("adds_up_to", "agreement")}
            figures["completeness"] = outcome.map.completeness
            for key, value in figures.items():
                values = self._values.setdefault(method, {}).setdefault(key, array("d"))
                if value is not None:
                    values.append(value)
            answers = Receipt(tests=outcome.receipt.tests, verdict=outcome.receipt.verdict)
            self._judged.setdefault(method, []).append(answers)
        del self.failures[MOST_SHOWN:]
        if len(self.kept) < MOST_SHOWN:
            self.kept.append(result)

    def rows(self) -> tuple[Explanation, ...]:
        """Return one row per method, the winner first."""
        rows = {method: self._row(method, outcome) for method, outcome in self._first.items()}
        scattered = {method for method, places in self._places.items() if 2 * places[SCATTERED] > self.images}
        ranked = winner_first({method: row.receipt for method, row in rows.items()}, scattered)
        return tuple(rows[method] for method in ranked)

    def _row(self, method: str, first: MethodResult) -> Explanation:
        means: dict[str, Any] = {
            key: (median if key in _MEDIANS else fmean)(values) if values else None
            for key, values in self._values[method].items()
        }
        receipt = first.receipt
        if self.images > 1:
            receipt = together(Receipt(**{key: means[key] for key in FIGURES}), self._judged[method])
        return Explanation(
            method=method,
            layer=first.map.layer,
            why=first.map.why,
            completeness=means["completeness"],
            receipt=receipt,
            adds_up_to=means["adds_up_to"],
            where=first.where if self.images == 1 else None,
            places=dict(self._places[method].most_common()),
            agreement=means["agreement"],
        )


BATCH = 16


@spelled_out
def explain(
    model: "Model" = "resnet34",
    inputs: Any = None,
    *,
    method: str = AUTO,
    target: str | int = PREDICTED,
    layer: str | None = None,
    receipt: str | bool = QUICK,
    require: str | None = None,
    hook: str | Sequence[str] = (),
    out: str | PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
    **keywords: Unpack[OutputBlockKeywords],
) -> ExplainRecord:
    """Return which parts of an image are evidence for a class, by several methods, and how reliable each map is.

    The layer is found by tracing one pass back from the score. Over several images, all numbers are means.

    Args:
        model: a name or file as on the command line, an `nn.Module`, or the result of `load`.
        inputs: paths, PIL images, tensors, a `DataLoader`; None for seeded noise of the model's input size.
        method: the methods: auto (a few that complement each other), all (all that apply), or {METHOD_NAMES}.
        target: which output value to explain: a class index or label, predicted, box:N, or mask:CLASS.
        layer: the layer to explain.
        receipt: whether to test the maps: quick (do they repeat, do they depend on the image and on the head, do
            they mark what the score depends on) or none. In Python, True is quick and False none.
        require: exit with 1 unless the best map passed.
        hook: changes to values during the pass, in the syntax of `--hook`.
        out: folder for every finished block, over several image files; `force` allows one that is not empty.

    Raises:
        UsageError: a keyword, a class, a layer or a combination that is not valid (exit 2 on the command line).
        CannotRunError: the model cannot be loaded, raises an error or is not one of images, no gradient comes back,
            or a file cannot be read or written (exit 4).
    """
    names = choose_methods(method)
    kind = receipt_kind(receipt)
    check_requirement(require, kind)
    given = to_inputs(inputs, keywords)
    blocks = Blocks(out, force=force, **block_keywords(keywords))
    subject = Subject(
        "explain",
        model,
        given,
        keywords,
        hook=hook,
        labels=keywords.get("labels"),
        needs_weights=require is not None,
        progress=progress,
    )
    try:
        subject.open(batch=1)  # an image is asked many times over before the next
    except UsageError as error:
        if str(error.hint).count("--input ") < 2:
            raise
        message = f"{error.message}, but explain takes models with one input, an image"
        raise UsageError(message, "modelscope ablate --help   takes models with several inputs") from error
    tell_of_size(subject)
    totals = Totals()
    aim, calls, most = parse_aim(target), _calls(subject, layer), given.request.batch or BATCH
    options: dict[str, Any] = {"method": method, "target": str(target), "layer": layer, "receipt": kind}
    options |= {"labels": subject.labels, "passes": most}
    alone = "--hook counts what it changes over all images" if hook else ""
    n_seen, module, is_named = 0, subject.loaded.module, method not in (AUTO, ALL)

    def see(batch: Batch) -> tuple[ImageResult, ...]:
        nonlocal n_seen
        first = batch.numbers[0] if batch.numbers else n_seen
        n_seen += batch.n_images
        results = []
        for n, question in enumerate(ask(batch, first), first):
            with _counted(subject, question, names, kind):
                one = explain_image(
                    question, names, module, receipt=kind, is_asked_for=is_named, has_maps=n < MOST_SHOWN
                )
            results.append(one)
        return tuple(results)

    # The model is left as it was
    with _asking(subject, aim, calls, most) as ask, blocks.begin(subject, options, alone):
        for images in blocks.over("images", see, tuple[ImageResult, ...]):
            for one in images:
                totals.add(one)
    hooks = subject.conclude()
    subject.tell_if_degenerate(totals.degenerate)
    rows = totals.rows()
    verdict = rows[0].receipt.verdict
    record = ExplainRecord(
        run=subject.run(),
        target=totals.words if totals.words is not None else PREDICTED,
        target_index=totals.index,
        logit=totals.logit / totals.images,
        probability=None if totals.probability is None else totals.probability / totals.images,
        images=totals.images,
        rows=rows,
        failures=tuple(totals.failures) if totals.images > 1 else (),
        unfit=tuple(f"{name}: {why}" for name, why in totals.unfit.items()),
        passed=require is None or (verdict is not None and verdict.answer == PASSED),
        hooks=hooks,
        receipt_kind=kind,
        passes=totals.passes,
        score_name=totals.score_name,
    )
    return record.keep(tuple(totals.kept))


# Passes for a map, and to make it again; of the others 1
_COSTS = {"occlusion": (100, 100), "integrated-gradients": (31, 3)}


@contextmanager
def _counted(subject: Subject, question: ImageQuery, names: Sequence[str], receipt: str) -> Iterator[None]:
    """Show the passes of a single image, of about as many as there will be."""
    if subject.inputs.n_images != 1:
        yield
        return
    for_maps, again = map(sum, zip(*(_COSTS.get(name, (1, 1)) for name in names), strict=True))
    passes = for_maps + (0 if receipt == NONE else COVERED + 4 * again)
    run = question.scored.run
    with counting(subject.progress, "passes", passes) as run.tick:
        yield


def _calls(subject: Subject, layer: str | None) -> tuple[str, ...]:
    """Return the label of the call that a pattern selects; refuse several."""
    if layer is None:
        return ()
    try:
        selection = subject.select(layer)
    except UsageError as error:
        leaves = [one for one, _ in list_layers(subject.loaded.module) if one.is_leaf and one.name]
        names = [
            one.name for one in leaves if not re.search("Linear|Pool|Dropout|Flatten|Identity", one.type)
        ]
        if "matches no layer" in error.message and names:  # whose outputs have positions
            error.hint = f"--layer {shlex.quote((nearest_names(layer, names, n=1) or names[-1:])[0])}"
        raise
    wanted = selection.wanted or {(name, 0) for name in selection.names or ()}
    labels = tuple(sorted(label(name, call) for name, call in wanted))
    if len(labels) > 1:
        message = f"'--layer {layer}' selects {len(labels)} calls, but a map belongs to one call"
        raise UsageError(message, f"--layer {shlex.quote(labels[-1])}")
    return labels


@contextmanager
def _asking(
    subject: Subject, aim: TargetSpec, calls: tuple[str, ...], most: int
) -> Iterator[Callable[[Batch, int], Iterator[ImageQuery]]]:
    """Open the model, and yield a function from a batch and its first number to a query per image."""
    loaded, names = subject.loaded, ModuleNames()
    reader, side = OutputReader.of(loaded), ModelSide(loaded.family, loaded.device, loaded.dtype)
    layers: dict[tuple[int, ...], ExplainedLayer] = {}

    def find(scored: Scored, image: Tensor) -> ExplainedLayer:
        """Find the layer once per image size."""
        if image.shape not in layers:
            layers[image.shape] = find_layer(replace(scored, run=Counted(run)), names, image, calls)
        return layers[image.shape]

    interventions = subject.bind().interventions
    preprocessing = subject.inputs.preprocessing

    def arrange(images: Tensor) -> Arguments:
        if loaded.family == "detection":
            return side.arrange([images])
        arguments: Arguments = map_tensors(subject.first.args, lambda path, tensor: images)
        return arguments

    together = 0

    def most_together(image: Tensor) -> int:
        """Return the number of images per pass: one if the model does not take more, as some exported ones."""
        nonlocal together
        if not together:
            together = most
            if most > 1:
                try:
                    run(image.expand(2, *image.shape[1:]).clone())
                except ForwardError:
                    together = 1
        return together

    with opened(loaded.module, arrange, interventions, [names]) as run:

        def ask(batch: Batch, first: int) -> Iterator[ImageQuery]:
            pictures = batch.pictures
            for n, image in enumerate(_images(batch)):
                counted = Counted(run)
                with torch.no_grad():
                    output = counted(image.clone())  # which a model may write to
                    n_together = most_together(image)
                    answer = reader.read(output, (image,), 1)
                    settled = answer.settled()
                    name = aim.name if aim.kind == "class" else ""
                    subject.check_labels(settled.n_named, name, settled.named)
                    target = choose_target(reader, aim, image, answer, settled)
                    if target.is_at_peak:
                        chooses = "--target CLASS chooses one where --output-kind reads classes"
                        subject.progress.note(
                            f"{settled.note}; no class is chosen, so the whole output is explained: {chooses}"
                        )
                    elif n == first == 0 and settled.note is not None:
                        subject.progress.note(settled.note)
                    logit, probability = numbers([target.score(output), target.probability(output)])()
                    is_off = getattr(target, "has_several", False) and probability < 0.5
                    if n == first == 0 and is_off and aim.kind == PREDICTED:
                        subject.progress.note(
                            f"no label is predicted, so the one with the highest score is explained: {target.words}"
                        )
                has_many = isinstance(target, ClassTarget) and target.n_classes > 1
                yield ImageQuery(
                    batch.names[n] if batch.names else str(first + n),
                    Scored(counted, target, n_together if has_many else 1, find, subject.seed),
                    image,
                    logit,
                    probability,
                    look_at(settled),
                    preprocessing is not None and any(preprocessing.mean),
                    pictures[n] if pictures else None,
                )

        yield ask


def _images(batch: Batch) -> Iterator[Tensor]:
    """Return the images of a batch, each `(1, C, H, W)`."""
    args, tensors = batch.args, [tensor for _, tensor in tensors_in(batch.args)]
    is_list = isinstance(args, tuple) and len(args) > 0 and isinstance(args[0], list)
    if is_list and all(tensor.ndim == 3 for tensor in tensors):
        each = [tensor[None] for tensor in tensors]
    else:
        each = list(tensors[0].split(1)) if len(tensors) == 1 else []
    if not each or each[0].ndim != 4 or not each[0].is_floating_point():
        given = " and ".join(by(tensor.shape) for tensor in tensors)
        message = f"explain takes models with one input, images (N, C, H, W), but the input is {given}"
        raise CannotRunError(message, "modelscope ablate ...   measures the effect of each layer")
    if each[0][0, 0].numel() == 1:
        larger = "--size 224" if batch.pictures else f"--input-shape 1,{each[0].shape[1]},224,224"
        raise CannotRunError("an image of one pixel has no parts to explain", larger)
    return iter(each)
