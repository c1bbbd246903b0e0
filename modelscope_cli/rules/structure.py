"""MS4xx: layers that take no part; MS5xx: budgets that a person sets, for the costs of one image."""

from collections.abc import Callable, Iterator
from typing import Any

from modelscope_cli.records.check import ERROR, WARNING
from modelscope_cli.records.check_evidence import Evidence
from modelscope_cli.records.naming import some
from modelscope_cli.records.summary import INSIDE, USED, LayerShape, SummaryTotals
from modelscope_cli.rules.rule import Rule, Sighting, always, write_threshold

# Layers below these are judged separately.
_TAKES_PART = (USED, INSIDE)
_LEGITIMATE = ("the attention uses its weight directly", "auxiliary head, for training")


def _rows(evidence: Evidence) -> tuple[LayerShape, ...]:
    assert evidence.structure is not None
    return evidence.structure.layers


def _never_called(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
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
                f"this {row.type} with {row.params} parameters is not called with this input",
            )


def _never_trained(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
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


_OF_STRUCTURE = (
    Rule(
        code="MS401",
        name="never-called",
        severity=WARNING,
        sentence="a layer with parameters is not called in eval mode, and no output depends on it",
        threshold=0,
        measure="parameters in the layer",
        source="torch.nn.Module: a registered layer that is never called is still saved, moved and counted",
        hint="modelscope summary MODEL   shows what runs; delete the layer, call it, or give other inputs",
        needs=frozenset({"structure"}),
        wants=frozenset({"backward"}),
        judge=_never_called,
    ),
    Rule(
        code="MS402",
        name="never-trained",
        severity=WARNING,
        sentence="a layer runs and requires gradients, but its parameters never get one",
        threshold=0,
        measure="parameters of one layer whose .grad stays None",
        source=(
            "torch.nn.parallel.DistributedDataParallel, find_unused_parameters: a single one is an error "
            "there"
        ),
        hint="look for detach(), no_grad(), argmax or .item() after it; freeze it (requires_grad=False) if "
        "intended",
        needs=frozenset({"structure", "backward"}),
        judge=_never_trained,
    ),
)


_SUMMARY = "set by you; counted as in `modelscope summary`"


def _over(
    kind: str, what: str, cost: Callable[[Evidence], int | None]
) -> Callable[[Evidence, float], Iterator[Sighting]]:
    def judge(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
        value = cost(evidence)
        assert value is not None
        if value > threshold:
            yield Sighting(
                None,
                value,
                f"{write_threshold(value, kind)} {what}, {write_threshold(threshold, kind)} allowed",
            )

    return judge


def _totals(evidence: Evidence) -> SummaryTotals:
    assert evidence.structure is not None
    return evidence.structure.totals


def _output(evidence: Evidence, expected: str) -> Iterator[Sighting]:
    assert evidence.structure is not None
    shapes = [",".join(map(str, shape)) for shape in evidence.structure.outputs]
    if shapes != [expected]:
        outputs = " and ".join(shapes) or "no tensor"
        yield Sighting(None, None, f"the output for one image is {outputs}, not {expected}")


def _not_of_one_image(evidence: Evidence, threshold: float | str) -> str | None:
    assert evidence.structure is not None
    n = evidence.structure.images
    return None if n == 1 else f"a budget is for one image, and the model runs only on {n}"


def _budget(
    code: str,
    what: str,
    kind: str,
    measure: str,
    cost: Callable[[Evidence], int | None],
    excuse: Callable[[Evidence, Any], str | None] = always,
    *,
    needs: str = "structure",
) -> Rule:
    name, summary = f"max-{what}", "modelscope summary MODEL" + " --train" * (needs == "training_bytes")
    example = {"count": "25M", "bytes": "500MB"}[kind]
    return Rule(
        code=code,
        name=name,
        severity=ERROR,
        sentence=f"the model has more {measure} than its budget",
        threshold=None,
        measure=measure,
        source=_SUMMARY,
        hint=f"{summary}   shows where they are; or --{name} {example}",
        needs=frozenset({needs}),
        judge=_over(kind, measure.removeprefix("bytes "), cost),
        excuse=excuse,
        kind=kind,
    )


RULES = (
    *_OF_STRUCTURE,
    _budget("MS501", "params", "count", "parameters", lambda evidence: _totals(evidence).params),
    _budget(
        "MS502", "macs", "count", "multiply-adds", lambda evidence: _totals(evidence).macs, _not_of_one_image
    ),
    _budget(
        *("MS503", "memory", "bytes", "bytes at the peak of a forward"),
        lambda evidence: evidence.forward_bytes,
        needs="forward_bytes",
    ),
    Rule(
        code="MS504",
        name="expect-output",
        severity=ERROR,
        sentence="the output of the model for one image does not have the expected shape",
        threshold=None,
        measure="shape, with a batch of 1",
        source=_SUMMARY,
        hint="--num-classes N, or --expect-output with the shape you expect",
        needs=frozenset({"structure"}),
        judge=_output,
        excuse=_not_of_one_image,
        kind="shape",
    ),
    _budget(
        *("MS505", "train-memory", "bytes", "bytes at the peak of a training step with adamw"),
        lambda evidence: evidence.training_bytes,
        needs="training_bytes",
    ),
)
