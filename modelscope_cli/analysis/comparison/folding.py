"""Batch norms that were folded into the convolutions before them, as exporters for inference do.

A norm multiplies all weights of a channel by gamma / sqrt(var + eps): their direction stays the same, and the
factors tell which norm it was.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from modelscope_cli.analysis.comparison.variants import apart, coarse
from modelscope_cli.records.diff import FOLDING, Cause

# Of torch, of TensorFlow, and of others: a state dict does not have it.
_EPSILONS = (1e-5, 1e-3, 1e-6, 1e-4, 1e-2, 1e-8, 0.0)
_LARGEST = 0.1  # epsilon in use
_NEAR = 0.5  # mean sine of the angles of rows, beyond which a tensor of another name is another one
_TURNS = ((False,), (False, True))  # channels on the second axis, too, where a weight has more than two
EXPORT_AGAIN = "export again from the weights of A"


@dataclass(frozen=True, slots=True)
class Fold:
    """A convolution of A with its norm folded in, by their names."""

    conv: str
    norm: str
    scale: Tensor  # the factors of the norm, `(channels,)`
    weight: Tensor  # of the convolution times these, in its own shape
    shift: Tensor  # the bias of both, `(channels,)`
    scaled: Tensor  # the part of it that the scale multiplies
    has_bias: bool  # whether the convolution has one of its own
    is_turned: bool  # whether the channels are the second axis of the weight, as in a transposed convolution


def fold(
    names: tuple[str, str],
    conv: Mapping[str, Tensor],
    norm: Mapping[str, Tensor],
    eps: float,
    is_turned: bool,
) -> Fold:
    """Fold a norm into a convolution, both given by their tensors under their own names."""
    weight, scale = conv["weight"].detach().cpu(), _scale(norm, eps)
    offset, mean, own = (
        held[name].detach().cpu() if name in held else torch.zeros_like(scale)
        for held, name in ((norm, "bias"), (norm, "running_mean"), (conv, "bias"))
    )
    sides = (1, -1) if is_turned else (-1, 1)
    folded = weight * scale.reshape(*sides, *([1] * (weight.ndim - 2)))
    scaled = (own - mean) * scale
    return Fold(*names, scale, folded, offset + scaled, scaled, "bias" in conv, is_turned)


def _scale(norm: Mapping[str, Tensor], eps: float) -> Tensor:
    scale = (norm["running_var"].detach().cpu() + eps).rsqrt()
    return scale * norm["weight"].detach().cpu() if "weight" in norm else scale


def differing(
    layer: str, name: str, ours: Tensor, theirs: Tensor, hint: str = EXPORT_AGAIN, slack: float = 1e-6
) -> Cause | None:
    """Return where two tensors of one shape differ by more than `slack` of the largest value; None if nowhere."""
    if not ours.is_floating_point() or not theirs.is_floating_point() or theirs.shape != ours.shape:
        return None
    ours, theirs = ours.detach().cpu(), theirs.detach().cpu()
    gaps = (ours.double() - theirs.double()).abs()
    is_other = gaps > (slack * ours.abs().max().double()).clamp_min(torch.finfo(ours.dtype).tiny)
    count = int(is_other.sum())
    if not count:
        return None
    if (kind := coarse(theirs)) is not None and coarse(ours) is None:
        return Cause("cast", layer, f"{name} is rounded to {kind} in B", f"keep {layer} in float32 in B")
    at = ", ".join(str(int(i)) for i in torch.unravel_index(gaps.argmax(), gaps.shape))
    message = f"{name} differs in {count} of {ours.numel()} values, most at [{at}], by {gaps.max():.3g}"
    return Cause("weights", layer, message, hint)


def differing_weight(
    fold: Fold, other: Tensor, hint: str = EXPORT_AGAIN, bias: Tensor | None = None
) -> Cause | None:
    """Compare the weight: the norm differs if each channel has one factor, else the convolution does.

    It is also the convolution if the `bias` in B is as in A, although a part of it goes with the scale of the norm.
    """
    ours, theirs = _rows(fold.weight, fold.is_turned), _rows(other, fold.is_turned)
    factors = _factors(ours, theirs)
    rest = (theirs - factors[:, None] * ours).abs().max()
    inverse = f"{fold.norm}.weight / sqrt({fold.norm}.running_var + eps)"
    is_scaled = ours.shape[1] > 1 and bool(rest <= FOLDING * theirs.abs().max())
    if is_scaled and bias is not None and apart(bias, fold.shift) <= FOLDING:
        is_scaled = apart(_moved_shift(fold, other), fold.shift) <= FOLDING
    if is_scaled:
        there = (fold.scale * factors).to(fold.scale.dtype)
        return differing(fold.norm, inverse, fold.scale, there, hint, FOLDING)
    name = f"{fold.conv}.weight" if ours.shape[1] > 1 else f"{fold.conv}.weight or {inverse}"
    return differing(fold.conv, f"{name} (with {fold.norm} folded in)", fold.weight, other, hint, FOLDING)


def differing_bias(fold: Fold, other: Tensor, hint: str = EXPORT_AGAIN) -> Cause | None:
    """Compare the bias, which is that of the norm, its running mean, or that of the convolution."""
    biases = [f"{fold.conv}.bias"] * fold.has_bias + [f"{fold.norm}.bias", f"{fold.norm}.running_mean"]
    name = f"{' or '.join(biases)} (folded into {fold.conv})"
    return differing(fold.norm, name, fold.shift, other, hint, FOLDING)


def _moved_shift(fold: Fold, other: Tensor) -> Tensor:
    """Return the bias that goes with the weight in B if the scale of the norm has changed."""
    factors = _factors(_rows(fold.weight, fold.is_turned), _rows(other, fold.is_turned))
    return fold.shift + fold.scaled * (factors - 1).to(fold.scaled.dtype)


# Two state dicts


@dataclass(frozen=True, slots=True)
class StoredFold:
    """A fold, the tensors of B that hold it, and the epsilon that fits best."""

    fold: Fold
    b_weight: str
    b_bias: str | None  # None where B has none
    eps: float
    parts: tuple[str, ...]  # the names in A of all its tensors

    def causes(self, b: Mapping[str, Tensor], hint: str) -> list[Cause]:
        """Return where the weight and the bias in B differ."""
        theirs, other = self.bias_in(b), b[self.b_weight]
        weight = differing_weight(self.fold, other, hint, theirs)
        bias = differing_bias(self.fold, theirs, hint)
        if None not in (weight, bias) and apart(_moved_shift(self.fold, other), theirs) <= FOLDING:
            bias = None  # the scale of the norm explains both
        return [cause for cause in (weight, bias) if cause is not None]

    def bias_in(self, b: Mapping[str, Tensor]) -> Tensor:
        """Return the bias in B, which is zero where B has none."""
        return torch.zeros_like(self.fold.shift) if self.b_bias is None else b[self.b_bias]


def find_folds(
    a: Mapping[str, Tensor], b: Mapping[str, Tensor], pairs: Mapping[str, str]
) -> Iterator[StoredFold]:
    """Yield the norms of A of which B has no tensor, each with the convolution of A whose weights in B show it.

    Args:
        pairs: names in A and B of tensors that belong together.
    """
    norms = {
        name.removesuffix(".running_var"): _parts(a, name.removesuffix(".running_var"))
        for name in a
        if name.endswith(".running_var") and name not in pairs
    }
    convs = {
        name.removesuffix(".weight"): tensor
        for name, tensor in a.items()
        if name.endswith(".weight") and tensor.ndim > 1 and tensor.is_floating_point()
    }
    order = {name: n for n, name in enumerate(dict.fromkeys(name.rpartition(".")[0] for name in a))}
    usual = _EPSILONS[0]
    for conv, b_weight in _counterparts(convs, a, b, pairs) if norms else ():
        ours, theirs = convs[conv], b[b_weight]
        bias, ranked = a.get(f"{conv}.bias"), []
        for is_turned in _TURNS[ours.ndim > 2]:
            factors = _factors(_rows(ours, is_turned), _rows(theirs, is_turned))
            fitting = norms if bias is None or bias.shape == factors.shape else {}
            for name, norm in fitting.items():
                if norm["running_var"].shape == factors.shape:
                    behind = order[name] - order[conv]
                    for eps in (*_EPSILONS, *_epsilon(norm, factors)):  # median: some channels may differ
                        gap = ((_scale(norm, eps) / factors - 1).abs().nan_to_num()).median().item()
                        is_far = gap > FOLDING  # the weights differ, and say nothing about epsilon
                        key = (is_far, behind < 0, abs(behind), abs(eps - usual) if is_far else gap)
                        ranked.append((key, name, eps, is_turned))
        if not ranked:
            continue
        (is_far, *_), name, eps, is_turned = min(ranked)
        best = fold((conv, name), _parts(a, conv), norms[name], eps, is_turned)
        is_other = _rest(_rows(ours, is_turned), _rows(theirs, is_turned)) >= _NEAR
        if is_far and (is_other or apart(best.weight, theirs) >= apart(ours, theirs)):
            continue  # a convolution that was not folded, or of another model
        del norms[name]
        usual = usual if is_far else eps
        parts = tuple(f"{one}.{own}" for one in (conv, name) for own in _parts(a, one))
        yield StoredFold(best, b_weight, _bias_of(conv, b_weight, ours, b, pairs), eps, parts)


def _epsilon(norm: Mapping[str, Tensor], factors: Tensor) -> Iterator[float]:
    """Yield the epsilon by which a norm has these factors, if there is one."""
    variance = norm["running_var"].detach().cpu().double()
    eps = float(f"{((_scale(norm, 0.0) / factors).square() * variance - variance).median():.2g}")
    gap = (_scale(norm, eps) / factors - 1).abs().median() if 0 < eps < _LARGEST else math.inf
    if gap <= FOLDING:
        yield eps


def _parts(tensors: Mapping[str, Tensor], layer: str) -> dict[str, Tensor]:
    owns = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    return {own: tensors[f"{layer}.{own}"] for own in owns if f"{layer}.{own}" in tensors}


def _counterparts(
    convs: Mapping[str, Tensor], a: Mapping[str, Tensor], b: Mapping[str, Tensor], pairs: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield each convolution with its weight in B: of its name, else of the nearest direction."""
    taken = set(pairs.values())
    free = [name for name, one in b.items() if name not in taken and one.ndim > 1 and one.is_floating_point()]
    scores = []
    for n, (conv, ours) in enumerate(convs.items()):
        named = pairs.get(f"{conv}.weight")
        if named is not None:
            if b[named].shape == ours.shape and not torch.equal(ours, b[named]):
                scores.append((-1.0, 0, conv, named))
            continue
        for m, name in enumerate(free):
            if b[name].shape == ours.shape:
                turns = _TURNS[ours.ndim > 2]
                rest = min(_rest(_rows(ours, turn), _rows(b[name], turn)) for turn in turns)
                scores.append((round(rest, 6), abs(n - m), conv, name))
    found: dict[str, str] = {}
    for rest, _, conv, name in sorted(scores):
        if rest < _NEAR and conv not in found and name not in found.values():
            found[conv] = name
    return iter((conv, found[conv]) for conv in convs if conv in found)


