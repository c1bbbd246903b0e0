"""`predict --truth` with numbers: the errors are those of NumPy, and numbers are told from classes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tolerance import close
from torch import Tensor, nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.inputs.truth import read_truth
from modelscope_cli.records.predict import OutputError, TruthReport
from modelscope_cli.report.predict.table import answer

N = 41


class Says(nn.Module):
    """Gives as output what it is given as an image."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


def drawn(outputs: int, seed: int = 0) -> Tensor:
    return torch.randn(N, outputs, 1, 1, generator=torch.Generator().manual_seed(seed))


def judged(values: Tensor, truth: Any, **keywords: Any) -> TruthReport:
    report = ms.predict(Says(), values, truth=truth, **keywords).truth
    assert report is not None
    return report


def errors_by_numpy(values: np.ndarray, truth: np.ndarray) -> tuple[int, float, float, float, float, float]:
    """R² and the others as scikit-learn has them, of one output, with those of the mean of the truth."""
    known = np.isfinite(truth)
    values, truth = values[known], truth[known]
    apart, error = truth - truth.mean(), values - truth
    r2 = 1 - (error**2).sum() / (apart**2).sum()
    return (
        len(truth),
        np.abs(error).mean(),
        (error**2).mean() ** 0.5,
        r2,
        np.abs(apart).mean(),
        (apart**2).mean() ** 0.5,
    )


def plain(row: OutputError) -> tuple[Any, ...]:
    return row.n, row.mae, row.rmse, row.r2, row.mae_of_mean, row.rmse_of_mean


@pytest.mark.parametrize("outputs", [1, 2, 3, 7])
@pytest.mark.parametrize("kind", ["near", "far", "missing"])
def test_the_errors_are_those_of_numpy(outputs: int, kind: str) -> None:
    values = drawn(outputs)
    truth = 0.8 * values.flatten(1).double().numpy() + 0.3 * drawn(outputs, 1).flatten(1).numpy()
    truth = 5 - truth if kind == "far" else truth
    if kind == "missing":
        truth[::3, 0] = np.nan
    found = judged(values, truth, batch=9)
    assert found.kind == "numbers"
    rows = [
        errors_by_numpy(*pair) for pair in zip(values.flatten(1).double().numpy().T, truth.T, strict=True)
    ]
    assert [plain(one) for one in found.outputs[:outputs]] == [tuple(map(close, row)) for row in rows]
    if outputs > 1:
        assert found.outputs[-1].output == "all"
        assert found.outputs[-1].r2 == close(np.mean([row[3] for row in rows]))
        assert found.outputs[-1].mae is None  # the units may differ
    scaled = np.nan_to_num((values.flatten(1).numpy() - truth) / [row[5] for row in rows])
    order = np.argsort(-(scaled**2).sum(1), kind="stable")[:24]
    assert [row.image for row in found.errors] == [str(n) for n in order]
    assert ("worse than the mean" in answer(ms.predict(Says(), values, truth=truth))) == (kind == "far")


@pytest.mark.parametrize(("names", "is_of_one_unit"), [
    (["x", "y"], True),
    (["left_eye_x", "left_eye_y"], True),
    (["x1", "y2"], True),
    (["width_mm", "height_mm"], True),
    (["width [px]", "height [px]"], True),
    (["width_mm", "height_cm"], False),
    (["age", "weight"], False),
    (["age_years", "weight_kg"], False),
    (["x", "age"], False),
])  # fmt: skip
def test_outputs_are_taken_together_where_their_names_tell_one_unit(names, is_of_one_unit, tmp_path) -> None:
    values, truth = drawn(2), drawn(2, 1).flatten(1).tolist()
    file = tmp_path / "truth.json"
    rows = enumerate(truth)
    file.write_text(json.dumps({str(n): dict(zip(names, row, strict=True)) for n, row in rows}))
    found = judged(values, file)
    assert [one.output for one in found.outputs] == [*names, "all"]
    over = found.outputs[-1]
    if not is_of_one_unit:
        assert (over.mae, over.rmse) == (None, None)
        return
    error = values.flatten(1).double().numpy() - np.array(truth)
    assert (over.mae, over.rmse) == (close(np.abs(error).mean()), close((error**2).mean() ** 0.5))


