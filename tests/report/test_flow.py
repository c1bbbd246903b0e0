"""The picture of the gradient flow: what is drawn where, for records of every kind."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from modelscope_cli.commands.grads import figures as flow
from modelscope_cli.commands.grads.figures import FILES, draw_gradient_flow, save_report
from modelscope_cli.records.grads import (
    ActivationGradient,
    GradsRecord,
    GradThresholds,
    GradTotals,
    LossInfo,
    ParameterGradient,
)
from modelscope_cli.records.run import ModelInfo, Run, WeightsInfo
from modelscope_cli.report.canvas import ACCENT, AMBER, LINE, save_figure


def activation(k: int, norm: float | None, **fields: Any) -> ActivationGradient:
    return ActivationGradient(f"layer{k}", "Conv2d", k, 0, "", (1, 4, 8, 8), grad_norm=norm, **fields)


def parameter(
    k: int, norm: float | None, shape: tuple[int, ...] = (4, 3), **fields: Any
) -> ParameterGradient:
    name = f"layer{k}"
    return ParameterGradient(
        f"{name}.weight", name, "Conv2d", k, shape, math.prod(shape), True, grad_norm=norm, **fields
    )


def record(parameters: Any, activations: Any, output_norm: float = 1.0) -> GradsRecord:
    model = ModelInfo("import", "here/net.py:Net", "Net", WeightsInfo("none", "random", "random"))
    return GradsRecord(
        run=Run("grads", ("grads", "-m", "net.py:Net"), model, None, "cpu", "float32", 0, {}),
        loss=LossInfo("cross-entropy", 1.5, "predicted", 0.0, 0.0),
        parameters=tuple(parameters),
        activations=tuple(activations),
        totals=GradTotals(1.0, None, None, 12, 0, output_norm),
        clip=None,
        thresholds=GradThresholds(1e-5, 1e4),
        mode="eval",
        passes=1,
        images=1,
    )


def full(n: int = 5) -> GradsRecord:
    norms = [10.0 ** -(k % 5) for k in range(n)]
    return record(
        [parameter(k, norm) for k, norm in enumerate(norms)],
        [activation(k, norm) for k, norm in enumerate(norms)],
    )


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Return `draw(record)`, which gives the two axes and the pixels."""
    kept = []
    draw = flow._draw

    def keep(panel: Any, *args: Any) -> None:
        kept.append(panel.axes)
        draw(panel, *args)

    monkeypatch.setattr(flow, "_draw", keep)

    def run(what: GradsRecord) -> tuple[Any, Any, np.ndarray]:
        kept.clear()
        save_figure(draw_gradient_flow(what), tmp_path / "flow.png")
        with Image.open(tmp_path / "flow.png") as image:
            return kept[0], kept[1], np.asarray(image.convert("RGB"))

    return run


def lines(axes: Any) -> dict[str, list[float]]:
    return {line.get_label(): list(line.get_xdata()) for line in axes.lines if line.get_label()[0] != "_"}


def has_colour(pixels: np.ndarray, colour: str) -> bool:
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return bool((np.abs(pixels.astype(np.int16) - np.int16(wanted)).max(-1) < 8).any())


def test_norms_stand_in_execution_order_on_a_logarithmic_scale(drawn):
    upper, lower, pixels = drawn(full())
    norms = [10.0**-k for k in range(5)]
    assert lines(upper) == {"gradient": norms, "at the model's output": [1.0, 1.0]}
    assert lines(lower) == {"gradient": norms}
    assert [text.get_text() for text in upper.get_yticklabels()] == [f"layer{k}" for k in range(5)]
    assert [text.get_text() for text in lower.get_yticklabels()] == [f"layer{k}.weight" for k in range(5)]
    assert {axes.get_xscale() for axes in (upper, lower)} == {"log"}
    low, high = upper.get_xlim()
    assert low < min(norms)
    assert high > max(norms)
    assert has_colour(pixels, AMBER)
    assert has_colour(pixels, LINE)
    assert not has_colour(pixels, ACCENT)


