"""Which layers of a low precision lose the accuracy: each alone in it, and each alone kept as in A."""

import time
from collections.abc import Iterable, Set
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.comparison.activations import Side
from modelscope_cli.analysis.comparison.distance import merge, sum_up, to_distance
from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.layers import list_layers, map_tensors, tensors_in
from modelscope_cli.hooks.session import Call, HookSession, Intervention
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.records.diff import LayerRank, LayerRanking
from modelscope_cli.records.naming import counted
from modelscope_cli.records.progress import Progress
from modelscope_cli.records.run import Arguments

_N_KEPT = 3


class _Swapped(Intervention):
    """Replaces what some layers return by what the same layers of the other side return for these inputs."""

    def __init__(self, other: Side, names: Set[str]) -> None:
        self._other, self._names = other, names

    def change_output(
        self, call: Call, module: nn.Module, inputs: tuple[tuple[Any, ...], dict[str, Any]], output: Any
    ) -> Any:
        if call.name not in self._names:
            return output
        loaded = self._other.loaded
        args, kwargs = map_tensors(inputs, lambda _, one: _cast(one, loaded.device, loaded.dtype))
        other = loaded.module.get_submodule(call.name)(*args, **kwargs)
        like = next((one for _, one in tensors_in(output) if one.is_floating_point()), None)
        return (
            other if like is None else map_tensors(other, lambda _, one: _cast(one, like.device, like.dtype))
        )


def _cast(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)


def rank_layers(a: Side, b: Side, batches: Iterable[Batch], progress: Progress) -> LayerRanking:
    """Compute the output with each layer alone as in B, and with each alone as in A, against that of A.

    Takes two passes for each layer and batch; the time is told after the first.

    Raises:
        UsageError: B has no layer of A in another precision (exit 2).
    """
    theirs = {layer.name: module for layer, module in list_layers(b.loaded.module)}
    names = [
        layer.name
        for layer, module in list_layers(a.loaded.module)
        if layer.is_leaf and layer.name in theirs and _kinds(module) != _kinds(theirs[layer.name])
    ]
    if not names or b.program is not None:
        message = "'--rank-layers' needs a B with layers of A in a lower precision"
        raise UsageError(message, "--b-quantize int8wo   or --b-dtype bfloat16")
    none: frozenset[str] = frozenset()
    variants = {("b", ""): (b, a, none)}
    variants |= {("alone", name): (a, b, frozenset({name})) for name in names}
    variants |= {("kept", name): (b, a, frozenset({name})) for name in names}
    sums: dict[tuple[str, str], Tensor] = {}
    passes = 0
    for n, batch in enumerate(batches):
        began = time.process_time()
        reference = _outputs(a, b, none, batch.args)
        for key, (side, other, swapped) in variants.items():
            _add(sums, key, reference, _outputs(side, other, swapped, batch.args))
            if n == 0 and key == ("b", ""):
                seconds = (time.process_time() - began) / 2 * len(variants)
                cost = f"{2 * len(names)} forward passes for each batch"
                progress.note(
                    f"ranking {counted(len(names), 'layer')}: {cost}, about {seconds:.1f} CPU seconds"
                )
        passes += 1 + len(variants)
    decibels = {key: to_distance(value).sqnr_db for key, value in sums.items()}
    whole = decibels["b", ""]
    rows = [
        LayerRank(name, decibels["alone", name], kept := decibels["kept", name], _gain(kept, whole))
        for name in names
    ]
    rows.sort(key=lambda row: -(float("inf") if row.gain_db is None else row.gain_db))
    keep = tuple(row.name for row in rows[:_N_KEPT] if row.gain_db is None or row.gain_db > 0)
    together: dict[tuple[str, str], Tensor] = {}
    for batch in batches:
        reference = _outputs(a, b, none, batch.args)
        _add(together, ("keep", ""), reference, _outputs(b, a, frozenset(keep), batch.args))
        passes += 2
    return LayerRanking(whole, tuple(rows), keep, to_distance(together["keep", ""]).sqnr_db, passes)


def _gain(kept: float | None, whole: float | None) -> float | None:
    return None if kept is None or whole is None else kept - whole


def _add(sums: dict[tuple[str, str], Tensor], key: tuple[str, str], a: list[Tensor], b: list[Tensor]) -> None:
    for x, y in zip(a, b, strict=True):
        new = sum_up(x, y.to(x.device)).cpu()
        sums[key] = merge(sums[key], new) if key in sums else new


def _kinds(module: nn.Module) -> list[tuple[type, torch.dtype]]:
    tensors = (*module.parameters(), *module.buffers())
    return [(_bare(one), one.dtype) for one in tensors if one.is_floating_point()]


def _bare(tensor: Tensor) -> type:
    return Tensor if type(tensor) in (Tensor, nn.Parameter) else type(tensor)


def _outputs(side: Side, other: Side, swapped: Set[str], args: Arguments) -> list[Tensor]:
    """Return the floating point outputs of a side with some of its layers from the other."""
    change = (_Swapped(other, swapped),) if swapped else ()
    with (
        HookSession(other.loaded.module),
        HookSession(side.loaded.module, interventions=(*side.interventions, *change)) as session,
    ):
        output = session.run(side.place(args))
    return [tensor.detach().float() for _, tensor in tensors_in(output) if tensor.is_floating_point()]
