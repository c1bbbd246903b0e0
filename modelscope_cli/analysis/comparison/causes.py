"""Why B gives different results: the usual causes, each named only when a check shows it.

At the first layer that diverges, what enters it on both sides is compared first. Then the layer of A is computed
again with one thing changed, such as another epsilon: what makes it give B's values is the cause.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.comparison.activations import Side
from modelscope_cli.analysis.comparison.evidence import (
    Divergence,
    OnValues,
    Stored,
    gathered,
    outputs_of,
    under,
)
from modelscope_cli.analysis.comparison.folding import (
    EXPORT_AGAIN,
    differing,
    differing_bias,
    differing_weight,
    fold,
)
from modelscope_cli.analysis.comparison.matching import Key, Matching
from modelscope_cli.analysis.comparison.programs import OnnxProgram
from modelscope_cli.analysis.comparison.variants import (
    Changed,
    apart,
    coarse,
    explains,
    find_change,
    find_ending,
    of_input,
)
from modelscope_cli.hooks.layers import map_tensors, tensors_in
from modelscope_cli.hooks.session import HookSession
from modelscope_cli.records.diff import Cause, LayerDifference
from modelscope_cli.records.naming import counted, layer_of
from modelscope_cli.records.run import Arguments

_ROUNDING, _JUMP = 1e-5, 30  # relative L2 that float32 stays below, and how much more than the layers before


def find_causes(
    a: Side,
    b: Side,
    rows: Sequence[LayerDifference],
    matching: Matching | None,
    args: Arguments,
    tolerance: float,
    values: Mapping[Key, Tensor],
) -> tuple[Cause, ...]:
    """Return the causes that a check shows, in the order of the checks; empty if none does.

    Args:
        values: those of B, where A is unstable: each layer of A is then given what enters it in B.
    """
    tested = [row for row in rows if row.differing is not None or row.status == "reshaped"]
    first = next((row for row in tested if row.status not in ("same", "not tested")), None)
    matching = matching or Matching({})  # without values for two models with layers
    if first is not None:
        first = _norm_of(first, tested, matching)
    if first is None and b.program is not None:
        first = _jump(tested, tolerance)
    stored = Stored(a, b.program) if isinstance(b.program, OnnxProgram) else None
    if first is None:
        return tuple(_stored_weights(a, stored, matching)) if stored else ()
    untested = frozenset(row.label for row in rows if row.status in ("not tested", "removed"))
    layers, found = (sum(bool(key[0]) for key in some) for some in (matching.calls, matching.values))
    has_values = b.program is not None and bool(b.program.values)
    on_b = (OnValues(values, first.key),) if values else ()
    given_a = replace(a, interventions=(*a.interventions, *on_b))
    evidence = gathered(given_a, b, first, tested, untested, matching, args)
    checks = [
        _batch(a, b, args, tolerance),
        _ending(evidence, tolerance),
        _entering(given_a, evidence, tolerance),
        _order(evidence, tolerance),
        _cast(evidence, tolerance),
        _variants(evidence, tolerance),
    ]
    if stored:  # of two models, all tensors are compared
        most = None if first.status == "same" else 1
        of_file = itertools.islice(_stored_weights(a, stored, matching), most)
        checks = [_shapes(a, stored), *checks, _weights(a, stored, evidence, matching), of_file]
    is_other_model = has_values and layers > 0 and found == 0  # whose first difference explains nothing
    if not is_other_model:
        with torch.no_grad():
            shown = (tuple(check) for check in (_training(a, b), *checks))
            if causes := next(filter(None, shown), ()):
                return causes
    if not has_values or found > matching.by_value or any(row.status == "same" for row in rows):
        return ()
    message = "no layer of A is in B, neither by name nor by value"
    return (Cause("other_model", None, message, "give a model that was exported from A"),)


def _norm_of(first: LayerDifference, rows: Sequence[LayerDifference], matching: Matching) -> LayerDifference:
    """Return the norm with a folded layer that a row is a part of, where that has the weights; else the row."""
    for row in rows:
        is_around = first.name.startswith(f"{row.name}.") and "folded in" in (
            matching.remarks.get(row.key) or ""
        )
        if is_around and row.status not in ("same", "not tested"):
            return row
    return first


def _jump(rows: Sequence[LayerDifference], tolerance: float) -> LayerDifference | None:
    """Return the first row that is within the tolerance, and yet far beyond the rounding of those before it."""
    largest = 0.0
    for row in rows:
        found = row.rel_l2 or 0.0
        if row.name and tolerance >= found > max(_ROUNDING, _JUMP * largest):
            return row
        largest = max(largest, found)
    return None


# Training mode


def _training(a: Side, b: Side) -> Iterator[Cause]:
    """A file whose norms use the batch, where those of A do not, or whose dropout is active."""
    layers = dict(a.loaded.module.named_modules())
    found: list[tuple[str, str | None]] = []
    if isinstance(b.program, OnnxProgram):
        for node in b.program.net.model.nodes:
            is_dropout = node.op_type == "Dropout" and b.program.net.is_stored_and_nonzero(
                "".join(node.inputs[2:3])
            )
            has_statistics = getattr(layers.get(node.module), "running_mean", True) is not None
            if (node.normalises_by_batch and has_statistics) or is_dropout:
                found.append((f"node '{node.name}' ({node.op_type})", node.module or None))
    found += [(f"'{name}'", None) for name in getattr(b.loaded.module, "in_train_mode", ())]
    for name, layer in found[:1]:
        message = f"B was exported in training mode: {name} of B is in training mode"
        yield Cause("training_mode", layer, message, "call model.eval() before the export")


# The size of the batch


def _batch(a: Side, b: Side, args: Arguments, tolerance: float) -> Iterator[Cause]:
    """A program that gives A's values for one image alone: the batch of its export is a constant in it."""
    sizes = {tuple(one.shape[:1]) for _, one in tensors_in(args)}
    n_images = next(iter(sizes))[0] if len(sizes) == 1 and () not in sizes else 1
    if b.program is None or n_images == 1:
        return

    ends = map_tensors(args, lambda _, one: one[:1]), map_tensors(args, lambda _, one: one[-1:])
    alone = [outputs_of(a, b, image) for image in ends]
    if any(pair is None or apart(*pair) > tolerance for pair in alone):
        return
    apart_b = torch.cat([pair[1] for pair in alone if pair is not None])
    whole = outputs_of(a, b, args)
    is_whole = whole is not None and whole[1].shape == whole[0].shape and whole[1].ndim > 0
    if whole is None or not is_whole or apart(whole[1][[0, -1]], apart_b) > tolerance:
        message = f"B equals A for a single image, but not for a batch of {n_images}"
        hint = "export with dynamic_shapes, and take sizes from x.shape, not from int(x.shape[0])"
        yield Cause("dynamic_shapes", None, message, hint)


