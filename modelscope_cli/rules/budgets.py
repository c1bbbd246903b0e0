"""MS5xx: limits a person sets. Costs are those of one image."""

from collections.abc import Callable, Iterator
from typing import Any

from modelscope_cli.records.check import ERROR
from modelscope_cli.records.check_evidence import Evidence, Structure
from modelscope_cli.rules.rule import Rule, Sighting, always
from modelscope_cli.rules.thresholds import write

_SUMMARY = "set by you; counted as in `modelscope summary`"


def _over(
    kind: str, what: str, cost: Callable[[Structure], int]
) -> Callable[[Evidence, float], Iterator[Sighting]]:
    def judge(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
        assert evidence.structure is not None
        value = cost(evidence.structure)
        if value > threshold:
            yield Sighting(None, value, f"{write(value, kind)} {what}, {write(threshold, kind)} allowed")

    return judge


def _memory(structure: Structure) -> int:
    totals = structure.totals
    return totals.param_bytes + totals.buffer_bytes + totals.activation_bytes


def _output(evidence: Evidence, expected: str) -> Iterator[Sighting]:
    assert evidence.structure is not None
    shapes = [",".join(map(str, shape)) for shape in evidence.structure.outputs]
    if shapes != [expected]:
        given = " and ".join(shapes) or "no tensor"
        yield Sighting(None, None, f"the output for one image is {given}, not {expected}")


def _not_of_one_image(evidence: Evidence, threshold: float | str) -> str | None:
    assert evidence.structure is not None
    n = evidence.structure.images
    return None if n == 1 else f"a budget is for one image, and the model runs only on {n}"


def _budget(
    code: str,
    what: str,
    kind: str,
    measure: str,
    cost: Callable[[Structure], int],
    excuse: Callable[[Evidence, Any], str | None] = _not_of_one_image,
) -> Rule:
    name = f"max-{what}"
    example = {"count": "25M", "bytes": "500MB"}[kind]
    return Rule(
        code=code,
        name=name,
        severity=ERROR,
        sentence=f"the model has more {measure} than its budget",
        threshold=None,
        measure=measure,
        source=_SUMMARY,
        hint=f"modelscope summary MODEL   shows where they are; or --{name} {example}",
        needs=frozenset({"structure"}),
        judge=_over(kind, measure.removeprefix("bytes "), cost),
        excuse=excuse,
        kind=kind,
    )


RULES = (
    _budget("MS501", "params", "count", "parameters", lambda structure: structure.totals.params, always),
    _budget("MS502", "macs", "count", "multiply-adds", lambda structure: structure.totals.macs),
    _budget("MS503", "memory", "bytes", "bytes of weights, buffers and layer outputs", _memory),
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
)
