"""The pictures of `explain`: as wide as promised, signed colours, the winner large, whatever the maps hold."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from modelscope_cli.analysis.explaining.one_image import ImageResult, MethodResult
from modelscope_cli.commands.explain.figures import draw_explanations
from modelscope_cli.records import explain
from modelscope_cli.records.explain import (
    FAILED,
    NOT_TESTED,
    PASSED,
    Receipt,
)
from modelscope_cli.report.canvas import save_figure

GOOD = Receipt(covering=0.6, covering_chance=0.3)
BAD = Receipt(
    covering=-0.4,
    failed=("showing more of the map does not raise the score",),
    tests=(explain.TestJudgement("covering", FAILED, "showing more of the map does not raise the score"),),
)


def explained(n_methods=3, size=(30, 40), name="a.png", scores=None):
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (3, *size), dtype=torch.uint8, generator=generator)
    maps = {f"method{i}": torch.randn(size, generator=generator) for i in range(n_methods)}
    if scores is not None:
        maps["method0"] = scores
    outcomes = {
        method: MethodResult(None, shown, 0.1, "" if i else "logits", BAD if i else GOOD)
        for i, (method, shown) in enumerate(maps.items())
    }
    return ImageResult(name, "star", 0, 3.0, 0.95, outcomes, {}, image)


def with_receipts(one, receipts):
    outcomes = {
        method: replace(outcome, receipt=receipts[method]) for method, outcome in one.outcomes.items()
    }
    return replace(one, outcomes=outcomes)


def words(figure):
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


@pytest.mark.parametrize(("n_images", "n_methods"), [(1, 1), (1, 4), (1, 12), (3, 2), (16, 2)])
def test_no_picture_is_wider_than_two_thousand_pixels(tmp_path, n_images, n_methods):
    figure = draw_explanations([explained(n_methods, name=f"{i}.png") for i in range(n_images)], "a title")
    save_figure(figure, tmp_path / "explanation.png", dpi=130)
    with Image.open(tmp_path / "explanation.png") as drawn:
        width, height = drawn.size
    assert 200 < width <= 2000
    assert height < 6000
    said = words(figure)
    for i in range(n_images):
        assert any(text.startswith(f"{i}.png") for text in said)
    for i in range(n_methods):
        assert f"method{i}" in said
    sizes = {axes.get_position().bounds[2:] for axes in figure.axes if axes.images}
    assert n_images > 1 or len({(round(w, 6), round(h, 6)) for w, h in sizes}) == 1


def test_the_colours_are_symmetric_about_zero_and_the_range_is_in_logits():
    scores = torch.zeros(30, 40)
    scores[:15], scores[15:] = 3.0, -0.5
    figure = draw_explanations([explained(scores=scores)])
    assert any(text.endswith("range ±3 logits") for text in words(figure))
    overlay = next(axes for axes in figure.axes if axes.get_title("left") == "method0").images[1].get_array()
    strong, weak = overlay[0, 0], overlay[-1, 0]
    assert strong[0] > strong[2]  # red for the class
    assert weak[2] > weak[0]  # blue against it
    assert strong[3] > weak[3]  # the stronger, the less of the image is seen


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf"), 1e-30, 1e30])
def test_flat_and_strange_maps_are_drawn(tmp_path, value):
    for size in ((8, 8), (3, 200)) if value else ((200, 3),):
        one = explained(2, size, scores=torch.full(size, value))
        save_figure(draw_explanations([one]), tmp_path / "one.png")
        save_figure(draw_explanations([one, one]), tmp_path / "two.png")


def test_a_failed_test_is_said_below_the_map_and_what_was_measured_beside_it():
    said = words(draw_explanations([with_receipts(explained(1), {"method0": BAD})]))
    assert any(text.endswith("fails covering") for text in said)
    assert any("covering -0.40" in text for text in said)


def test_every_map_has_the_mark_of_its_tests():
    one = explained(3)
    answers = {"method0": PASSED, "method1": FAILED, "method2": NOT_TESTED}
    judged = {method: explain.TestJudgement("verdict", answer) for method, answer in answers.items()}
    receipts = {method: replace(GOOD, verdict=verdict) for method, verdict in judged.items()}
    figure = draw_explanations([with_receipts(one, receipts)])
    said = words(figure)
    assert {"✓ method0: passed", "✗ method1: failed", "– method2: not tested"} <= {*said}


def test_a_method_that_one_of_the_images_lacks_leaves_its_place_empty(tmp_path):
    figure = draw_explanations([explained(3), explained(2)])
    assert len(figure.axes) == 4 + 3
    save_figure(figure, tmp_path / "picture.png")
