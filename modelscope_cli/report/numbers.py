"""Numbers, names and facts for people: shapes, counts, bytes, fractions, shortened labels, inputs, hooks."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from modelscope_cli.records.naming import counted, label_of
from modelscope_cli.records.run import HookReport, Run, Share

if TYPE_CHECKING:
    from modelscope_cli.records.featuremaps import FeatureMap
    from modelscope_cli.records.stats import BatchNormDrift, InputStats


def shortened(name: str, most: int = 34) -> str:
    """Shorten a long name in its middle, as both ends distinguish layers and files."""
    start = most // 3
    return name if len(name) <= most else f"{name[:start]}…{name[start + 1 - most :]}"


def file_stems(rows: Sequence["FeatureMap"]) -> list[str]:
    """Return `012_layer2.0.conv1` for each row: call index, label, output."""
    width = max(3, len(str(max((row.order for row in rows), default=0))))
    stems = []
    for row in rows:
        text = label_of(row) + (f"_{row.output}" if row.output else "")
        safe = "".join(mark if mark.isalnum() or mark in "._#-" else "-" for mark in text)
        stems.append(f"{row.order:0{width}d}_{safe[:150]}")
    return stems


_BLOCKS = "▁▂▃▄▅▆▇█"
_THOUSANDS = ("", "k", "M", "G", "T")
_BYTES = ("B", "KiB", "MiB", "GiB")


def shape(values: Sequence[int]) -> str:
    """Format `(1, 64, 56, 56)` as `1x64x56x56`; a scalar as `scalar`."""
    return "x".join(str(value) for value in values) if values else "scalar"


def shapes(values: Sequence[Sequence[int]], most: int = 2) -> str:
    """Format up to `most` shapes; of more the first, and the number of the others: `100x4 and 2 more`."""
    if len(values) > most:
        return f"{shape(values[0])} and {len(values) - 1} more"
    return ", ".join(shape(value) for value in values)


def count(value: int) -> str:
    """Format `21797672` as `21,797,672`."""
    return f"{value:,}"


def _scaled(value: float, base: int, most: float, units: Sequence[str]) -> tuple[float, str]:
    """Return a value in the first unit in which it is below `most`, else in the last, and the unit."""
    for unit in units[:-1]:
        if abs(value) < most:
            return value, unit
        value /= base
    return value, units[-1]


def short(value: float) -> str:
    """Format `3664000000` as `3.66 G`: three digits and an SI prefix."""
    amount, unit = _scaled(value, 1000, 999.5, _THOUSANDS)
    return f"{amount:.3g} {unit}".strip() if amount < 999.5 else f"{amount:.0f} {unit}"


def memory(value: int) -> str:
    """Format bytes in binary units: `3211264` as `3.06 MiB`."""
    amount, unit = _scaled(value, 1024, 1024, _BYTES)
    return f"{amount:.0f} {unit}" if unit == _BYTES[0] else f"{amount:.2f} {unit}"


def percent(fraction: float | None) -> str:
    """Format a fraction as `12.3 %`; a tiny one that is not zero as `<0.1 %`, and nearly all as `>99.9 %`."""
    if fraction is None or math.isnan(fraction):
        return "" if fraction is None else "nan"
    if 0.9995 <= fraction < 1:
        return ">99.9 %"
    return "<0.1 %" if 0 < fraction < 0.001 else f"{round(100 * fraction, 1) + 0:.1f} %"  # never -0.0


def accuracy_words(share: Share, n_images: int) -> str:
    """Return an accuracy with its number of images and its confidence interval."""
    interval = f"{percent(share.low)} .. {percent(share.high)} (95 % confidence interval)"
    return f"{percent(share.value)} of {counted(n_images, 'image')}; {interval}"


def signed(value: float | None) -> str:
    """Format with two decimals and the sign: `+0.31`."""
    return "" if value is None else f"{round(value, 2) + 0.0:+.2f}"  # never -0.00


def number(value: float | None) -> str:
    """Format with four significant digits, in a similar width at any magnitude."""
    if value is None:
        return ""
    if value == 0:
        return "0"
    return f"{value:.4f}" if 0.001 <= abs(value) < 100 else f"{value:.4g}"


def loss(value: float | None) -> str:
    """Format a loss; NaN and infinity, which a document does not have, as `not finite`."""
    return number(value) if value is not None and math.isfinite(value) else "not finite"


def notation(values: Sequence[float | None], *, is_change: bool = False) -> Callable[[float | None], str]:
    """Return a formatter for a column of numbers, so that magnitudes can be compared.

    All have the same number of decimals if that is short and leaves each three significant digits, else powers of
    ten. Among numbers of both signs the smaller half may have fewer digits, as they may be remainders of larger
    ones that cancel. A positive change has a sign.
    """
    sign = "+" if is_change else ""
    sizes = sorted(abs(value) for value in values if value and math.isfinite(value))
    if not sizes:
        return lambda value: _written(value, "f")
    is_signed = any(value is not None and value < 0 for value in values)
    least, most = _exponent(sizes[len(sizes) // 2 if is_signed else 0]), _exponent(sizes[-1])
    decimals = max(3 - most, 2 - least, 0)
    form = f"{decimals}f" if max(most, 0) + 1 + decimals <= _MOST_DIGITS else "3e"
    return lambda value: _written(value, f"{sign}z.{form}")


_MOST_DIGITS = 7


def amounts(values: Sequence[float | None]) -> Callable[[float | None], str]:
    """Return a formatter for a column of counts in one unit: `11,513.6 M` above `51.4 M`.

    0 is empty. The median has three significant digits. Values that would round to zero are `<0.1 M`.
    """
    return _in_one_unit(values, 1000, _THOUSANDS)


def sizes(values: Sequence[float | None]) -> Callable[[float | None], str]:
    """Return such a formatter for bytes in binary units: `3,136.0 KiB` above `98.0 KiB`."""
    return _in_one_unit(values, 1024, _BYTES)


def _in_one_unit(
    values: Sequence[float | None], base: int, units: Sequence[str]
) -> Callable[[float | None], str]:
    nonzero = sorted(value for value in values if value)
    middle = statistics.median_high(nonzero) if nonzero else 1
    power = min(max(int(math.log(middle, base)), 0), len(units) - 1)
    unit = base**power
    decimals = max(2 - _exponent(middle / unit), 0) if power else 0
    least = 10**-decimals

    def write(value: float | None) -> str:
        if not value:
            return ""
        is_small = value / unit < least / 2
        text = f"<{least:.{decimals}f}" if is_small else f"{value / unit:,.{decimals}f}"
        return f"{text} {units[power]}".strip()

    return write


def _exponent(size: float) -> int:
    return math.floor(math.log10(size))


def _written(value: float | None, form: str) -> str:
    if value is None:
        return ""
    return "0" if value == 0 else format(value, form)


def bars(counts: Sequence[int], width: int = 16) -> str:
    """Format a histogram as `width` block characters; heights are logarithmic, so that tails are visible."""
    if not counts:
        return ""
    width = min(width, len(counts))
    # Each character covers the same number of bins, the last one possibly fewer.
    step = -(-len(counts) // width)
    groups = [sum(counts[i : i + step]) for i in range(0, len(counts), step)]
    top = math.log1p(max(groups))
    if not top:
        return ""
    return "".join(_BLOCKS[round(math.log1p(n) / top * 7)] if n else " " for n in groups)


def headline(run: Run, images: int, *details: str) -> str:
    """Return `resnet34 (ResNet, weights random) on 2 images, train mode, cpu`; empty details are left out."""
    where = ", ".join(filter(None, (given(run, images), *details, run.device)))
    return f"{run.model.described} on {where}"


def given(run: Run, images: int) -> str:
    """Return the input of the model: the number of images, or the shape of other input."""
    if run.input and run.input.source != "image":
        return f"{run.input.source} {shapes(run.input.shape)}"
    return counted(images, "image")


def input_facts(inputs: Sequence["InputStats"]) -> list[tuple[str, str]]:
    """Return `("input", "2x3x64x64 float32, mean 0.01, std 1, from -4 to 4")` for every argument."""
    facts = []
    for i, one in enumerate(inputs):
        words = [f"{shape(one.shape)} {one.dtype}"]
        if one.mean is not None:
            words += [f"mean {number(one.mean)}", f"std {number(one.std)}"]
            words.append(f"from {number(one.min)} to {number(one.max)}")
        words += [f"{n:,} {kind}" for n, kind in ((one.nan_count, "NaN"), (one.inf_count, "infinite")) if n]
        name = f"input {one.name}" if one.name else "input" if len(inputs) == 1 else f"input {i}"
        facts.append((name, ", ".join(words)))
    return facts


def hook_facts(reports: Sequence[HookReport]) -> Iterator[tuple[str, str]]:
    for report in reports:
        yield "hook", f"{report.spec}: {_what_it_did(report)}"


def drift_facts(rows: Sequence["BatchNormDrift"]) -> Iterator[tuple[str, str]]:
    """Yield which batch norm drifts farthest in train mode, if there is any."""
    if rows:
        worst = max(rows, key=lambda row: row.mean_gap)
        far = f"{worst.mean_gap:.3g} standard deviations from its running mean"
        more = f", the farthest of {len(rows)} calls" if len(rows) > 1 else ""
        yield "batch norm", f"the batch mean of {label_of(worst)} is {far}{more}"


def not_called_facts(layers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a line with the requested layers that the forward did not call, if any."""
    if layers:
        yield "not called", ", ".join(layers)


def _what_it_did(report: HookReport) -> str:
    n = len(report.layers)
    where = report.layers[0] if n == 1 else f"{n} layers"
    if not report.fired:
        return f"never ran at {where}"
    times = "once" if report.fired == 1 else f"{count(report.fired)} times"
    parts = [f"ran {times} at {where}"]
    if report.never_fired:
        parts.append(f"{len(report.never_fired)} of them not reached")
    if report.changed_fraction is not None:
        gap = number(report.max_abs_difference)
        parts.append(f"changed {percent(report.changed_fraction)} of the values by at most {gap}")
    if report.file:
        parts.append(f"wrote {report.file}")
    return ", ".join(parts)
