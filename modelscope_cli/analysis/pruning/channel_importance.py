"""Which output channels of a layer matter least, by what they put out."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from modelscope_cli.analysis.pruning.masks import Prunable
from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.layers import ChannelFinder, tensors_in
from modelscope_cli.hooks.session import Call, HookSession, Intervention, Observer
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.models.fit import listed
from modelscope_cli.records.run import Notice


class _MeanActivation(Observer):
    def __init__(self, prunables: Sequence[Prunable]) -> None:
        self.sums: dict[nn.Parameter, Tensor] = {}
        self._prunables = {prunable.layer: prunable for prunable in prunables if prunable.name == "weight"}
        self._channels = ChannelFinder()

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        prunable = self._prunables.get(call.name)
        if prunable is None:
            return
        for _, tensor in tensors_in(output)[:1]:
            dim = self._channels.find(module, tensor)
            n_channels = prunable.weight.shape[prunable.channel_dim]
            if dim is not None and tensor.shape[dim] == n_channels:
                strength = tensor.float().abs().movedim(dim, 0).flatten(1).sum(1)
                self.sums[prunable.weight] = self.sums.get(prunable.weight, 0) + strength


def channel_importance(
    model: nn.Module,
    batches: Iterable[Batch],
    prunables: Sequence[Prunable],
    *,
    interventions: Sequence[Intervention] = (),
    track: Callable[[Iterable[Batch], str], Iterator[Batch]] = lambda batches, what: iter(batches),
) -> dict[nn.Parameter, Tensor]:
    """Return the sum of |activation| of every output channel over all images, `(C,)` on the CPU, for each weight.

    Within a layer it orders the channels as their mean does: the criterion of Molchanov et al. 2017, "Pruning
    Convolutional Neural Networks for Resource Efficient Inference", section 2.2, with the layer's own output as
    the activation. Weights whose layer was not seen to run are left out.

    Args:
        interventions: change every pass; what they do here is not counted.

    Raises:
        ForwardError: the model raised (exit 4).
    """
    observer = _MeanActivation(prunables)
    names = frozenset(prunable.layer for prunable in prunables)
    for intervention in interventions:
        intervention.repeat()
    with HookSession(model, [observer], names=names, interventions=interventions) as session:
        for batch in track(batches, "activations"):
            session.run(batch.args)
    return {weight: total.cpu() for weight, total in observer.sums.items()}


def unranked(prunables: Sequence[Prunable], importance: Mapping[nn.Parameter, Tensor]) -> tuple[Notice, ...]:
    """Warn of the weights whose channels were not seen.

    Raises:
        CannotRunError: none were (exit 4).
    """
    unseen = [
        f"{prunable.layer}.{prunable.name}" for prunable in prunables if prunable.weight not in importance
    ]
    if len(unseen) == len(prunables):
        raise CannotRunError(f"no output of the chosen layers was seen: {listed(unseen)}", "--method l1")
    message = f"not pruned, as their layers' output was not seen: {listed(unseen)}"
    return (Notice("unranked_weights", message),) if unseen else ()
