"""`explain`: the public function, and the totals over images."""

import shlex
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from statistics import fmean, median
from typing import Any, Unpack

import torch
from torch import Tensor

from modelscope_cli.analysis.blocks.blocks import Blocks
from modelscope_cli.analysis.explaining.layer import ModuleNames, find_layer
from modelscope_cli.analysis.explaining.one_image import ImageQuery, ImageResult, MethodResult, explain_image
from modelscope_cli.analysis.explaining.receipt.randomisation import find_head
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
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.fetch import numbers
from modelscope_cli.hooks.forward_passes import opened
from modelscope_cli.hooks.layers import map_tensors, tensors_in
from modelscope_cli.hooks.session import ForwardError
from modelscope_cli.inputs.batch import Batch, ModelSide
from modelscope_cli.inputs.python_inputs import to_inputs
from modelscope_cli.models.request import Model
from modelscope_cli.records.explain import (
    FIGURES,
    MOST_SHOWN,
    PASSED,
    QUICK,
    ExplainedImage,
    ExplainRecord,
    Explanation,
    Receipt,
    ShownMap,
)
from modelscope_cli.records.keywords import OutputBlockKeywords, block_keywords, spelled_out
from modelscope_cli.records.naming import label
from modelscope_cli.records.progress import Progress, counting, spell_time
from modelscope_cli.records.run import Arguments

_MEDIANS = ("adds_up", "adds_up_to", "completeness")


@dataclass(slots=True)
class Totals:
    """Totals over images; stores a few numbers per method and image, and maps of the first images only."""

    images: int = 0
    logit: float = 0.0
    probability: float | None = 0.0
    score_name: str = "logit"
    degenerate: Degenerate = ()
    passes: int = 0
    # words, index: the target; None once two images have different targets
    words: str | None = None
    index: int | None = None
    unfit: dict[str, str] = field(default_factory=dict)
    kept: list[ExplainedImage] = field(default_factory=list)  # the first `MOST_SHOWN`
    _first: dict[str, MethodResult] = field(default_factory=dict)
    _values: dict[str, dict[str, "array[float]"]] = field(default_factory=dict)  # method -> figure
    _judged: dict[str, list[Receipt]] = field(default_factory=dict)

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
        ranked = winner_first({method: outcome.receipt for method, outcome in result.outcomes.items()})
        for method, outcome in result.outcomes.items():
            self._first.setdefault(method, outcome)
            figures = {key: getattr(outcome.receipt, key) for key in FIGURES}
            figures |= {key: getattr(outcome.map, key) for key in ("adds_up", "completeness", "steps")}
            figures |= {"seconds": outcome.seconds, "adds_up_to": outcome.adds_up_to}
            for key, value in figures.items():
                values = self._values.setdefault(method, {}).setdefault(key, array("d"))
                if value is not None:
                    values.append(value)
            answers = Receipt(tests=outcome.receipt.tests, verdict=outcome.receipt.verdict)
            self._judged.setdefault(method, []).append(answers)
        if len(self.kept) < MOST_SHOWN:
            self.kept.append(_shown(result, ranked))

    def rows(self) -> tuple[Explanation, ...]:
        """Return one row per method, the winner first."""
        rows = {method: self._row(method, outcome) for method, outcome in self._first.items()}
        return tuple(rows[method] for method in winner_first({m: row.receipt for m, row in rows.items()}))

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
            adds_up=means["adds_up"],
            completeness=means["completeness"],
            steps=means["steps"],
            seconds=means["seconds"] or 0.0,
            receipt=receipt,
            adds_up_to=means["adds_up_to"],
        )


def _shown(result: ImageResult, methods: Iterable[str]) -> ExplainedImage:
    """Return what the figure needs of an image, with the methods in this order."""
    outcomes = {method: result.outcomes[method] for method in methods}
    return ExplainedImage(
        name=result.name,
        words=result.words,
        index=result.index,
        logit=result.logit,
        probability=result.probability,
        score_name=result.score_name,
        picture=result.picture,
        maps={
            method: ShownMap(one.map.cells, one.shown, one.units, one.receipt)
            for method, one in outcomes.items()
        },
    )


