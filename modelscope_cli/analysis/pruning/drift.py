"""`prune`: how far a model's answers drift when weights are cut away."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.predictions.scores import (
    class_scores,
    kl_divergence,
    name_guesses,
    top_guesses,
    undecided,
)
from modelscope_cli.analysis.pruning.masks import Prunable, make_masks
from modelscope_cli.analysis.pruning.request import PruneRequest
from modelscope_cli.hooks.layers import map_tensors
from modelscope_cli.hooks.masks import Masks, WeightMasks, masked_weight
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
    """What pruning does to a model; the fields are those of `PruneRecord`, the masks those at `amount`."""

    layers: tuple[PrunedLayer, ...]
    totals: PruneTotals
    sweep: tuple[Drift, ...]
    before: tuple[Prediction, ...]
    after: tuple[Prediction, ...]
    masks: Masks
    warnings: tuple[Notice, ...]


class _DriftSum:
    """Sums over batches, on the device they were made on."""

    def __init__(self) -> None:
        self._n = 0
        self._same: Tensor | float = 0
        self._divergence: Tensor | float = 0
        self._changes: list[Tensor] = []

    def add(self, before: Tensor, after: Tensor) -> None:
        self._n += len(before)
        is_answer = ~(before.isnan() | after.isnan()).any(1)
        self._same += (is_answer & (before.argmax(1) == after.argmax(1))).sum()
        self._divergence += kl_divergence(before, after).sum()
        self._changes.append((after - before).abs().amax())

    def result(self, amount: float, totals: PruneTotals) -> Drift:
        return Drift(
            amount=amount,
            zeros=totals.zeros,
            sparsity=totals.sparsity,
            agreement=float(self._same) / self._n,
            kl_divergence=float(self._divergence) / self._n,
            max_logit_change=float(torch.stack(self._changes).amax()),
        )


def measure_pruning(
    model: nn.Module,
    batches: Iterable[Batch],
    prunables: Sequence[Prunable],
    request: PruneRequest,
    *,
    importance: Mapping[nn.Parameter, Tensor] | None = None,
    categories: Sequence[str] | None = None,
    interventions: Sequence[Intervention] = (),
    track: Track = lambda batches, what: iter(batches),
) -> Pruning:
    """Run every batch whole and with each amount cut, and compare the answers.

    Only sums and the first guesses are kept of a batch. The model is left as it was found.

    Args:
        importance: of the channels of each weight, for the method `activation`.
        interventions: change every pass, the whole model's too.

    Raises:
        CannotRunError: the model raised, or is not a classifier (exit 4).
    """
    plans: dict[float, Masks] = {}
    sums = {amount: _DriftSum() for amount in request.amounts}
    before: list[Prediction] = []
    after: list[Prediction] = []
    weight_masks = WeightMasks()
    with HookSession(model, interventions=[weight_masks, *interventions]) as session:
        random = RandomState(model)

        def answer(batch: Batch, masks: Masks, *, is_again: bool) -> Tensor:
            for intervention in interventions:
                intervention.begin(is_again=is_again)
            # Every run has the same random numbers and the same input, which a model may write into.
            weight_masks.masks = masks
            random.restore()
            args = map_tensors(batch.args, lambda _, tensor: tensor.clone())
            return class_scores(session.run(args), batch.n_images)

        for batch in track(batches, "images"):
            whole = answer(batch, {}, is_again=False)
            # Ranking takes a while; a model that cannot be asked has been refused by now.
            plans = plans or {share: make_masks(prunables, share, request, importance) for share in sums}
            before += name_guesses(top_guesses(whole, _N_GUESSES, categories), batch, len(before))
            for amount, masks in plans.items():
                logits = answer(batch, masks, is_again=True)
                sums[amount].add(whole, logits)
                if amount == request.amount:
                    after += name_guesses(top_guesses(logits, _N_GUESSES, categories), batch, len(after))
    layers = {amount: [_row(p, masks) for p in prunables] for amount, masks in plans.items()}
    totals = {amount: _totals(model, rows) for amount, rows in layers.items()}
    return Pruning(
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
