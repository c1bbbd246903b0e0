"""How far the outputs of a regression are from the truth, beside a model that always gives its mean."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from modelscope_cli.analysis.predictions.metrics import MOST_WORST, EvaluatedBatch, EvaluatedImage
from modelscope_cli.inputs.truth import Words
from modelscope_cli.records.predict import ImageError, OutputError, TruthReport

# Outputs of one unit: those whose names end in it, and coordinates such as `x`, `y1`, `eye_x`
_UNIT = re.compile(r".*[_ (\[](px|mm|cm|m|km|deg|rad|m?s|k?g|years?|%)\W*", re.IGNORECASE)
_COORDINATE = re.compile(r"(.*_)?[xyz]\d*|[xyz]\d*_.*", re.IGNORECASE)


class RegressionErrors:
    """Keeps what a model outputs for every image."""

    def __init__(self, truth: Sequence[Sequence[float]], names: Sequence[str]) -> None:
        """`truth`: of all images in their order, NaN where it is not known. `names`: of the outputs."""
        self._truth, self._names = truth, names
        self._images, self._values = list[EvaluatedImage](), list[Tensor]()

    def look(
        self, values: Tensor, numbers: Sequence[int], words: Sequence[Words], images: Sequence[str]
    ) -> EvaluatedBatch:
        pairs = zip(numbers, images, strict=True)
        found = tuple(EvaluatedImage(number, name, (), (), None) for number, name in pairs)
        return EvaluatedBatch(values.shape[1], len(found), found, values=values)

    def add(self, judged: EvaluatedBatch) -> None:
        assert judged.values is not None
        self._images += judged.images
        self._values.append(judged.values)

    def report(self, n_images: int) -> tuple[TruthReport, list[int]]:
        truth = torch.tensor([self._truth[one.number] for one in self._images], dtype=torch.float64)
        values = torch.cat(self._values).double()
        errors, known = values - truth, truth.isfinite()
        columns = [(errors[known[:, n], n], truth[known[:, n], n]) for n in range(len(self._names))]
        rows = [_of_output(name, *column) for name, column in zip(self._names, columns, strict=True)]
        # Each in units of the standard deviation of its truth, as outputs may have other units
        scales = torch.tensor([row.rmse_of_mean or 1.0 for row in rows], dtype=torch.float64)
        order = (errors.where(known, 0.0) / scales).square().sum(1).argsort(descending=True, stable=True)
        worst = order[:MOST_WORST].tolist()
        listed = tuple(
            ImageError(self._images[n].image, *(_numbers(each[n]) for each in (truth, values, errors)))
            for n in worst
        )
        if len(rows) > 1:
            rows.append(_of_all(rows, columns))
        numbers = [self._images[n].number for n in worst]
        return TruthReport("numbers", n_images, outputs=tuple(rows), errors=listed), numbers


def _numbers(row: Tensor) -> tuple[float | None, ...]:
    return tuple(value if math.isfinite(value) else None for value in row.tolist())


def _of_output(name: str, errors: Tensor, truth: Tensor) -> OutputError:
    """Return the errors of one output, from those of its images and their truth, `(images,)` float64 each."""
    if not len(truth):
        return OutputError(name, 0)
    apart = truth - truth.mean()
    means = [part.mean().item() for part in (errors.abs(), errors.square(), apart.abs(), apart.square())]
    r2 = 1 - means[1] / means[3] if truth.min() < truth.max() else None
    return OutputError(name, len(truth), means[0], means[1] ** 0.5, r2, means[2], means[3] ** 0.5)


def _of_all(rows: Sequence[OutputError], columns: Sequence[tuple[Tensor, Tensor]]) -> OutputError:
    """Return the mean of R² over the outputs, and the errors of all values if the outputs have one unit."""
    shares = [row.r2 for row in rows if row.r2 is not None]
    apart = (true - true.mean() for _, true in columns if len(true))
    whole = _of_output("all", torch.cat([error for error, _ in columns]), torch.cat([*apart]))
    whole = replace(whole, r2=sum(shares) / len(shares) if shares else None)
    is_one = len({_unit(row.output) for row in rows}) == 1
    return whole if is_one else OutputError("all", whole.n, r2=whole.r2)


def _unit(name: str) -> str:
    found = _UNIT.fullmatch(name)
    return found[1].lower() if found else "coordinate" if _COORDINATE.fullmatch(name) else name