# What enters


def _entering(a: Side, evidence: Divergence, tolerance: float) -> Iterator[Cause]:
    """What enters the layer already differs: by preprocessing in B, a missing layer, or an operation between."""
    ours = evidence.a_in if evidence.name else evidence.a_out
    theirs = evidence.b_in if evidence.name else evidence.b_outs
    if ours is None or not theirs or min(apart(ours, one) for one in theirs) <= tolerance:
        return
    if evidence.is_first and evidence.name:
        alike = [other for other in theirs if other.numel() == ours.numel()] or theirs
        given = next((one for _, one in tensors_in(evidence.args)), ours)
        cause = of_input(ours, min(alike, key=lambda other: apart(other, ours)), given)
        if cause is not None:
            yield cause
            return
    where = evidence.name or "the output"
    for n, (label, _, tensor) in reversed(list(enumerate(evidence.before))):
        if explains(tensor, ours, theirs, tolerance):
            skipped = [f"{name} ({kind})" for name, kind, _ in evidence.before[n + 1 :]]
            missing = ", ".join(skipped) or f"an operation after {label}"
            message = f"{missing} is missing from B: the output of {label} goes directly to {where}"
            layer = evidence.before[n + 1][0] if skipped else evidence.name or None
            yield Cause("missing_node", layer, message, f"look at what B computes before {where}")
            return
    for label, kind, _ in reversed(evidence.before):
        found = under(a, evidence, skipped=label) if label in evidence.untested else None
        if explains(found, ours, theirs, tolerance):
            message = f"{label} ({kind}) is missing from B: without it, {where} has the same input in A"
            yield Cause("missing_node", label, message, f"look at what B computes before {where}")
            return
    for start in (*(label for label, *_ in reversed(evidence.before)), ""):
        compute = partial(under, a, evidence, start=start)
        if change := find_change(compute, ours, theirs, tolerance, evidence.numbers):
            yield _argument(*change, evidence.name, f"between {start or 'the input'} and {where}")
            return


# What leaves


