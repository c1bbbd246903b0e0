"""MS0xx: code in the checkpoint file; MS1xx: the weights by themselves, and the input."""

from collections.abc import Iterator
from typing import Any

from modelscope_cli.records.check_evidence import Evidence
from modelscope_cli.records.findings import ERROR, WARNING
from modelscope_cli.records.naming import counted, some
from modelscope_cli.rules.rule import Sighting, rule


def _no_file(evidence: Evidence, threshold: Any) -> str | None:
    reason = "no checkpoint file was given: weights that the model's own code loads are not scanned"
    return None if evidence.safety else reason


@rule("MS001", "dangerous-code", ERROR, 0, needs=frozenset({"safety"}), excuse=_no_file)
def _dangerous(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """Loading the checkpoint with weights_only=False would run code that can take over the machine, or call an
    unknown function.

    Measure: dangerous names and calls of unknown functions in the pickles of the file
    Source: pickle, Python's documentation: never unpickle data that could have been tampered with
    Hint: modelscope weights FILE --convert FILE.safetensors   writes its tensors without the code; load that file
    Why: a pickle is a program: torch.load with weights_only=False runs what it names, with your permissions
    """
    assert evidence.safety is not None
    suspects = evidence.safety.dangerous + evidence.safety.calls
    if len(suspects) > threshold:
        for suspect in suspects:
            message = (
                f"{evidence.safety.file}: {suspect.call or suspect.name} ({suspect.place}) {suspect.reason}"
            )
            yield Sighting(None, len(suspects), message)


@rule("MS002", "unknown-code", WARNING, 0, needs=frozenset({"safety"}), excuse=_no_file)
def _unknown(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """Loading the checkpoint with weights_only=False would run code that is not known to be harmless.

    Measure: unknown names that the pickles of the file mention but do not call, and parts that cannot be read
    Source: torch.load with weights_only=True loads only the names on an allowlist
    Hint: modelscope weights FILE --convert FILE.safetensors   writes a copy without code
    Why: a function that is not known to be harmless can do anything once the file is loaded with weights_only=False
    """
    assert evidence.safety is not None
    safety = evidence.safety
    n = len(safety.objects) + len(safety.errors)
    if n > threshold:
        problems = [f"names {some(suspect.name for suspect in safety.objects)}"] * bool(safety.objects)
        problems += [f"could not be judged ({some(safety.errors, 1)})"] * bool(safety.errors)
        yield Sighting(None, n, f"{safety.file}: {' and '.join(problems)}")


@rule("MS101", "non-finite-weights", ERROR, 0, needs=frozenset({"tensors"}))
def _non_finite(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """A parameter or buffer contains NaN or infinite values.

    Measure: NaN or infinite values in one tensor
    Source: IEEE 754: NaN and infinity pass through every sum; SageMaker Debugger, ExplodingTensor: one is enough
    Hint: go back to the last checkpoint without them; lower the learning rate or clip the gradients
    Why: every value computed from it is NaN or infinite too, including the prediction
    """
    for tensor in evidence.tensors:
        n = tensor.nan_count + tensor.inf_count
        if n > threshold:
            kinds = _each({"NaN": tensor.nan_count, "infinite": tensor.inf_count})
            yield Sighting(tensor.layer or None, n, f"{kinds} of {tensor.numel} values of {tensor.name}")


@rule("MS102", "running-variance", ERROR, 0, needs=frozenset({"batch_norms"}))
def _running_variance(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """A batch norm divides by the square root of a running variance that is negative or zero.

    Measure: channels of one batch norm whose running variance is 0 or less
    Source: torch.nn.BatchNorm2d: divides by sqrt(variance + eps), eps = 1e-5: NaN below -eps, 316 times larger at 0
    Hint: the channel was constant, or the file is damaged: recompute the statistics, or remove the channel
    Why: the layer divides by almost zero or takes the square root of a negative one: its channel explodes or is NaN
    """
    for norm in evidence.batch_norms:
        n = norm.negative + norm.zero
        if n > threshold:
            kinds = _each({"negative": norm.negative, "zero": norm.zero})
            yield Sighting(norm.name or None, n, f"running variance: {kinds} of {norm.channels} channels")


def _each(counts: dict[str, int]) -> str:
    return " and ".join(f"{count} {kind}" for kind, count in counts.items() if count)


@rule("MS103", "input-not-normalised", WARNING, 10, needs=frozenset({"inputs"}))
def _input(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """The input is far from mean 0 and standard deviation 1, is constant, or contains NaN.

    Measure: root mean square of the input of the model, or of the first layer with weights
    Source: QEDan/DLCheck warns at a mean above 10; images have about 130 as bytes 0..255, below 3 once normalised
    Hint: divide by 255 and normalise as in training (--mean, --std); check what the data loader returns
    Why: initial weights suit inputs near mean 0 and standard deviation 1; other inputs saturate the first layers
        and kill ReLUs
    Error if: it contains NaN or infinite values
    """
    for i, batch in enumerate(evidence.inputs):
        which = f"input {i}" if len(evidence.inputs) > 1 else "the input"
        n_broken = batch.nan_count + batch.inf_count
        if n_broken:
            words = f"{which} itself contains {n_broken} NaN or infinite values of {batch.numel}"
            yield Sighting(None, n_broken, words, ERROR)
        elif not batch.dtype.startswith(("float", "bfloat")) or batch.rms is None:  # codes, not measures
            continue
        elif batch.numel > 1 and batch.min == batch.max:
            yield Sighting(None, batch.rms, f"every value of {which} is {batch.min:g}")
        elif min(batch.rms, evidence.first_rms or 0.0) > threshold:
            figures = f"mean {batch.mean:.3g}, standard deviation {batch.std:.3g}"
            words = f"{which} is not normalised: {figures}, from {batch.min:.3g} to {batch.max:.3g}"
            yield Sighting(None, batch.rms, f"{words}; usual are mean 0 and standard deviation 1")
    if (n := evidence.flat_images) and evidence.is_real and evidence.inputs[0].min != evidence.inputs[0].max:
        yield Sighting(None, n, f"{counted(n, 'image')} of a single colour")