BATCH = 16
_LONG = 10  # seconds from which the cost is announced


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

    The layer is chosen by following one run back from the score. Over several images all numbers are means.

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
    subject.open(batch=1)  # an image is asked many times over before the next
    tell_of_size(subject)
    totals = Totals()
    aim, calls, most = parse_aim(str(target)), _calls(subject, layer), given.request.batch or BATCH
    options = {
        "method": method,
        "target": str(target),
        "layer": layer,
        "receipt": kind,
        "labels": subject.labels,
    }
    alone = "--hook counts what it changes over all images" if hook else ""
    n_seen = 0

    def see(batch: Batch) -> tuple[ImageResult, ...]:
        nonlocal n_seen
        first = batch.numbers[0] if batch.numbers else n_seen
        n_seen += batch.n_images
        return tuple(
            explain_image(
                question,
                names,
                subject.loaded.module,
                receipt=kind,
                is_asked_for=method not in (AUTO, ALL),
                has_maps=n < MOST_SHOWN,
                counted=_counted(
                    subject, question, "passes for the maps", sum(_COSTS.get(name, 1) for name in names)
                ),
                announced=partial(_announced, subject, question) if n == 0 else lambda *_: nullcontext(),
            )
            for n, question in enumerate(ask(batch, first), first)
        )

    with (
        _asking(subject, aim, calls, most) as ask,  # the model is left as it was
        blocks.begin(subject, {**options, "passes": most}, alone),
    ):
        for images in blocks.over("images", see, tuple[ImageResult, ...]):
            for one in images:
                totals.add(one)
    hooks = subject.conclude()
    subject.warn(blocks.warnings())
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
        unfit=tuple(f"{name}: {why}" for name, why in totals.unfit.items()),
        passed=require is None or (verdict is not None and verdict.answer == PASSED),
        hooks=hooks,
        receipt_kind=kind,
        passes=totals.passes,
        score_name=totals.score_name,
    )
    return record.keep(tuple(totals.kept))


@contextmanager
def _announced(subject: Subject, question: ImageQuery, passes: int, pace: float) -> Iterator[None]:
    """Announce the cost of the receipts, from seconds a pass, if it is long; count the passes of one image."""
    seconds = passes * pace
    n_images = subject.inputs.n_images
    if n_images * seconds > _LONG:
        whole = f", about {spell_time(n_images * seconds)} for {n_images:,} images" if n_images > 1 else ""
        note = f"receipt: about {passes:,} passes and {spell_time(seconds)} an image{whole}"
        subject.progress.note(f"{note}; --receipt none is faster")
    with _counted(subject, question, "passes", passes):
        yield


_COSTS = {"occlusion": 100, "integrated-gradients": 31}  # passes, about; of the others 1


@contextmanager
def _counted(subject: Subject, question: ImageQuery, what: str, passes: int) -> Iterator[None]:
    if subject.inputs.n_images != 1:
        yield
        return
    run = question.run
    with counting(subject.progress, what, passes) as run.tick:
        yield
        for _ in range(passes):  # which is an estimate
            run.tick()
    run.tick = lambda: None


def _calls(subject: Subject, layer: str | None) -> tuple[str, ...]:
    """Return the label of the call that a pattern selects; refuse several."""
    if layer is None:
        return ()
    selection = subject.select(layer)
    wanted = selection.wanted or {(name, 0) for name in selection.names or ()}
    labels = tuple(sorted(label(name, call) for name, call in wanted))
    if len(labels) > 1:
        message = f"'--layer {layer}' selects {len(labels)} calls, but a map belongs to one call"
        raise UsageError(message, f"--layer {shlex.quote(labels[-1])}")
    return labels


@contextmanager
def _asking(
    subject: Subject,
    aim: TargetSpec,
    calls: tuple[str, ...],
    most: int,
) -> Iterator[Callable[[Batch, int], Iterator[ImageQuery]]]:
    """Open the model, and yield a function from a batch and its first number to a query per image.

    Args:
        calls: the label of the layer's call; empty to find the layer.
        most: images per pass.
    """
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
            for n, image in enumerate(_images(batch.args)):
                counted = Counted(run)
                with torch.no_grad():
                    output = counted(image.clone())  # which a model may write to
                    n_together = most_together(image)
                    answer = reader.read(output, (image,), 1)
                    settled = answer.settled()
                    subject.check_labels(settled.main.n_classes)
                    target = choose_target(reader, aim, image, answer, settled)
                    logit, probability = numbers([target.score(output), target.probability(output)])()
                has_many = isinstance(target, ClassTarget) and target.n_classes > 1
                yield ImageQuery(
                    batch.names[n] if batch.names else str(first + n),
                    Scored(counted, target, n_together if has_many else 1, find, subject.seed),
                    image,
                    target,
                    logit,
                    probability,
                    look_at(settled),
                    preprocessing is not None and any(preprocessing.mean),
                    pictures[n] if pictures else None,
                    partial(find_head, loaded.module, partial(counted, image)),
                )

        yield ask


def _images(args: Arguments) -> Iterator[Tensor]:
    """Return the images of a batch, each `(1, C, H, W)`."""
    tensors = [tensor for _, tensor in tensors_in(args)]
    is_list = isinstance(args, tuple) and len(args) > 0 and isinstance(args[0], list)
    if is_list and all(tensor.ndim == 3 for tensor in tensors):
        each = [tensor[None] for tensor in tensors]
    else:
        each = list(tensors[0].split(1)) if len(tensors) == 1 else []
    if not each or each[0].ndim != 4 or not each[0].is_floating_point():
        raise CannotRunError(
            "explain needs a model of single images, (N, C, H, W)",
            "modelscope summary --list   lists classifiers",
        )
    return iter(each)
