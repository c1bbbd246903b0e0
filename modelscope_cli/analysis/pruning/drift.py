"""`prune`: how far the outputs of a model drift when weights are pruned."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.outputs.model_output import ModelOutput
from modelscope_cli.analysis.outputs.read import OutputReader
from modelscope_cli.analysis.outputs.vectors import similarity
from modelscope_cli.analysis.predictions.scores import predictions_of, undecided
from modelscope_cli.analysis.pruning.masks import Prunable, make_masks
from modelscope_cli.analysis.pruning.request import PruneRequest
from modelscope_cli.hooks.forward_passes import Masks, WeightMasks, masked_weight
from modelscope_cli.hooks.layers import cloned
from modelscope_cli.hooks.session import HookSession, Intervention
from modelscope_cli.hooks.snapshot import RandomState
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.records.predict import Prediction
from modelscope_cli.records.prune import Drift, PrunedLayer, PruneTotals
from modelscope_cli.records.run import Notice

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
    masks: Masks
    warnings: tuple[Notice, ...]


class _DriftSum:
    """Sums over batches."""

    def __init__(self) -> None:
        self._n = 0
        self._means: dict[str, float] = {}
        self._largest = 0.0

    def add(self, before: ModelOutput, after: ModelOutput) -> None:
        self._n += len(before)
        likeness = similarity(before.main.tensor(), after.main.tensor()) if before.kind == "vectors" else None
        figures = {
            "changed": before.changed(after),
            "divergence": before.divergence(after),
            "similarity": likeness,
        }
        for name, figure in figures.items():
            if figure is not None:
                self._means[name] = self._means.get(name, 0.0) + float(figure.double().sum())
        # Unlike `max`, this keeps a NaN.
        largest = before.largest_change(after).double()
        self._largest = float(torch.cat([largest, largest.new_tensor([self._largest])]).amax())

    def result(self, amount: float, totals: PruneTotals) -> Drift:
        means = {name: total / self._n for name, total in self._means.items()}
        return Drift(
            amount=amount,
            zeros=totals.zeros,
            sparsity=totals.sparsity,
            agreement=1 - means["changed"] if "changed" in means else None,
            kl_divergence=means.get("divergence"),
            max_logit_change=self._largest,
            cosine_similarity=means.get("similarity"),
        )


def measure_pruning(
    reader: OutputReader,
    batches: Iterable[Batch],
    prunables: Sequence[Prunable],
    request: PruneRequest,
    *,
    importance: Mapping[nn.Parameter, Tensor] | None = None,
    interventions: Sequence[Intervention] = (),
    track: Track = lambda batches, what: iter(batches),
) -> Pruning:
    """Run every batch unpruned and at each amount, and compare the outputs.

    Only sums and the best predictions of a batch are kept. The model is not changed.

    Args:
        reader: of the output; it holds the model.
        importance: of the channels of each weight, for the method `activation`.
        interventions: change every pass, the unpruned one too.
    """
    model, categories = reader.module, reader.categories
    kind, note, n_done = "", None, 0
    plans: dict[float, Masks] = {}
    sums = {amount: _DriftSum() for amount in request.amounts}
    before: list[Prediction] = []
    after: list[Prediction] = []
    weight_masks = WeightMasks()
    with HookSession(model, interventions=[weight_masks, *interventions]) as session:
        random = RandomState(model)

        def answer(batch: Batch, masks: Masks, *, is_again: bool) -> ModelOutput:
            for intervention in interventions:
                intervention.begin(is_again=is_again)
            # Every run has the same random numbers and the same input, which a model may write into.
            weight_masks.masks = masks
            random.restore()
            args = cloned(batch.args)
            return reader.read(session.run(args), args, batch.n_images).as_vectors().settled()

        for batch in track(batches, "images"):
            whole = answer(batch, {}, is_again=False)
            # Ranking takes a while; a model that cannot run has failed by now.
            plans = plans or {share: make_masks(prunables, share, request, importance) for share in sums}
            before += predictions_of(whole, _N_GUESSES, categories, batch, n_done)
            for amount, masks in plans.items():
                pruned = answer(batch, masks, is_again=True)
                sums[amount].add(whole, pruned)
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
        masks=plans[request.amount],
        warnings=undecided(before),
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
    """Return the model's state dict with the masked weights in it, on the CPU, no two tensors in one memory."""
    state: Mapping[str, Any] = model.state_dict(keep_vars=True)
    tensors: dict[str, Tensor] = {}
    memories: set[int] = set()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            continue  # extra state that some modules keep there
        mask = masks.get(value) if isinstance(value, nn.Parameter) else None
        tensor = value if mask is None else masked_weight(value, mask)
        tensor = tensor.detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if memory in memories else tensor
        memories.add(memory)
    return tensors
