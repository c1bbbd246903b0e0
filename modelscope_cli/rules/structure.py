"""MS4xx: what is in the model and takes no part."""

from collections.abc import Iterator

from modelscope_cli.records.check import WARNING
from modelscope_cli.records.check_evidence import Evidence
from modelscope_cli.records.naming import some
from modelscope_cli.records.summary import INSIDE, USED, LayerShape
from modelscope_cli.rules.rule import Rule, Sighting

# What stands below these is judged by itself.
_TAKES_PART = (USED, INSIDE)
_LEGITIMATE = ("the attention uses its weight directly", "auxiliary head, for training")


def _rows(evidence: Evidence) -> tuple[LayerShape, ...]:
    assert evidence.structure is not None
    return evidence.structure.layers


def _never_called(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    rows = _rows(evidence)
    used = evidence.backward.used if evidence.backward else frozenset()
    settled: list[str] = []  # excused or reported: with everything below
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
                f"this {row.type} with {row.params} parameters was not called with this input",
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


RULES = (
    Rule(
        code="MS401",
        name="never-called",
        severity=WARNING,
        sentence="a layer with parameters is not called in eval mode with this input, and no output depends on it",
        threshold=0,
        measure="parameters in the layer",
        source="torch.nn.Module: what is registered and never called is saved, moved and counted for nothing",
        hint="modelscope summary MODEL   shows what runs; delete the layer, call it, or give other inputs",
        needs=frozenset({"structure"}),
        wants=frozenset({"backward"}),
        judge=_never_called,
    ),
    Rule(
        code="MS402",
        name="never-trained",
        severity=WARNING,
        sentence="a layer runs and requires gradients, but none ever arrives at its parameters",
        threshold=0,
        measure="parameters of one layer whose .grad stays None",
        source="torch.nn.parallel.DistributedDataParallel, find_unused_parameters: any at all is an error there",
        hint="look for detach(), no_grad(), argmax or .item() after it; freeze it (requires_grad=False) if "
        "intended",
        needs=frozenset({"structure", "backward"}),
        judge=_never_trained,
    ),
)
