"""MS0xx: code in the checkpoint file; MS1xx: the weights by themselves, and the input."""

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
    suspects = evidence.safety.dangerous + evidence.safety.calls
    if len(suspects) > threshold:
        for suspect in suspects:
            message = (
                f"{evidence.safety.file}: {suspect.call or suspect.name} ({suspect.place}) {suspect.reason}"
            )
            yield Sighting(None, len(suspects), message)


def _unknown(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    assert evidence.safety is not None
    safety = evidence.safety
    n = len(safety.objects) + len(safety.errors)
    if n > threshold:
        problems = [f"it names {some(suspect.name for suspect in safety.objects)}"] * bool(safety.objects)
        problems += [f"it cannot be read to its end ({some(safety.errors, 1)})"] * bool(safety.errors)
        yield Sighting(None, n, f"{safety.file}: {' and '.join(problems)}")


_OF_FILES = (
    Rule(
        code="MS001",
        name="dangerous-code",
        severity=ERROR,
        sentence="loading the checkpoint with weights_only=False would run code that can take over the "
        "machine, or call an unknown function",
        threshold=0,
        measure="dangerous names and calls of unknown functions in the pickles of the file",
        source="pickle, Python's documentation: never unpickle data that could have been tampered with",
        hint="do not load it; modelscope weights FILE   lists each of them with its place",
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
        measure="unknown names in the pickles of the file that are not called, and parts that cannot be read",
        source="torch.load, weights_only=True: only names on a list are loaded",
        hint="modelscope weights FILE --convert FILE.safetensors   writes a copy without code",
        needs=frozenset({"safety"}),
        judge=_unknown,
        excuse=_no_file,
    ),
)


def _non_finite(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    for tensor in evidence.tensors:
        n = tensor.nan_count + tensor.inf_count
        if n > threshold:
            kinds = _each({"NaN": tensor.nan_count, "infinite": tensor.inf_count})
            yield Sighting(tensor.layer or None, n, f"{tensor.name}: {kinds} of {tensor.numel} values")


def _running_variance(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    for norm in evidence.batch_norms:
        n = norm.negative + norm.zero
        if n > threshold:
            kinds = _each({"negative": norm.negative, "zero": norm.zero})
            yield Sighting(norm.name or None, n, f"running variance: {kinds} of {norm.channels} channels")


def _each(counts: dict[str, int]) -> str:
    return " and ".join(f"{count} {kind}" for kind, count in counts.items() if count)


def _input(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    for i, batch in enumerate(evidence.inputs):
        which = f"input {i}" if len(evidence.inputs) > 1 else "the input"
        n_broken = batch.nan_count + batch.inf_count
        if n_broken:
            words = f"{which} itself holds {n_broken} NaN or infinite values of {batch.numel}"
            yield Sighting(None, n_broken, words, ERROR)
        elif not batch.dtype.startswith(("float", "bfloat")) or batch.rms is None:  # codes, not measures
            continue
        elif batch.numel > 1 and batch.min == batch.max:
            yield Sighting(None, batch.rms, f"every value of {which} is {batch.min:g}")
        elif min(batch.rms, evidence.first_rms or 0.0) > threshold:
            figures = f"mean {batch.mean:.3g}, standard deviation {batch.std:.3g}"
            yield Sighting(None, batch.rms, f"{which} has {figures}, from {batch.min:.3g} to {batch.max:.3g}")


RULES = (
    *_OF_FILES,
    Rule(
        code="MS101",
        name="non-finite-weights",
        severity=ERROR,
        sentence="a parameter or buffer holds NaN or infinite values",
        threshold=0,
        measure="NaN or infinite values in one tensor",
        source="IEEE 754: NaN and infinity pass through every sum; SageMaker Debugger, ExplodingTensor: any at all",
        hint="use the last checkpoint without them; lower the learning rate, clip, check the loss scale",
        needs=frozenset({"tensors"}),
        judge=_non_finite,
    ),
    Rule(
        code="MS102",
        name="running-variance",
        severity=ERROR,
        sentence="a batch norm divides by the square root of a running variance that is negative or zero",
        threshold=0,
        measure="channels of one batch norm whose running variance is 0 or less",
        source="torch.nn.BatchNorm2d: divides by sqrt(variance + eps), eps = 1e-5: NaN below -eps, times 316 at 0",
        hint="the channel was constant, or the file is damaged: recompute the statistics, or remove the channel",
        needs=frozenset({"batch_norms"}),
        judge=_running_variance,
    ),
    Rule(
        code="MS103",
        name="input-not-normalised",
        severity=WARNING,
        sentence="the input is far from mean 0 and standard deviation 1, is constant, or holds NaN",
        threshold=10,
        measure="root mean square of the input, and of the input of the first weights",
        source="QEDan/DLCheck: a mean above 10; images are below 3 once normalised, and about 130 as bytes 0..255",
        hint="divide by 255 and normalise as in training (--mean, --std); check what the data loader returns",
        needs=frozenset({"inputs"}),
        judge=_input,
    ),
)
