"""Batch norm in train mode: batch statistics compared with running statistics."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import starmap

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from modelscope_cli.devices import widest_float
from modelscope_cli.hooks.fetch import Deferred, fetch, joined
from modelscope_cli.hooks.session import Call, Observer
from modelscope_cli.records.check_evidence import NormInput
from modelscope_cli.records.naming import counted, some
from modelscope_cli.records.run import Args, Kwargs, Notice
from modelscope_cli.records.stats import BatchNormDrift

_N_NAMED = 5


@dataclass(slots=True)
class _Entry:
    call: Call
    module: _BatchNorm
    running_mean: Tensor  # before the pass, which updates it
    running_var: Tensor
    means: list[Tensor] = field(default_factory=list)
    variances: list[Tensor] = field(default_factory=list)


class BatchNormObserver(Observer):
    """Records the channel means and variances of each batch norm's input."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, int], _Entry] = {}

    def enter(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        if not isinstance(module, _BatchNorm) or not module.training:
            return
        if module.running_mean is None or module.running_var is None:
            return
        x: Tensor = args[0] if args else kwargs["input"]
        key, wide = (call.name, call.index), widest_float(x.device)
        if key not in self._entries:
            first = self._entries.get((call.name, 0))
            mean = first.running_mean if first else module.running_mean.to(wide, copy=True)
            variance = first.running_var if first else module.running_var.to(wide, copy=True)
            self._entries[key] = _Entry(call, module, mean, variance)
        entry = self._entries[key]
        variance, mean = channel_statistics(x)
        entry.means.append(mean.to(wide))
        entry.variances.append(variance.to(wide))

    def rows(self) -> Deferred[tuple[BatchNormDrift, ...]]:
        """Return one row per call, in execution order."""
        entries = sorted(self._entries.values(), key=lambda entry: entry.call.order)
        return joined(map(_to_row, entries)).then(tuple)


def _to_row(entry: _Entry) -> Deferred[BatchNormDrift]:
    means = torch.stack(entry.means)
    mean = means.mean(0)
    variance = torch.stack(entry.variances).mean(0) + means.var(0, correction=0)
    return Deferred((mean, variance, entry.running_mean, entry.running_var), partial(_compared, entry))


def _compared(
    entry: _Entry, mean: Tensor, variance: Tensor, running_mean: Tensor, running_var: Tensor
) -> BatchNormDrift:
    module = entry.module
    scale = running_var + module.eps
    # A channel that is constant, as behind a pruned filter, says nothing of the statistics
    varies = variance > 0 if variance.any() else slice(None)
    gap = ((mean - running_mean) / scale.sqrt())[varies]
    ratio = ((variance + module.eps) / scale)[varies]
    return BatchNormDrift(
        **entry.call.fields,
        channels=len(mean),
        momentum=module.momentum,
        mean_gap=float(gap.square().mean().sqrt()),
        var_ratio=float(ratio.log().mean().exp()),
        var_ratio_min=float(ratio.amin()),
        var_ratio_max=float(ratio.amax()),
        is_frozen=is_frozen(module),
    )


@dataclass(slots=True)
class NormSums:
    """Sums over images of what one call of a batch norm normalises; see `NormInput`."""

    call: Call
    n_values: int  # per channel
    total: Tensor  # of (x - running mean) / running std, per channel
    square: Tensor

    def add(self, later: "NormSums") -> None:
        self.n_values += later.n_values
        self.total = self.total + later.total
        self.square = self.square + later.square

    def row(self) -> NormInput:
        square = self.square / self.n_values
        variance = (square - (self.total / self.n_values).square()).clamp_min(0)
        has_variance = self.n_values > 1
        return NormInput(
            **self.call.fields,
            square=float(square.mean()),
            variance=float(variance.mean()) if has_variance else None,
        )


class NormInputObserver(Observer):
    """Records how far the running statistics of each batch norm are from its inputs, in eval mode."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int], NormSums] = {}  # of this batch, still on the device
        self._settled: dict[tuple[str, int], NormSums] = {}

    def enter(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        if not isinstance(module, _BatchNorm) or module.training:
            return
        if module.running_mean is None or module.running_var is None:
            return
        x: Tensor = args[0] if args else kwargs["input"]
        n = x.numel() // x.shape[1]
        variance, mean = channel_statistics(x)
        scale = module.running_var.float() + module.eps
        offset = (mean - module.running_mean) / scale.sqrt()
        square = variance / scale + offset.square()
        self._sums[call.name, call.index] = NormSums(call, n, n * offset, n * square)

    def settle(self) -> None:
        """Add the sums of a batch to those before, in float64; on an accelerator this copies them to the CPU."""
        sums, self._sums = self._sums, {}
        fetched = iter(fetch(x for one in sums.values() for x in (one.total, one.square)))
        for key, one in sums.items():
            one.total, one.square = next(fetched).double(), next(fetched).double()
            if key in self._settled:
                self._settled[key].add(one)
            else:
                self._settled[key] = one

    def rows(self) -> tuple[NormInput, ...]:
        """Return one row per call, in execution order."""
        return tuple(one.row() for one in sorted(self._settled.values(), key=lambda one: one.call.order))


def channel_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return variance (divided by n) and mean of each channel, both `(C,)`."""
    return torch.var_mean(x.detach().float(), [dim for dim in range(x.ndim) if dim != 1], correction=0)


def running_statistics(model: nn.Module) -> Deferred[dict[str, tuple[Tensor, Tensor]]]:
    """Return running mean and variance of every batch norm that keeps them, by name."""
    kept = {
        name: (one.running_mean, one.running_var)
        for name, one in model.named_modules()
        if isinstance(one, _BatchNorm) and one.running_mean is not None and one.running_var is not None
    }
    return joined(Deferred(pair, lambda *pair: pair) for pair in kept.values()).then(
        lambda pairs: dict(zip(kept, pairs, strict=True))
    )


def is_fresh(mean: Tensor, variance: Tensor) -> bool:
    """Check that running statistics are the initial ones: mean 0 and variance 1."""
    return not bool(mean.any()) and bool((variance == 1).all())


def is_frozen(norm: nn.Module) -> bool:
    """Check that a batch norm has parameters, and none of them is trained."""
    parameters = [*norm.parameters(recurse=False)]
    return bool(parameters) and not any(one.requires_grad for one in parameters)


def trains_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(one, _BatchNorm) and not is_frozen(one) for one in model.modules())


def never_saw_a_batch(model: nn.Module) -> Deferred[bool]:
    """Check that there are batch norms with running statistics, and all of them are fresh."""
    return running_statistics(model).then(
        lambda norms: bool(norms) and all(starmap(is_fresh, norms.values()))
    )


def frozen_but_moving(rows: Iterable[BatchNormDrift]) -> tuple[Notice, ...]:
    """Return a warning about batch norms with frozen parameters whose running statistics still change."""
    names = list(dict.fromkeys(row.name for row in rows if row.is_frozen))
    if not names:
        return ()
    does = "updates its" if len(names) == 1 else "update their"
    return (
        Notice(
            "frozen_batch_norm_moves",
            f"{counted(len(names), 'frozen batch norm')} still {does} running statistics in train mode: "
            f"{some(names, _N_NAMED)}; use eval mode if they should not change",
        ),
    )