@pytest.mark.parametrize(("name", "text"), [
    ("t.csv", "image,x,y\na.png,1.5,2\nb.png,-3,4e1\n"),
    ("t.csv", "a.png,1.5,2\nb.png,-3,4e1\n"),
    ("t.tsv", "path\tx\ty\na.png\t1.5\t2\nb.png\t-3\t40\n"),
    ("t.txt", "a.png 1.5 2\nb.png -3 40\n"),
    ("t.csv", "a.png;1.5;2.0\nb.png;-3.0;40\n"),
    ("t.json", '{"a.png": [1.5, 2], "b.png": [-3, 40]}'),
    ("t.json", '{"a.png": {"x": 1.5, "y": 2}, "b.png": {"x": -3, "y": 40}}'),
    ("t.json", '[{"image": "a.png", "x": 1.5, "y": 2}, {"image": "b.png", "x": -3, "y": 40}]'),
])  # fmt: skip
def test_every_format_has_the_same_numbers(name, text, tmp_path) -> None:
    (tmp_path / name).write_text(text)
    truth = read_truth(tmp_path / name)
    assert (truth.images, truth.numbers) == (["a.png", "b.png"], [(1.5, 2.0), (-3.0, 40.0)])
    assert truth.outputs in {(), ("x", "y")}


WHOLE, FLAGS = [n % 5 for n in range(N)], [n % 2 for n in range(N)]
PAIRS, BOTH = [[n % 9, n % 7] for n in range(N)], [[n % 2, 1 - n % 2] for n in range(N)]


@pytest.mark.parametrize(("outputs", "truth", "options", "kind"), [
    (1, [n / 2 for n in range(N)], {}, "numbers"),
    (1, WHOLE, {}, "numbers"),
    (1, FLAGS, {}, "numbers"),
    (1, FLAGS, {"scores": "sigmoid"}, "labels"),
    (5, WHOLE, {}, "classes"),
    (5, [str(n) for n in WHOLE], {}, "classes"),
    (5, [float(n) for n in WHOLE], {}, "classes"),  # as pandas writes them
    (5, [f"{n}.0" for n in WHOLE], {}, "classes"),
    (2, FLAGS, {}, "classes"),
    (2, PAIRS, {}, "numbers"),
    (2, [[-a, b] for a, b in PAIRS], {}, "numbers"),
    (2, [[a + 0.5, b] for a, b in PAIRS], {}, "numbers"),
    (7, [[n / 3] * 7 for n in range(N)], {}, "numbers"),
    (2, BOTH, {"output_kind": "embedding"}, "numbers"),
    (4, [[n % 4, (n + 1) % 4] for n in range(N)], {}, "labels"),
])  # fmt: skip
def test_numbers_are_told_from_classes(outputs: int, truth: Any, options: Any, kind: str) -> None:
    assert judged(drawn(outputs), truth, **options).kind == kind


@pytest.mark.parametrize(("outputs", "truth", "message"), [
    (6, [n / 2 for n in range(N)], "has 1 number for each image, but the model outputs scores of 6 classes"),
    (1, [[n / 2, n] for n in range(N)], "has 2 numbers for each image, but the model outputs one value"),
    (2, [[n / N, 1 - n / N] for n in range(N)], "probabilities that sum to 1"),
    (2, [[n % 2, n % 2] for n in range(N)], "names a class twice"),
])  # fmt: skip
def test_numbers_that_are_not_those_of_the_outputs_are_refused(
    outputs: int, truth: Any, message: str
) -> None:
    with pytest.raises((CannotRunError, UsageError), match=message):
        judged(drawn(outputs), truth)


def test_labels_choose_the_columns_of_the_outputs_and_their_order(tmp_path) -> None:
    values, file = drawn(2), tmp_path / "truth.csv"
    truth = drawn(3, 1).flatten(1)
    lines = [f"{n},{','.join(map(repr, row))}" for n, row in enumerate(truth.tolist())]
    file.write_text("\n".join(["image,age,x,y", *lines]))
    found = judged(values, file, labels=["y", "x"])
    mine = judged(values, truth[:, [2, 1]])
    assert [plain(one) for one in found.outputs[:2]] == [plain(one) for one in mine.outputs[:2]]


def test_images_whose_output_is_not_finite_are_left_out(tmp_path: Path) -> None:
    values, truth = drawn(2), drawn(2, 1).flatten(1)
    values[3, 0], values[7, 1] = float("nan"), float("inf")
    record = ms.predict(Says(), values, truth=truth, batch=5)
    kept = [n for n in range(N) if n not in {3, 7}]
    mine = judged(values[kept], truth[kept])
    assert record.truth is not None
    assert record.truth.outputs == mine.outputs
    assert record.truth.images == N - 2
    assert record.truth.not_judged[0].names == ("3", "7")
    record.save(tmp_path / "a.json")
    assert ms.read(tmp_path / "a.json") == record


def test_a_truth_without_any_variation_has_no_r2() -> None:
    (row,) = judged(drawn(1), [1.5] * N).outputs
    assert (row.r2, row.rmse_of_mean) == (None, 0)
