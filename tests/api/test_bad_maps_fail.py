"""The quick receipt over good maps of a trained model, and over seven kinds of bad ones."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from function_and_command import HEALTHY, SAMPLES, TINY, tiny_resnet
from torch import nn

import modelscope_cli as ms
from modelscope_cli.analysis.explaining import request
from modelscope_cli.analysis.explaining.layer import Map
from modelscope_cli.analysis.explaining.methods import METHODS, PIXELS, Method
from modelscope_cli.records.explain import NOT_TESTED

IMAGES = [str(folder / "2.jpg") for folder in sorted(Path(f"{SAMPLES}/shapes").iterdir())]
GOOD = ("hirescam", "integrated-gradients")


def verdicts(model, methods, size=64, n=5, **keywords):
    """Return the verdict on each method over so many images."""
    found = ms.explain(model, IMAGES[:n], method=",".join(methods), size=size, **keywords)
    return {row.method: row.receipt.verdict for row in found.rows}


def smooth_noise(scored, image):
    return F.interpolate(torch.randn(1, 1, 7, 7), size=image.shape[-2:], mode="bicubic")[0, 0]


def seeded_noise(scored, image):
    return torch.randn(image.shape[-2:], generator=torch.Generator().manual_seed(scored.seed))


def edges_of_the_image(scored, image):
    return torch.stack(torch.gradient(image[0].mean(0))).norm(dim=0)


def centre_prior(scored, image):
    down, across = (torch.linspace(-1, 1, side) for side in image.shape[-2:])
    return torch.exp(-3 * (down[:, None].square() + across.square()))


def other_image(scored, image):
    """A map of the model that never looks at the image it is given."""
    drawn = torch.rand(image.shape, generator=torch.Generator().manual_seed(1)) * 2 - 1
    return METHODS["hirescam"].explain(scored, F.avg_pool2d(drawn, 9, 1, 4) * 5).on(image.shape[-2:])


def wrong_class(scored, image):
    unlikely = int(scored.target._logits(scored.run(image)).argmin())
    target = replace(scored.target, index=unlikely)
    return METHODS["integrated-gradients"].explain(replace(scored, target=target), image).cells


def guided_backprop(scored, image):
    """Springenberg et al. 2015: of what goes back through a ReLU only what is positive."""

    class Guided(torch.autograd.Function):
        @staticmethod
        def forward(context, values):
            context.save_for_backward(values)
            return values.clamp(min=0)

        @staticmethod
        def backward(context, gradient):
            (values,) = context.saved_tensors
            return gradient.clamp(min=0) * (values > 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.ReLU, "forward", lambda self, values: Guided.apply(values))
        ((_, gradient),) = scored.gradients(image)
    return gradient[0].sum(0)


BAD = (
    smooth_noise, seeded_noise, edges_of_the_image, centre_prior, other_image, wrong_class, guided_backprop,
)  # fmt: skip


def test_of_bad_maps_at_most_one_in_twenty_passes(monkeypatch):
    names = tuple(bad.__name__ for bad in BAD)
    monkeypatch.setattr(request, "METHOD_NAMES", names)
    for name, bad in zip(names, BAD, strict=True):
        explain = lambda scored, image, bad=bad: Map(bad(scored, image), "bad")  # noqa: E731
        monkeypatch.setitem(METHODS, name, Method(explain, PIXELS))
    found = verdicts(TINY, names, checkpoint=HEALTHY)
    passed = {name: verdict.passed for name, verdict in found.items() if verdict.passed}
    assert sum(passed.values()) <= 0.05 * len(BAD) * 5, passed
    assert all(verdict.failed == 5 for name, verdict in found.items() if name != "wrong_class"), found


@pytest.mark.slow
def test_of_the_maps_of_a_trained_model_most_pass_or_are_weak():
    found = ms.explain(TINY, f"{SAMPLES}/shapes", method=",".join(GOOD), size=224, checkpoint=HEALTHY)
    judged = [row.receipt.verdict for row in found.rows]
    assert sum(verdict.passed + verdict.weak for verdict in judged) >= 0.85 * len(GOOD) * 30
    assert sum(verdict.passed for verdict in judged) >= 0.2 * len(GOOD) * 30  # 16, and 38 are weak


def test_a_score_that_does_not_fall_and_a_class_that_is_not_there_are_not_tested():
    untrained = tiny_resnet()
    torch.manual_seed(0)
    for layer in untrained.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.reset_parameters()
    absent = {"target": 9, "size": 224}
    for model, keywords, why in ((untrained, {}, "half-covered"), (tiny_resnet(), absent, "another class")):
        for verdict in verdicts(model, GOOD, n=2, **keywords).values():
            assert verdict.passed == 0
            assert verdict.answer == NOT_TESTED
            assert why in verdict.reason
