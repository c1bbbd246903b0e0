"""MS0xx: what the file of a checkpoint would run."""

from collections.abc import Iterator
from typing import Any

from modelscope_cli.records.check import ERROR, WARNING
from modelscope_cli.records.check_evidence import Evidence
from modelscope_cli.records.naming import some
from modelscope_cli.rules.rule import Rule, Sighting


def _no_file(evidence: Evidence, threshold: Any) -> str | None:
    return None if evidence.safety else "the weights are from no checkpoint file"


def _dangerous(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    assert evidence.safety is not None
    found = evidence.safety.dangerous + evidence.safety.calls
    if len(found) > threshold:
        for suspect in found:
            message = (
                f"{evidence.safety.file}: {suspect.call or suspect.name} ({suspect.place}) {suspect.reason}"
            )
            yield Sighting(None, len(found), message)


def _unknown(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    assert evidence.safety is not None
    safety = evidence.safety
    n = len(safety.objects) + len(safety.errors)
    if n > threshold:
        what = [f"it names {some(suspect.name for suspect in safety.objects)}"] * bool(safety.objects)
        what += [f"it cannot be read to its end ({some(safety.errors, 1)})"] * bool(safety.errors)
        yield Sighting(None, n, f"{safety.file}: {' and '.join(what)}")


RULES = (
    Rule(
        code="MS001",
        name="dangerous-code",
        severity=ERROR,
        sentence="loading the checkpoint with weights_only=False would run code that can take over the machine, or "
        "calls what is not known",
        threshold=0,
        measure="dangerous names, and calls of unknown ones, in the pickles of the file",
        source="pickle, Python's documentation: never unpickle data that could have been tampered with",
        hint="do not load it; modelscope weights FILE   lists each of them and where it is",
        needs=frozenset({"safety"}),
        judge=_dangerous,
        excuse=_no_file,
    ),
    Rule(
        code="MS002",
        name="unknown-code",
        severity=WARNING,
        sentence="loading the checkpoint with weights_only=False would run code that is not known to be harmless",
        threshold=0,
        measure="unknown names in the pickles of the file that are not called, and places that cannot be read",
        source="torch.load, weights_only=True: only names on a list are loaded",
        hint="modelscope weights FILE --convert FILE.safetensors   writes a copy without code",
        needs=frozenset({"safety"}),
        judge=_unknown,
        excuse=_no_file,
    ),
)