def _ending(evidence: Divergence, tolerance: float) -> Iterator[Cause]:
    """A function that one side applies to its output, and the other does not."""
    outputs = (evidence.a_out, *evidence.b_outs)
    if len(outputs) != 2 or evidence.name:
        return
    for n, longer, shorter in ((1, "B", "A"), (0, "A", "B")):
        if name := find_ending(outputs[1 - n], outputs[n], tolerance):
            text = f"{longer} ends with {name} and {shorter} does not: with it, their outputs are equal"
            yield Cause("ending", None, text, f"end {shorter} with {name} too, or remove it from {longer}")
            return


def _order(evidence: Divergence, tolerance: float) -> Iterator[Cause]:
    """Classes in another order."""
    if evidence.a_out is None or evidence.a_out.shape not in [one.shape for one in evidence.b_outs]:
        return
    a, b = evidence.a_out.cpu(), evidence.b_outs[0].cpu()
    is_other = a.ndim >= 2 and evidence.is_last and apart(a, b) > tolerance  # not by rounding alone
    if is_other and explains(a.sort(1).values, a, (b.sort(1).values,), tolerance):
        moved = (a - b).abs().transpose(0, 1).flatten(1).amax(1) > tolerance * a.abs().max()
        message = f"B has the classes in a different order: {int(moved.sum())} values have different indices"
        yield Cause("class_order", evidence.name or None, message, "map the labels, or give B the head of A")


def _forward(evidence: Divergence, given: Tensor) -> Tensor:
    """Run the layer alone, in the mode of the comparison; it is left as it was."""
    value: Any = given
    with HookSession(evidence.a.loaded.module, is_training=evidence.a.is_training):
        for _, module in evidence.modules:
            value = module(value)
    tensors = [tensor for _, tensor in tensors_in(value)]
    return tensors[0] if tensors else torch.empty(0)


def _cast(evidence: Divergence, tolerance: float) -> Iterator[Cause]:
    """Values that a coarser type can hold exactly, although those of A do not fit in it."""
    if evidence.a_out is None or not evidence.b_outs or evidence.a_out.dtype != torch.float32:
        return
    a, b = evidence.a_out, evidence.b_outs[0]
    kind, where = None if coarse(a) else coarse(b), "its output is"
    if kind is None and evidence.a_in is not None and coarse(evidence.a_in) is None:
        entering = (one for one in (*evidence.b_in, *evidence.between) if one.is_floating_point())
        kind, where = next(filter(None, map(coarse, entering)), None), "its input is"
    if kind is not None and apart(a, b) < 0.05:
        message = f"B computes {evidence.name or 'its output'} in {kind}: {where} rounded to it"
        yield Cause("cast", evidence.name or None, message, f"keep {evidence.name or 'it'} in float32 in B")


def _variants(evidence: Divergence, tolerance: float) -> Iterator[Cause]:
    """Compute the layer again with one argument changed; what gives B's values is the cause."""
    if evidence.a_in is None or not evidence.modules:
        return
    name, layer = evidence.modules[-1]
    for inner, part in layer.named_modules(prefix=name):
        label = f"{inner}#{evidence.call}" if evidence.call else inner
        found = under(evidence.a, evidence, skipped=label, is_inside=True) if inner != name else None
        if explains(found, evidence.a_out, evidence.b_outs, tolerance):
            message = f"{label} ({type(part).__name__}) is missing from B: without it, {name} in A equals B"
            yield Cause("missing_node", label, message, f"look at what B computes in {name}")
            return

    def computed(changed: Changed) -> Tensor | None:
        try:
            with changed:
                return _forward(evidence, entering)
        except (RuntimeError, TypeError, ValueError):  # a value it does not take
            return None

    entering, ours = evidence.a_in, evidence.a_out
    b_outs, numbers = evidence.b_outs, evidence.numbers
    if ours is not None and (change := find_change(computed, ours, b_outs, tolerance, numbers)):
        yield _argument(*change, evidence.name, evidence.name)


def _argument(changed: Changed, kind: str, layer: str, where: str) -> Cause:
    hint = f"in B, call {changed.function} with A's {changed.argument}"
    return Cause(kind, layer or None, f"{where}, {changed}", hint)


# Weights


def _shapes(a: Side, stored: Stored) -> Iterator[Cause]:
    """The first parameter whose shape differs in B, beyond a transpose and axes of size 1."""
    parameters = dict(a.loaded.module.named_parameters())
    last = next((name for name, one in reversed(parameters.items()) if one.ndim > 1), "")
    for name, tensor in parameters.items():
        found = stored.get(name)
        if found is None:
            continue
        ours, theirs = ([size for size in one.shape if size != 1] for one in (tensor, found))
        if theirs in (ours, ours[::-1]):
            continue
        sizes = ["x".join(map(str, one.shape)) for one in (tensor, found)]
        text = f"{name} is {sizes[0]} in A and {sizes[1]} in B"
        is_head = name == last and tensor.shape[1:] == found.shape[1:]
        text += ": a different number of classes" * is_head
        yield Cause("weights", layer_of(name), text, EXPORT_AGAIN)
        return