def test_biases_are_points_of_their_own(drawn):
    rows = [parameter(0, 1.0), parameter(1, 2.0, shape=(4,)), parameter(2, 3.0)]
    _, lower, _ = drawn(record(rows, []))
    assert lines(lower) == {"weights": [1.0, 3.0], "biases, scales": [2.0]}


def test_clipping_shows_before_and_after(drawn):
    rows = [parameter(0, 0.5, norm_before_clip=5.0), parameter(1, 0.25, norm_before_clip=0.25)]
    _, lower, _ = drawn(record(rows, []))
    assert lines(lower) == {"gradient before clipping": [5.0, 0.25], "gradient": [0.5, 0.25]}
    assert lower.get_xlim()[1] > 5


@pytest.mark.parametrize("mark", ["zero", "vanishing", "exploding", "non-finite"])
def test_marked_layers_are_red(drawn, mark):
    norm = 0.0 if mark == "zero" else 1e-6
    upper, lower, pixels = drawn(
        record([parameter(0, 1.0), parameter(1, norm, mark=mark)], [activation(0, 1.0)])
    )
    assert mark in lines(lower)
    assert mark not in lines(upper)
    assert lines(lower)[mark][0] >= lower.get_xlim()[0]  # zero has a place, too
    assert has_colour(pixels, ACCENT)


def test_what_is_all_nan_stands_on_the_right_edge(drawn):
    strange = [activation(k, norm, nan_count=9, mark="non-finite") for k, norm in enumerate([0.0, None])]
    upper, _, _ = drawn(record([], [*strange, activation(2, 1.0)]))
    assert lines(upper)["non-finite"] == [upper.get_xlim()[1]] * 2
    assert np.isnan(lines(upper)["gradient"][:2]).all()


def test_long_names_keep_both_their_ends(drawn):
    row = replace(activation(0, 1.0), name="encoder.layers.encoder_layer_11.self_attention.out_proj")
    upper, _, _ = drawn(record([], [row]))
    (label,) = [text.get_text() for text in upper.get_yticklabels()]
    assert label == "encoder.lay…elf_attention.out_proj"
    assert len(label) == 34


@pytest.mark.parametrize(
    "what",
    [
        record([], []),
        record(
            [parameter(0, None, mark="frozen")], [activation(0, None, problem="int64 output: no gradient")]
        ),
        record([parameter(0, 0.0, mark="zero")], [activation(0, 0.0, mark="zero")], output_norm=0.0),
        record([parameter(0, 1e-300)], [activation(0, 1e300)]),
        record([parameter(0, 1.0)], [activation(0, 1.0)], output_norm=math.inf),
        replace(full(), loss=LossInfo("mean", math.nan, "none", 0.0, 0.0)),
        full(1),
        full(160),
    ],
    ids=["empty", "nothing arrived", "zeros", "extremes", "infinite", "NaN loss", "one layer", "many layers"],
)
def test_every_record_can_be_drawn_and_written(tmp_path, what):
    save_report(what, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
    with Image.open(tmp_path / "gradient_flow.png") as image:
        width, height = image.size
        darkest, lightest = image.convert("L").getextrema()
    assert 300 < height < (1300 if len(what.activations) < 40 else 10_000)
    assert 800 < width <= 2000
    assert darkest < 100  # not blank
    assert lightest > 250


def test_every_layer_of_a_deep_network_is_named(drawn):
    upper, lower, _ = drawn(full(160))
    for axes, suffix in ((upper, ""), (lower, ".weight")):
        assert [text.get_text() for text in axes.get_yticklabels()] == [
            f"layer{k}{suffix}" for k in range(160)
        ]


def test_where_nothing_arrived_it_says_so(drawn):
    upper, lower, _ = drawn(record([], [activation(0, None)]))
    for axes in (upper, lower):
        assert "no gradient arrived" in [text.get_text() for text in axes.texts]
