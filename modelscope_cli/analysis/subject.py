"""The model, inputs and hooks of an analysis, and the header of its record."""

import copy
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedBuffer, is_lazy

from modelscope_cli.analysis.activations.batch_norm import never_saw_a_batch
from modelscope_cli.analysis.health.lost_signal import lost_signal
from modelscope_cli.analysis.interventions import bind, conclude, read_hooks
from modelscope_cli.analysis.outputs.degenerate import Degenerate, look_at, message_of
from modelscope_cli.analysis.outputs.read import OutputReader
from modelscope_cli.analysis.outputs.target_spec import name_class
from modelscope_cli.analysis.supported import check_onnx
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.binding import BoundHooks
from modelscope_cli.hooks.layers import cloned, not_looked_into, tensors_in
from modelscope_cli.hooks.selection import Selection, select, uncalled
from modelscope_cli.hooks.session import ForwardError, HookSession
from modelscope_cli.inputs.batch import Batch, Inputs, shapes_of
from modelscope_cli.inputs.forward_signature import check_call
from modelscope_cli.inputs.model_config import (
    configured_labels,
    configured_preset,
    natural_shapes,
    size_by_trial,
)
from modelscope_cli.inputs.python_inputs import PythonInputs, open_inputs, to_inputs
from modelscope_cli.inputs.truth import LabelsError, class_folders, folders_of_classes, named_labels
from modelscope_cli.lean import without_dynamo
from modelscope_cli.models.architecture import inside_notes, model_inside, seeded
from modelscope_cli.models.load import family_of_module, load_model
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.models.request import Model, ModelRequest, as_request, seed_of
from modelscope_cli.records.keywords import DEFAULTS, OUTPUT_KINDS, Keywords, ModelKeywords, as_tuple
from modelscope_cli.records.naming import ENOUGH_ALIKE, counted, dtype_name, with_article
from modelscope_cli.records.progress import SILENT, Progress, counting, tell, tell_more
from modelscope_cli.records.refusals import check_word
from modelscope_cli.records.run import (
    ALIKE,
    SATURATED,
    Arguments,
    HookReport,
    InputInfo,
    Invocation,
    ModelInfo,
    Notice,
    Run,
    WeightsInfo,
    invocation,
)

T = TypeVar("T")
_JUDGED = ("grads", "explain", "ablate", "predict")  # where scores may say nothing


