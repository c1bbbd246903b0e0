"""What entered a model, in a line an argument."""

from collections.abc import Sequence

from modelscope_cli.records.stats import InputStats
from modelscope_cli.report import numbers


def input_facts(inputs: Sequence[InputStats]) -> list[tuple[str, str]]:
    """Return `("input", "2x3x64x64 float32, mean 0.01, std 1, from -4 to 4")` for every argument."""
    is_alone = len(inputs) == 1
    names = [
        f"input {one.name}" if one.name else "input" if is_alone else f"input {i}"
        for i, one in enumerate(inputs)
    ]
    return [(name, _words(one)) for name, one in zip(names, inputs, strict=True)]


def _words(one: InputStats) -> str:
    words = [f"{numbers.shape(one.shape)} {one.dtype}"]
    if one.mean is not None:
        words += [f"mean {numbers.number(one.mean)}", f"std {numbers.number(one.std)}"]
        words.append(f"from {numbers.number(one.min)} to {numbers.number(one.max)}")
    words += [f"{n:,} {kind}" for n, kind in ((one.nan_count, "NaN"), (one.inf_count, "infinite")) if n]
    return ", ".join(words)