def _weights(a: Side, stored: Stored, evidence: Divergence, matching: Matching) -> Iterator[Cause]:
    """Parameters of the layer that are not those of A."""
    stored = Stored(a, stored.program, evidence.weights)
    if len(evidence.modules) == 2:
        yield from _folded_weights(*evidence.modules, stored)
    if len(evidence.modules) != 1:
        return
    name, module = evidence.modules[0]
    for own, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
        other = _counterpart(f"{name}.{own}", tensor, stored)
        cause = None if other is None else differing(name, f"{name}.{own}", tensor, other)
        if cause is not None and cause.kind == "cast":
            n = sum(one.kind == "cast" for one in _stored_weights(a, stored, matching)) - 1
            also = f", as {'is' if n == 1 else 'are'} {counted(n, 'other tensor')}" * (n > 0)
            yield replace(cause, message=cause.message + also)
            return
        if cause is not None:
            yield cause


def _stored_weights(a: Side, stored: Stored, matching: Matching) -> Iterator[Cause]:
    """Compare every parameter that a program B has under A's name; not each shows in the outputs."""
    stored.program.net.close()
    folded = {key[0]: text.removeprefix("folded into ") for key, text in matching.remarks.items()}
    layers = dict(a.loaded.module.named_modules())
    untested = {key[0] for key in matching.calls} - {key[0] for key in matching.values}
    for name, module in layers.items():
        norm = folded.get(name, "")
        if norm in layers and folded.get(norm) != norm and "folded" not in norm and norm:
            yield from _folded_weights((name, module), (norm, layers[norm]), stored)
            continue
        if name in untested:  # it may be folded into another layer
            continue
        for own, tensor in module.named_parameters(recurse=False):
            full = f"{name}.{own}" if name else own
            found = stored.get(full)
            other = None if found is None else _fitted_to(tensor, found)
            if other is not None and (cause := differing(name, full, tensor, other)) is not None:
                yield cause


def _counterpart(name: str, tensor: Tensor, stored: Stored) -> Tensor | None:
    """Return the tensor of this name, or the nearest of its shape that the layer uses, else one that is near."""
    if (named := stored.get(name)) is not None and (found := _fitted_to(tensor, named)) is not None:
        return found
    alike = [(is_used, _fitted_to(tensor, other)) for is_used, other in stored.of_shape(tuple(tensor.shape))]
    used = [one for is_used, one in alike if is_used and one is not None]
    fitted = used or [one for _, one in alike if one is not None]
    nearest = min(fitted, key=lambda one: apart(one, tensor), default=None)
    if nearest is None or used:
        return nearest
    is_alike = (nearest - tensor.detach().cpu()).abs() <= 1e-5 * tensor.detach().abs().max().cpu()
    is_it = apart(nearest, tensor) < 1e-2 or is_alike.double().mean() > 0.5  # and not one of another layer
    return nearest if is_it else None


def _fitted_to(tensor: Tensor, other: Tensor) -> Tensor | None:
    """Return the other tensor or its transpose, whichever fits, axes of size one aside; None if neither does."""
    if other.squeeze().shape == tensor.squeeze().shape:
        other = other.reshape(tensor.shape)
    turned = [other, other.T] if other.ndim == 2 else [other]
    return min(
        (one for one in turned if one.shape == tensor.shape), key=lambda one: apart(one, tensor), default=None
    )


def _folded_weights(conv: tuple[str, nn.Module], norm: tuple[str, Any], stored: Stored) -> Iterator[Cause]:
    """Compare a convolution with its norm folded in: the bias where the weight is the same."""
    given, held = _tensors_of(conv[1]), _tensors_of(norm[1])
    if "weight" not in given or "running_var" not in held:
        return
    is_turned = type(conv[1]).__name__.startswith("ConvTranspose")
    folded = fold((conv[0], norm[0]), given, held, norm[1].eps, is_turned)
    other = _counterpart(f"{conv[0]}.weight", folded.weight, stored)
    nearest = _counterpart("", folded.shift, stored)
    cause = None if other is None else differing_weight(folded, other, bias=nearest)
    if other is not None and cause is None:
        cause = None if nearest is None else differing_bias(folded, nearest)
    if cause is not None:
        yield cause


def _tensors_of(module: nn.Module) -> dict[str, Tensor]:
    return dict(itertools.chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False)))