class Subject:
    """A model, its inputs and its hooks."""

    def __init__(
        self,
        command: str,
        model: "Model",
        inputs: Any = None,
        keywords: Keywords | None = None,
        *,
        hook: str | Sequence[str] = (),
        labels: str | os.PathLike[str] | Sequence[str] | None = None,
        has_backward: bool = False,
        needs_weights: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Check the arguments, then load the model; `needs_weights`: as in `ModelRequest`."""
        keywords = keywords or {}
        self.command = command
        self.progress = progress or SILENT
        self._invocation = invocation()
        self.given = to_inputs(inputs, keywords)  # the requested inputs
        is_theirs = isinstance(model, (LoadedModel, nn.Module))
        # The request for the model; None for a module passed in
        self.request = (
            None if is_theirs else replace(as_request(model, keywords), needs_weights=needs_weights)
        )
        self.seed = seed_of(model, keywords)
        strict = model.strict if isinstance(model, ModelRequest) else keywords.get("strict")
        self._is_strict = strict is True
        # The names of the classes that were given, and what to call them in a message
        self.labels, self.source_of_labels = named_labels(labels)
        self._hooks = read_hooks(as_tuple(hook), command, has_backward=has_backward)
        kind = str(keywords.get("output_kind", "auto"))
        check_word("output_kind", kind.partition(":")[0], OUTPUT_KINDS)
        # The model; a module passed in is neither moved nor changed
        self.loaded = load(self.request or model, keywords, self.progress)
        if kind != "auto":
            self.loaded = replace(self.loaded, output_kind=kind)
        self._has_labels = bool(self.loaded.categories)
        if self.labels is not None:
            self.loaded = replace(self.loaded, categories=self.labels)
        if self.loaded.info.source == "onnx":
            check_onnx(command, self.loaded.info.name)
        # Reasons why the result may be unreliable, in the order found
        self.warnings: list[Notice] = list(self.loaded.warnings)
        self.bound = BoundHooks()  # the hooks; none before `bind`
        self.inputs: Inputs  # set by `open`
        self.first: Batch  # their first batch

    def open(self, *, is_training: bool = False, batch: int | None = None, is_shuffled: bool = False) -> None:
        """Open the inputs, by default `batch` images in one forward; named inputs are always one forward.

        For training the noise batch is 2, as batch norm needs more than one value per channel.
        `is_shuffled`: whether each batch mixes the files of all folders, where statistics of batches matter.
        """
        request = self.given.request
        if request.batch is None and self.given.named is None:
            if self.given.is_noise and not request.shapes and is_training:
                request = replace(request, batch=2)
            elif batch is not None and not self.given.is_noise:
                request = replace(request, batch=batch)
        request = replace(request, is_strict=self._is_strict, is_shuffled=is_shuffled)
        self.inputs = open_for(replace(self.given, request=request), self.loaded, self.progress)
        self.first = first_of(self.inputs, self.loaded)
        if self.inputs.info.source == "tensor" or request.value_options():
            tell(self.progress, notes_on_bytes(self.first))
        self.loaded = with_shapes(self.loaded, self.first.args, self.seed, self.progress)
        may_be_random = self.request is not None and self.loaded.info.weights.resolved in ("random", "own")
        if self.command in _JUDGED and may_be_random and not is_training:
            self._fill_batch_norms()

    def select(self, layer: str | Sequence[str], exclude: str | Sequence[str] = ()) -> Selection:
        """Find the selected calls; see `hooks.selection.select`."""
        with without_dynamo(self.loaded.info.source == "zoo"):
            selection = select(
                self.loaded.module,
                as_tuple(layer),
                as_tuple(exclude),
                self.first.args,
                is_feedforward=self.loaded.is_feedforward,
            )
        tell(self.progress, selection.notes)
        return selection

    def uncalled(self, selection: Selection, seen: Iterable[str]) -> tuple[str, ...]:
        """Return the selected layers that were not called; see `hooks.selection.uncalled`."""
        return uncalled(self.loaded.module, selection, seen, self.first.args)

    def bind(self) -> BoundHooks:
        """Bind the hooks; see `analysis.interventions.bind`."""
        self.bound = bind(self._hooks, self.loaded, self.first.args, self.seed, self.progress)
        return self.bound

    def warn(self, warnings: Iterable[Notice]) -> None:
        """Print warnings and keep them for the record."""
        for warning in warnings:
            self.progress.warn(warning.message)
            self.warnings.append(warning)

    def check_labels(self, n_classes: int | None, target: str = "", unit: str = "classes") -> None:
        """Refuse given labels that are not one for each class, and a target whose label only a folder has."""
        is_fit = self.labels is None or n_classes in (None, len(self.labels))
        if is_fit and (self.loaded.categories or not target):
            return
        folders = [] if self._has_labels else folders_of_classes(self.inputs.files, n_classes or 0)
        option = f"--labels {shlex.quote(','.join(folders))}"
        if self.labels is not None and not is_fit:
            has = f"{self.source_of_labels} has {counted(len(self.labels), 'label')}"
            hint = f"{option}   if this is their order" if folders else "leave out --labels"
            raise LabelsError(f"{has}, but the model has {n_classes} {unit}", hint)
        if target in folders and not target.isdecimal():
            message = f"the classes of this model have no labels, so '--target {target}' is not known"
            raise UsageError(message, f"{option} --target {shlex.quote(target)}   if this is their order")

    def tell_if_degenerate(
        self, judged: Degenerate, best: Sequence[int] = (), least: float | None = None
    ) -> None:
        """Warn if the scores of all images say nothing, if any are not finite, or if all images of several folders
        have the same best class (`best`: those of the predictions), and name the layer that causes it.

        `least`: otherwise warn if the output for another image differs by no more than this, and a layer causes it.
        """
        code, folders = judged.told(), class_folders(self.inputs.files)
        is_one = len({*best}) == 1 and len(best) >= ENOUGH_ALIKE and len(folders) > 1
        is_random, lost = self.loaded.info.weights.resolved == "random", None
        if (code or ((is_one or least is not None) and not is_random)) and not self._hooks:
            lost = lost_signal(self.loaded.module, self.first, self.seed)
        if code:
            message = message_of(code, judged.codes.count(code))
            message += f": {lost[1]}" if lost is not None and code != SATURATED else ""
            message += "; try --checkpoint FILE with trained weights" * is_random
            self.warn([Notice(code, message)])
            if code != SATURATED:
                return
        if is_one:
            name = name_class(best[0], self.loaded.categories)
            message = f"all {len(best)} images of {len(folders)} folders are predicted as class {name}"
            cause = "try another --size, or predict --doctor" if lost is None else lost[1]
            self.warn([Notice("one_class", f"{message}: {cause}")])
        elif lost is not None and least is not None and lost[2] <= least:
            code, depends = ("scores_alike", "hardly depends") if lost[2] else (ALIKE, "does not depend")
            self.warn([Notice(code, f"the output {depends} on the image: {lost[1]}")])

    def _fill_batch_norms(self) -> None:
        """Give batch norms of random weights the statistics of the first batch if the scores say nothing else: with
        their initial ones the values grow or vanish from layer to layer."""
        if not never_saw_a_batch(self.loaded.module)():
            return
        args, filled = cloned(self.first.args), []
        with suppress(CannotRunError), HookSession(self.loaded.module) as session:
            first = OutputReader.of(self.loaded).read(session.run(args), args)
            if not all(look_at(first, self.first.args).codes):
                return
        with suppress(ForwardError), HookSession(self.loaded.module) as session:  # which puts all back
            norms = [one for one in self.loaded.module.modules() if isinstance(one, _BatchNorm)]
            for norm in norms:
                norm.train().momentum = None  # an average over the calls of a norm
            session.run(cloned(self.first.args))
            filled = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]
        for buffer, value in filled:
            buffer.copy_(value)
        message = "the batch norms use the statistics of the first batch: the initial ones say nothing"
        self.warn([Notice("first_batch_statistics", message)] * bool(filled))

    def conclude(self) -> tuple[HookReport, ...]:
        """Write what the hooks saved and return their reports; the last step before the record.

        Also reports broken images.
        """
        reports, warnings = conclude(self.bound, self.progress)
        self.warnings += (*warnings, *tell_of_images(self.inputs, self.progress))
        return reports

    def track(self, batches: Iterable[T], what: str) -> Iterator[T]:
        """Yield the batches and show how many images are done."""
        return by_image(self.progress, batches, what, self.inputs.n_listed)

    def run(self) -> Run:
        return header(self.command, self.loaded, self.inputs.info, self.seed, self.warnings, self._invocation)


def tell_of_images(inputs: Inputs, progress: Progress) -> tuple[Notice, ...]:
    """Warn of broken images after the last batch."""
    warnings = inputs.feed.broken.warnings(inputs.n_listed)
    tell(progress, (), warnings)
    return warnings


def by_image(progress: Progress, batches: Iterable[T], what: str, n_images: int) -> Iterator[T]:
    """Yield batches and show how many images are done, broken ones included."""
    with counting(progress, what if what == "images" else f"{what}, images", n_images) as step:
        for batch in batches:
            yield batch
            for _ in range(getattr(batch, "n_images", 1) + len(getattr(batch, "broken", ()))):
                step()


def header(
    command: str,
    loaded: LoadedModel,
    given: InputInfo | None,
    seed: int,
    warnings: Iterable[Notice] = (),
    invoked: Invocation | None = None,
) -> Run:
    """Return the header of a record; without `invoked`, that of a call from Python."""
    return Run.of(
        command,
        loaded.info,
        given,
        device=str(loaded.device),
        dtype=dtype_name(loaded.dtype),
        seed=seed,
        warnings=warnings,
        invoked=invoked,
    )


def load(model: "Model", keywords: ModelKeywords, progress: Progress) -> LoadedModel:
    """Load a named model, or describe a module passed in; print notes and warnings."""
    if isinstance(model, LoadedModel):
        refuse_idle(keywords)
        return model
    if isinstance(model, nn.Module):
        refuse_idle(keywords)
        loaded = describe_module(model)
    else:
        loaded = load_model(as_request(model, keywords))
    tell(progress, (*loaded.notes, *not_looked_into(loaded.module)), loaded.warnings)
    return loaded


def open_for(given: PythonInputs, loaded: LoadedModel, progress: Progress) -> Inputs:
    """Open the inputs for a model; print notes."""
    given = at_its_size(given, loaded, progress)
    with without_dynamo(loaded.info.source == "zoo"):
        inputs = open_inputs(
            given,
            family=loaded.family,
            transforms=loaded.transforms,
            module=loaded.module,
            device=loaded.device,
            dtype=loaded.dtype,
        )
    tell(progress, inputs.notes)
    if inputs.preprocessing is not None:
        tell_more(progress, f"preprocessing: {inputs.preprocessing.words}")
    else:
        is_sized = inputs.info.source == "noise" and given.named is None
        size = [] if is_sized else given.request.size_options()
        for option in (*size, *given.request.value_options()):
            progress.note(f"{option} has no effect: the input is not images")
    return inputs


def at_its_size(given: PythonInputs, loaded: LoadedModel, progress: Progress) -> PythonInputs:
    """Ask for images, or noise, of a side that the model takes, if nothing says which and it fails at the usual."""
    request = given.request
    is_said = loaded.family != "custom" or loaded.transforms is not None or request.size or request.shapes
    if is_said or given.is_of_tensors or given.named is not None:
        return given
    if given.is_noise and len(natural_shapes("custom", None, loaded.module, 1)[0]) < 3:
        return given  # noise for a model of rows, not of images
    if (side := size_by_trial(loaded.module)) is None:
        return given
    progress.note(f"size: {side} x {side}, because forward() fails at 224 x 224")
    return replace(given, request=replace(request, size=str(side)))


def first_of(inputs: Inputs, loaded: LoadedModel) -> Batch:
    """Return the first batch, checked against the signature of the forward."""
    first = next(iter(inputs))
    check_call(loaded.module, first.args, next(filter(os.path.exists, inputs.info.files), None))
    return first


def notes_on_bytes(batch: Batch) -> Iterator[str]:
    """Note images whose values are those of bytes: none negative, the largest far above 1 and at most 255."""
    images = (one for _, one in tensors_in(batch.args) if one.ndim == 4 and one.shape[1] <= 4)
    on_cpu = (
        one for one in images if one.is_cpu and one.is_floating_point() and one.numel()
    )  # others: a wait
    for low, high in (map(float, one.aminmax()) for one in on_cpu):
        if low >= 0 and 50 < high <= 255:
            yield f"the input has values from {low:.4g} to {high:.4g}: unless the model scales them, divide by 255"


def refuse_idle(keywords: ModelKeywords | Keywords) -> None:
    """Refuse keywords that say how to build a model if a module was passed in."""
    for name in ("weights", "checkpoint", "key", "num_classes", "model_arg", "device", "dtype"):
        if keywords.get(name, DEFAULTS[name]) != DEFAULTS[name]:
            message = f"'{name}' needs a model given by name; a module is used as is"
            raise UsageError(message, f"leave out {name}=, and change the module yourself")


def describe_module(module: nn.Module) -> LoadedModel:
    """Describe a module passed in, without moving or changing it."""
    if not isinstance(module, nn.Module):
        raise UsageError(
            f"{with_article(type(module).__name__)} is not a torch.nn.Module",
            "pass a module, or what load() returns",
        )
    inner = model_inside(module)
    notes, module = inside_notes(module, inner), inner
    tensor = next((t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()), None)
    kind = type(module).__name__
    return LoadedModel(
        module=module,
        info=ModelInfo("object", kind, kind, WeightsInfo("object", "object", "handed over")),
        device=tensor.device if tensor is not None else torch.device("cpu"),
        dtype=tensor.dtype if tensor is not None else torch.float32,
        family=family_of_module(module),
        transforms=configured_preset(module),
        categories=configured_labels(module),
        notes=notes,
    )


def with_shapes(loaded: LoadedModel, args: Arguments, seed: int, progress: Progress) -> LoadedModel:
    """Run a model with lazy layers once to initialise them, of a module passed in a copy; others are unchanged."""
    module = loaded.module
    if not any(map(is_lazy, (*module.parameters(), *module.buffers()))):
        return loaded
    is_theirs = loaded.info.source == "object"
    module = _copied(module) if is_theirs else module
    try:
        with torch.no_grad(), seeded(seed):
            module.eval()(**args) if isinstance(args, dict) else module.eval()(*args)
    except Exception as error:
        raise ForwardError(error, None, shapes_of(args)) from error
    module.train(loaded.module.training)
    progress.note(f"lazy layers: shapes come from a first run{' of a copy' * is_theirs} (seed {seed})")
    return replace(loaded, module=module)


def _copied(module: nn.Module) -> nn.Module:
    """Copy a model with lazy layers; torch itself copies lazy parameters, but not buffers."""
    memo: dict[int, Any] = {}
    for buffer in module.buffers():
        if is_lazy(buffer):
            memo[id(buffer)] = UninitializedBuffer(device=buffer.device, dtype=buffer.dtype)  # type: ignore[call-arg]
    return copy.deepcopy(module, memo)
