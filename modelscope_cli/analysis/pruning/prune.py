"""`prune`: prune weights of a model and measure how far its outputs drift."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.outputs.degenerate import Degenerate, look_at
from modelscope_cli.analysis.outputs.model_output import ModelOutput
from modelscope_cli.analysis.outputs.output_kinds import Scores
from modelscope_cli.analysis.outputs.read import OutputReader
from modelscope_cli.analysis.predictions.folder_truth import RightPredictions, find_truth
from modelscope_cli.analysis.predictions.preprocessing_check import tell_of_size
from modelscope_cli.analysis.predictions.scores import predictions_of
from modelscope_cli.analysis.pruning.masks import Prunable, find_prunable, make_masks
from modelscope_cli.analysis.pruning.request import PruneRequest, make_request
from modelscope_cli.analysis.subject import Subject, best_classes
from modelscope_cli.analysis.supported import check_output
from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.forward_passes import Masks, WeightMasks, masked_weight
from modelscope_cli.hooks.layers import cloned
from modelscope_cli.hooks.random_states import RandomState
from modelscope_cli.hooks.session import HookSession, Intervention
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.inputs.python_inputs import to_inputs
from modelscope_cli.models.request import Model, ModelRequest, seed_of
from modelscope_cli.output_files import check_file
from modelscope_cli.paths import with_file
from modelscope_cli.records.keywords import LabelledKeywords, OutputKeywords, as_tuple, spelled_out
from modelscope_cli.records.predict import Prediction, Share
from modelscope_cli.records.progress import Progress
from modelscope_cli.records.prune import Drift, PrunedLayer, PruneRecord, PruneTotals
from modelscope_cli.records.run import Notice
from modelscope_cli.tensor_file import write_tensors

_N_GUESSES = 5
Track = Callable[[Iterable[Batch], str], Iterator[Batch]]


@dataclass(frozen=True, slots=True)
class Pruning:
    """The result of pruning a model; the fields are those of `PruneRecord`, the masks those at `amount`."""

    output: str
    output_note: str | None
    layers: tuple[PrunedLayer, ...]
    totals: PruneTotals
    sweep: tuple[Drift, ...]
    before: tuple[Prediction, ...]
    after: tuple[Prediction, ...]
    accuracy: Share | None
    kept: str | None
    masks: Masks
    degenerate: Degenerate


class _DriftSum:
    def __init__(self) -> None:
        self._n = 0
        self._changed = self._divergence = self._largest = 0.0
        self._right = RightPredictions()

    def add(self, before: Scores, after: Scores, truth: Tensor | None) -> None:
        self._n += len(before)
        self._changed += float(before.changed(after).double().sum())
        self._divergence += float(before.divergence(after).double().sum())
        # Unlike `max`, this keeps a NaN.
        largest = before.largest_change(after).double()
        self._largest = float(torch.cat([largest, largest.new_tensor([self._largest])]).amax())
        self._right.add(after.tensor(), truth)

    def result(self, amount: float, totals: PruneTotals) -> Drift:
        return Drift(
            amount=amount,
            zeros=totals.zeros,
            sparsity=totals.sparsity,
            agreement=1 - self._changed / self._n,
            kl_divergence=self._divergence / self._n,
            max_logit_change=self._largest,
            accuracy=self._right.share(),
        )


def measure_pruning(
    reader: OutputReader,
    batches: Iterable[Batch],
    prunables: Sequence[Prunable],
    request: PruneRequest,
    *,
    keeps_classes: bool = False,
    interventions: Sequence[Intervention] = (),
    track: Track = lambda batches, what: iter(batches),
) -> Pruning:
    """Run every batch unpruned and at each amount, and compare the outputs.

    Only sums and the best predictions of a batch are kept. The model is not changed.

    Args:
        reader: of the output; it holds the model.
        keeps_classes: leave out the last layer that has a channel for each class, unless it is the only one.
        interventions: change every pass, the unpruned one too.
    """
    model, categories = reader.module, reader.categories
    kind, note, n_done, degenerate = "", None, 0, Degenerate()
    kept: str | None = None
    plans: dict[float, Masks] = {}
    sums = {amount: _DriftSum() for amount in request.amounts}
    before: list[Prediction] = []
    after: list[Prediction] = []
    right = RightPredictions()
    weight_masks = WeightMasks()
    with HookSession(model, interventions=[weight_masks, *interventions]) as session:
        random = RandomState()

        def answer(batch: Batch, masks: Masks, *, is_again: bool) -> ModelOutput:
            for intervention in interventions:
                intervention.begin(is_again=is_again)
            # Every run has the same random numbers and the same input, which a model may write into.
            weight_masks.masks = masks
            random.restore()
            args = cloned(batch.args)
            output = reader.read(session.run(args), args, batch.n_images).settled()
            check_output("prune", output)
            return output

        for batch in track(batches, "images"):
            whole = answer(batch, {}, is_again=False).checked()
            degenerate += look_at(whole, batch.args)
            if keeps_classes and not plans:
                channels = [prunable.weight.shape[prunable.channel_dim] for prunable in prunables]
                heads = [n for n, size in enumerate(channels) if size == whole.main.n_classes]
                if heads and len(prunables) > 1:
                    kept = prunables[heads[-1]].layer
                    prunables = [one for n, one in enumerate(prunables) if n != heads[-1]]
            # Ranking takes a while; a model that cannot run has failed by now.
            plans = plans or {share: make_masks(prunables, share, request) for share in sums}
            truth = batch.truth(whole.main.n_classes or 0) if whole.kind == "classes" else None
            right.add(whole.scores.tensor(), truth)
            before += predictions_of(whole, _N_GUESSES, categories, batch, n_done)
            for amount, masks in plans.items():
                pruned = answer(batch, masks, is_again=True)
                sums[amount].add(whole.scores, pruned.scores, truth)
                if amount == request.amount:
                    after += predictions_of(pruned, _N_GUESSES, categories, batch, n_done)
            n_done, kind, note = n_done + len(whole), whole.kind, whole.note
    layers = {amount: [_row(p, masks) for p in prunables] for amount, masks in plans.items()}
    totals = {amount: _totals(model, rows) for amount, rows in layers.items()}
    return Pruning(
        output=kind,
        output_note=note,
        layers=tuple(layers[request.amount]),
        totals=totals[request.amount],
        sweep=tuple(sums[amount].result(amount, totals[amount]) for amount in plans),
        before=tuple(before),
        after=tuple(after),
        accuracy=right.share(),
        kept=kept,
        masks=plans[request.amount],
        degenerate=degenerate,
    )


def _row(prunable: Prunable, masks: Masks) -> PrunedLayer:
    weight = prunable.weight
    zeros = _count_zeros(weight, masks.get(weight))
    return PrunedLayer(
        name=prunable.layer,
        type=prunable.type,
        parameter=prunable.name,
        shape=tuple(weight.shape),
        numel=weight.numel(),
        zeros=zeros,
        zeros_before=_count_zeros(weight, None),
        sparsity=zeros / weight.numel(),
    )


def _totals(model: nn.Module, rows: Sequence[PrunedLayer]) -> PruneTotals:
    numel, zeros = sum(row.numel for row in rows), sum(row.zeros for row in rows)
    return PruneTotals(
        layers=len(rows),
        numel=numel,
        zeros=zeros,
        zeros_before=sum(row.zeros_before for row in rows),
        sparsity=zeros / numel,
        params=sum(parameter.numel() for parameter in model.parameters()),
    )


def _count_zeros(weight: nn.Parameter, mask: Tensor | None) -> int:
    pruned = weight if mask is None else masked_weight(weight, mask)
    return weight.numel() - int(torch.count_nonzero(pruned))


def pruned_state(model: nn.Module, masks: Masks) -> dict[str, Tensor]:
    """Return the model's state dict with the masked weights in it, without the extra state of some modules."""
    state: Mapping[str, Any] = model.state_dict(keep_vars=True)

    def masked(value: Tensor) -> Tensor:
        mask = masks.get(value) if isinstance(value, nn.Parameter) else None
        return value if mask is None else masked_weight(value, mask)

    return {name: masked(value) for name, value in state.items() if isinstance(value, Tensor)}


