"""The methods against what is known beforehand: linear models, additive ones, captum."""

import numpy as np
import pytest
import torch
from captum.attr import InputXGradient as CaptumInputXGradient
from captum.attr import IntegratedGradients, LayerGradCam, Occlusion, Saliency
from models_to_explain import Boxes, Flattened, Pooled, drawn, explained, image, scored
from tolerance import A_NETWORK, assert_close, close
from torch import nn

from modelscope_cli.analysis.explaining.methods import METHODS, PIXELS
from modelscope_cli.analysis.explaining.methods.of_pixels import integrated_gradients, occlude, windows
from modelscope_cli.analysis.explaining.request import METHOD_NAMES

OF_PIXELS = [name for name, method in METHODS.items() if method.kind == PIXELS]


class FourthPower(nn.Module):
    def forward(self, x):
        return torch.stack([x.pow(4).sum((1, 2, 3)), x.sum((1, 2, 3))], 1)


def test_the_names_that_can_be_asked_for_are_those_of_the_methods():
    assert tuple(METHODS) == METHOD_NAMES


def test_integrated_gradients_of_a_fourth_power_are_that_power():
    x = image()
    found = explained("integrated-gradients", FourthPower(), x)
    theta = np.pi * np.arange(1, 16) / 16
    weights = np.sin(theta) / np.sin(theta).sum()
    error = abs((weights * 4 * ((1 - np.cos(theta)) / 2) ** 3).sum() - 1)
    assert "at 15 points" in found.why  # the error of n intervals is about 0.85 / n^2: below 2 % first at 8
    assert found.completeness == pytest.approx(error, rel=1e-2)
    assert (found.cells - (x**4)[0].sum(0)).abs().max() < 2 * error * float((x**4).max()) * 3


def test_what_comparisons_make_again_is_the_first_map_of_integrated_gradients():
    model, x = drawn(Pooled()), image()
    with scored(model) as question:
        method = METHODS["integrated-gradients"]
        assert_close(method.briefly(question, x), method.explain(question, x).brief, A_NETWORK)
        few = integrated_gradients(question, x, most=4)
    assert_close(few.cells, few.brief)
    assert "at 3 points" in few.why


def norms_of_zeros(n_blocks):
    """A network that normalises an image of zeros: its gradient there is about 1e3 times that of any other."""
    torch.manual_seed(n_blocks)
    blocks = [nn.GroupNorm(1, 8, eps=1e-6), nn.Conv2d(8, 8, 3, bias=False), nn.GELU()] * n_blocks
    return nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), *blocks, nn.Flatten(), nn.LazyLinear(4))


@pytest.mark.parametrize("n_blocks", [1, 3])
def test_integrated_gradients_do_not_touch_the_singular_end(n_blocks):
    """The error stays within what is missing of the first steps of the way; at the end point itself it is 1e3."""
    model, x = norms_of_zeros(n_blocks), image()
    with torch.no_grad():
        model(x)
    assert explained("integrated-gradients", model.eval(), x).completeness < 2


@pytest.mark.parametrize("model", [Pooled(), Flattened()], ids=["pooled", "flattened"])
def test_the_cells_of_hirescam_and_the_bias_of_the_head_are_the_logit(model):
    model, x = drawn(model), image()
    logit = float(model(x)[0, 1])
    found = explained("hirescam", model, x, 1)
    assert float(found.cells.sum()) + float(model.head.bias[1]) == close(logit, scale=1)
    assert found.layer == "features"


@pytest.mark.parametrize("method", OF_PIXELS)
def test_evidence_in_a_box_is_found_there_and_moves_with_the_class(method):
    model, x = Boxes(), image().abs() + 0.5
    for index in (0, 1):
        cells = explained(method, model, x, index).cells
        # Windows of 4 pixels fit into the boxes but for the second's, whose left side lies within one.
        assert model.share_inside(cells, index) > (0.85 if method == "occlusion" else 0.999)


@pytest.mark.parametrize("batch", [1, 5])
def test_the_batch_changes_nothing(batch):
    model, x = drawn(Pooled()), image()
    for method in ("integrated-gradients", "occlusion"):
        one, other = (explained(method, model, x, batch=n).cells for n in (16, batch))
        assert_close(one, other, A_NETWORK)


class TestAgainstCaptum:
    """captum's own answers."""

    @pytest.fixture
    def case(self):
        return drawn(Pooled()), image(), 1

    def test_saliency_is_captums_largest_over_the_channels(self, case):
        model, x, index = case
        expected = Saliency(model).attribute(x.clone().requires_grad_(), index)[0].amax(0)
        assert_close(explained("saliency", model, x, index).cells, expected.detach(), A_NETWORK)

    def test_input_x_gradient(self, case):
        model, x, index = case
        expected = CaptumInputXGradient(model).attribute(x.clone().requires_grad_(), index)[0].sum(0)
        assert_close(explained("input-x-gradient", model, x, index).cells, expected.detach(), A_NETWORK)

    def test_integrated_gradients(self, case):
        model, x, index = case
        expected = IntegratedGradients(model).attribute(x, target=index, n_steps=100, internal_batch_size=16)
        expected = expected[0].sum(0).float()
        with scored(model, index) as question:
            found = integrated_gradients(question, x, first=64, most=64)
        assert "at 63 points" in found.why
        # Networks of ReLUs: any rule is off by about a point, a 64th of what changes sign on the way.
        assert (found.cells - expected).abs().max() < 0.06 * expected.abs().max()

    def test_gradcam_and_its_relu(self, case):
        model, x, index = case
        cells = explained("gradcam", model, x, index).cells
        for is_cut in (False, True):
            captum = LayerGradCam(model, model.features).attribute(x, index, relu_attributions=is_cut)[0, 0]
            assert_close(cells.relu() if is_cut else cells, captum.detach(), A_NETWORK)

    def test_occlusion_with_the_same_windows(self, case):
        model, x, index = case
        side = x.shape[-1] // 4
        with torch.no_grad():
            expected = Occlusion(model).attribute(x, (3, side, side), (3, side // 2, side // 2), target=index)
        with scored(model, index) as question:
            found = occlude(
                question, x, windows((x.shape[-2], x.shape[-1]), side, side // 2), float(question.scores(x))
            )
        logit = float(model(x)[0, index].detach())
        assert_close(found.float(), expected[0, 0], A_NETWORK, scale=abs(logit))