def _rows(weight: Tensor, is_turned: bool) -> Tensor:
    """Return weights as `(channels, values)`, in float64."""
    return (weight.transpose(0, 1) if is_turned else weight).detach().cpu().double().flatten(1)


def _factors(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return the factor of each row, by least squares."""
    return (ours * theirs).sum(1) / (ours * ours).sum(1).clamp_min(torch.finfo(ours.dtype).tiny)


def _rest(ours: Tensor, theirs: Tensor) -> float:
    """Return the mean sine of the angles between the rows, so that single rows may differ."""
    cosines = torch.nn.functional.cosine_similarity(ours, theirs)
    return (1 - cosines.square()).clamp_min(0).sqrt().mean().item()


def _bias_of(
    conv: str, b_weight: str, weight: Tensor, b: Mapping[str, Tensor], pairs: Mapping[str, str]
) -> str | None:
    """Return the bias behind a weight in B: by its name, else the next tensor."""
    names = [*b]
    after = names[names.index(b_weight) + 1 :][:1]
    stem = b_weight.removesuffix(".weight")
    for name in (pairs.get(f"{conv}.bias"), f"{stem}.bias", f"{b_weight}_bias", *after):
        if name is not None and name in b and b[name].ndim == 1 and b[name].shape[0] in weight.shape[:2]:
            return name
    return None