@spelled_out
def prune(
    model: "Model" = "resnet34",
    inputs: Any = None,
    *,
    layer: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    amount: float = 0.3,
    method: str = "l1",
    by_channel: bool = False,
    global_: bool = False,
    sweep: str | Sequence[float] = (0.1, 0.3, 0.5, 0.7, 0.9),
    save_weights: str | PathLike[str] | None = None,
    hook: str | Sequence[str] = (),
    force: bool = False,
    progress: Progress | None = None,
    **keywords: Unpack[LabelledKeywords],
) -> PruneRecord:
    """Prune weights and return how far the predictions drift; the model itself does not change.

    Args:
        model: a name or file as on the command line, an `nn.Module`, or the result of `load`.
        inputs: paths, PIL images, tensors, a dict of arguments by name, a `DataLoader`; None for seeded noise of
            the model's input size.
        layer, exclude: layer patterns; a layer includes its sublayers.
        amount: the share to prune, from 0 to below 1.
        method: what to prune first: the smallest L1 or L2 norm (the same for single weights), or random weights.
        by_channel: prune whole output channels, not single weights; without `layer`, not those that are classes.
        global_: rank the weights of all layers together, not layer by layer.
        sweep: also measure the drift at these shares.
        save_weights: write the pruned weights as .safetensors, for --checkpoint. Zeros alone do not make the model
            smaller or faster. In Python `force` replaces a file that exists.
        hook: changes to values during the pass, in the syntax of `--hook`.

    Raises:
        UsageError: a keyword, a pattern or a combination that is not valid (exit 2 on the command line).
        CannotRunError: the model cannot be loaded, raises an error, or has no output to compare, or a file cannot
            be read or written (exit 4).
    """
    python_inputs = to_inputs(inputs, keywords)
    request = make_request(
        amount=amount,
        method=method,
        by_channel=by_channel,
        is_global=global_,
        sweep=sweep,
        seed=seed_of(model, keywords),
    )
    if save_weights is not None:
        check_weights_file(Path(save_weights), _files(model, keywords), force)
    subject = Subject(
        "prune", model, python_inputs, keywords, hook=hook, labels=keywords.get("labels"), progress=progress
    )
    subject.open()
    tell_of_size(subject)
    find_truth(subject)
    loaded, interventions = subject.loaded, subject.bind().interventions
    prunables = find_prunable(loaded.module, as_tuple(layer), as_tuple(exclude))
    if python_inputs.is_noise:
        message = "the drift is measured on noise, which is unlike any real image"
        subject.warn([Notice("drift_on_noise", message)])
    pruning = measure_pruning(
        OutputReader.of(loaded),
        subject.inputs,
        prunables,
        request,
        keeps_classes=by_channel and not as_tuple(layer),
        interventions=interventions,
        track=subject.track,
    )
    if pruning.output_note is not None:
        subject.progress.note(pruning.output_note)
    subject.tell_if_degenerate(pruning.degenerate, best_classes(pruning.before))
    hooks = subject.conclude()
    record = PruneRecord(
        run=subject.run(),
        layers=pruning.layers,
        totals=pruning.totals,
        before=pruning.before,
        after=pruning.after,
        file=None,
        sweep=pruning.sweep,
        amount=amount,
        method=method,
        structured=by_channel,
        scope="global" if global_ else "layer",
        images=subject.inputs.n_images,
        output=pruning.output,
        accuracy=pruning.accuracy,
        kept=pruning.kept,
        hooks=hooks,
    )
    if save_weights is None:
        return record
    n_bytes = write_weights(
        Path(save_weights), record, pruned_state(loaded.module, pruning.masks), loaded.categories
    )
    subject.progress.note(f"wrote {save_weights}")
    return replace(record, file=str(save_weights), file_bytes=n_bytes)


