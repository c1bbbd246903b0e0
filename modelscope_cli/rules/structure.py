"""MS4xx: layers that take no part; MS5xx: budgets that a person sets, for the costs of one image."""

from collections.abc import Iterator

from modelscope_cli.records.check_evidence import Evidence
from modelscope_cli.records.findings import ERROR, WARNING
from modelscope_cli.records.naming import some
from modelscope_cli.records.summary import INSIDE, USED, LayerShape, SummaryTotals
from modelscope_cli.rules.rule import Sighting, rule, write_threshold

# Layers below these are judged separately.
_TAKES_PART = (USED, INSIDE)
_LEGITIMATE = ("the attention uses the weight without calling the layer", "auxiliary head, for training")


def _rows(evidence: Evidence) -> tuple[LayerShape, ...]:
    assert evidence.structure is not None
    return evidence.structure.layers


def _not_of_one_image(evidence: Evidence, threshold: float | str) -> str | None:
    assert evidence.structure is not None
    n = evidence.structure.images
    return None if n == 1 else f"a budget is for one image, but the model runs only on {n}"


@rule("MS401", "never-called", WARNING, 0, needs=frozenset({"structure"}), wants=frozenset({"backward"}))
def _never_called(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """A layer with parameters is not called in eval mode, and no output depends on it.

    Measure: parameters in the layer
    Source: torch.nn.Module: a registered layer that is never called is still saved, moved and counted
    Hint: modelscope summary MODEL   shows what runs; delete the layer, call it, or give other inputs
    Why: a layer that never runs wastes memory, and often its call in forward was forgotten
    """
    rows = _rows(evidence)
    used = evidence.backward.used if evidence.backward else frozenset()
    settled: list[str] = []  # excused or reported, with all layers below
    for row in rows:
        if (
            row.executed
            or row.params <= threshold
            or any(row.name.startswith(f"{name}.") for name in settled)
        ):
            continue
        if row.note in _TAKES_PART or row.name in used:
            continue
        settled.append(row.name)
        if row.note not in _LEGITIMATE:
            yield Sighting(
                row.name,
                row.params,
                f"this {row.type} with {row.params} parameters is not called for this input",
            )


@rule("MS402", "never-trained", WARNING, 0, needs=frozenset({"structure", "backward"}))
def _never_trained(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """A layer runs and requires gradients, but its parameters never get one.

    Measure: parameters of one layer whose .grad stays None
    Source: torch.nn.parallel.DistributedDataParallel, find_unused_parameters: even one such parameter is an error
    Hint: look for detach(), no_grad(), argmax or .item() after it; freeze it (requires_grad=False) if intended
    Why: these parameters keep their initial values, although training seems to work
    """
    assert evidence.backward is not None
    called = {row.name for row in _rows(evidence) if row.executed}
    unused: dict[str, list[str]] = {}
    for row in evidence.backward.parameters:
        if row.mark == "unused" and row.layer in called:
            unused.setdefault(row.layer, []).append(row.name)
    for layer, names in unused.items():
        if len(names) > threshold:
            yield Sighting(
                layer or None, len(names), f"the layer runs, but the loss does not depend on {some(names)}"
            )


def _over(threshold: float, value: int | None, kind: str, what: str) -> Iterator[Sighting]:
    assert value is not None
    found, allowed = (write_threshold(one, kind) for one in (value, threshold))
    if found == allowed:
        found, allowed = f"{value:,}", f"{threshold:,.0f}"
    yield Sighting(None, value, f"{found} {what}, {allowed} allowed", is_met=value <= threshold)


def _totals(evidence: Evidence) -> SummaryTotals:
    assert evidence.structure is not None
    return evidence.structure.totals


@rule("MS501", "max-params", ERROR, None, needs=frozenset({"structure"}), kind="count")
def _params(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """The model has more parameters than the budget allows.

    Measure: parameters
    Source: set by you; counted as in modelscope summary
    Hint: modelscope summary MODEL --sort params   shows the largest layers first
    Why: you set this limit: the target device may have no room for a larger model
    """
    return _over(threshold, _totals(evidence).params, "count", "parameters")


@rule(
    "MS502", "max-macs", ERROR, None, needs=frozenset({"structure"}), excuse=_not_of_one_image, kind="count"
)
def _macs(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """The model has more multiply-adds than the budget allows.

    Measure: multiply-adds
    Source: set by you; counted as in modelscope summary
    Hint: modelscope summary MODEL --batch 1 --sort macs   shows the costliest first
    Why: you set this limit: a more expensive model is too slow for the device
    """
    return _over(threshold, _totals(evidence).macs, "count", "multiply-adds")


@rule("MS503", "max-memory", ERROR, None, needs=frozenset({"forward_bytes"}), kind="bytes")
def _memory(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """The peak memory of a forward pass is above the budget.

    Measure: bytes at the peak of a forward pass
    Source: set by you; counted as in modelscope summary
    Hint: modelscope summary MODEL --sort memory   shows the largest outputs first
    Why: you set this limit: a larger model runs out of memory on the target device
    """
    return _over(threshold, evidence.forward_bytes, "bytes", "at the peak of a forward pass")


@rule(
    "MS504",
    "expect-output",
    ERROR,
    None,
    needs=frozenset({"structure"}),
    excuse=_not_of_one_image,
    kind="shape",
)
def _output(evidence: Evidence, expected: str) -> Iterator[Sighting]:
    """The output of the model for one image does not have the expected shape.

    Measure: shape, with a batch of 1
    Source: set by you; counted as in modelscope summary
    Hint: use --num-classes N, or --expect-output with the expected shape
    Why: the code that reads the output expects this shape, and fails or misreads it
    """
    assert evidence.structure is not None
    shapes = [",".join(map(str, shape)) for shape in evidence.structure.outputs]
    if shapes != [expected]:
        outputs = " and ".join(shapes) or "no tensor"
        yield Sighting(None, None, f"the output for one image is {outputs}, not {expected}")


@rule("MS505", "max-train-memory", ERROR, None, needs=frozenset({"training_bytes"}), kind="bytes")
def _training_memory(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """The peak memory of a training step with adamw is above the budget.

    Measure: bytes at the peak of a training step with adamw
    Source: set by you; counted as in modelscope summary
    Hint: modelscope summary MODEL --train --sort saved   shows the layers that keep most first
    Why: you set this limit: a larger training step runs out of memory where the model is trained
    """
    return _over(threshold, evidence.training_bytes, "bytes", "at the peak of a training step with adamw")