def _files(model: "Model", keywords: OutputKeywords) -> list[Path]:
    """Return the files the weights may come from, which must not be overwritten."""
    if isinstance(model, ModelRequest):
        return [Path(model.model), *([model.checkpoint] if model.checkpoint is not None else [])]
    files = (model if isinstance(model, str | PathLike) else None, keywords.get("checkpoint"))
    return [Path(file) for file in files if file is not None]


def check_weights_file(path: Path, sources: Iterable[Path], is_forced: bool) -> None:
    """Refuse a file for the pruned weights that cannot or should not be written, before any long computation."""
    if path.suffix.lower() != ".safetensors":
        message = f"'--save-weights {path}' does not end in .safetensors"
        raise UsageError(message, with_file("--save-weights", path, ".safetensors"))
    if path.resolve() in {source.resolve() for source in sources}:
        message = f"'--save-weights {path}' would overwrite the checkpoint itself"
        raise UsageError(message, f"--save-weights {shlex.quote(str(path.with_stem(f'{path.stem}-pruned')))}")
    check_file(path, is_forced)


def write_weights(
    path: Path, record: PruneRecord, state: dict[str, Any], categories: Sequence[str] | None
) -> int:
    """Write a state dict whose header describes the pruning and the classes; return the file size."""
    run, totals = record.run, record.totals
    pruning = {
        "amount": record.amount,
        "method": record.method,
        "structured": record.structured,
        "scope": record.scope,
        "cut": record.what_is_cut,
        "layers": [
            f"{layer.name}.{layer.parameter}" if layer.name else layer.parameter for layer in record.layers
        ],
        "zeros": totals.zeros,
        "numel": totals.numel,
        "of": f"{run.model.name}, weights {run.model.weights.resolved}",
        "sha256_of_source": run.model.weights.sha256,
        "seed": run.seed,
        "by": f"modelscope {run.versions['version']}, torch {run.versions['torch']}",
        "note": "zeros alone save neither space nor time",
    }
    about: dict[str, Any] = {"pruning": pruning}
    if categories:
        about["categories"] = list(categories)
    return write_tensors(path, state, **about)
