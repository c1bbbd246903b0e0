"""The attacks against the published formulas, written out with torch and torchvision alone."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from tolerance import A_NETWORK, assert_close, close
from torchvision.models import squeezenet1_1
from torchvision.transforms import v2

from modelscope_cli.analysis.attack.on_image import (
    attack_image,
    describe,
    function_of_pixels,
    save_and_reread,
)
from modelscope_cli.analysis.attack.request import make_request
from modelscope_cli.analysis.attack.search import Goal, search
from modelscope_cli.inputs.preprocessing_choice import plan_preprocessing
from modelscope_cli.inputs.python_inputs import open_inputs
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.models.load import load_model
from modelscope_cli.models.request import ModelRequest

SAMPLES = Path(__file__).parents[2] / "samples"
CHECKPOINT = SAMPLES / "shapes_squeezenet1_1.safetensors"
STAR, DOTS = 3, 8
STEPS = 5
LOGIT = 20  # the size of the logits whose differences a loss is

normalize = v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


@pytest.fixture(scope="module")
def network():
    network = squeezenet1_1(num_classes=10).eval()
    network.load_state_dict(load_file(CHECKPOINT))
    return network


@pytest.fixture(scope="module")
def star():
    """The picture as torchvision prepares it, before normalisation: `(1, 3, 224, 224)` in 0..1."""
    prepare = v2.Compose(
        [v2.Resize(256), v2.CenterCrop(224), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    )
    return prepare(Image.open(SAMPLES / "star.png").convert("RGB"))[None].as_subclass(torch.Tensor)


def gradient(network, x, index):
    """Return the cross-entropy and its gradient, the way every tutorial does it."""
    x = x.clone().requires_grad_()
    loss = F.cross_entropy(network(normalize(x)), torch.tensor([index]))
    loss.backward()
    return loss.item(), x.grad


def fgsm(network, x, epsilon, index):
    """Goodfellow et al. 2015: x + epsilon sign(gradient)."""
    return (x + epsilon * gradient(network, x, index)[1].sign()).clamp(0, 1)


def by_the_papers(network, x, *, start, epsilon, step, index, direction, norm):
    """Kurakin et al. 2017 (from the picture) and Madry et al. 2018 (from a random start): pictures and losses."""
    points, losses = [start], []
    for _ in range(STEPS):
        loss, g = gradient(network, points[-1], index)
        losses.append(loss)
        if norm == "linf":
            moved = points[-1] + direction * step * g.sign()
            moved = torch.max(torch.min(moved, x + epsilon), x - epsilon)
        else:
            delta = points[-1] + direction * step * g / g.norm() - x
            moved = x + delta * min(1.0, epsilon / delta.norm().item())
        points.append(moved.clamp(0, 1))
    return points, [*losses, gradient(network, points[-1], index)[0]]


def random_start(x, epsilon, norm, seed):
    generator = torch.Generator().manual_seed(seed)
    if norm == "linf":
        return (x + epsilon * (2 * torch.rand(x.shape, generator=generator) - 1)).clamp(0, 1)
    direction = torch.randn(x.shape, generator=generator)
    radius = epsilon * torch.rand((), generator=generator) ** (1 / x.numel())
    return (x + radius * direction / direction.norm()).clamp(0, 1)


@pytest.fixture(scope="module")
def loaded():
    return load_model(ModelRequest("squeezenet1_1", checkpoint=CHECKPOINT, device="cpu"))


@pytest.fixture(scope="module")
def attacked(star, loaded):
    """Search as the command does, on the loaded model, with the normalisation of its plan."""
    plan = plan_preprocessing(InputRequest(), loaded.family, loaded.transforms, loaded.module)

    def attack(goal, method, norm="linf", epsilon="8/255", steps=None):
        request = make_request(
            method=method,
            norm=norm,
            epsilon=epsilon,
            steps=steps,
            step_size=None,
            restarts=1,
            target=None,
            seed=7,
        )
        with function_of_pixels(loaded, plan) as run:
            return search(lambda x: run(x).main.tensor(), star, goal, request)

    return attack


def test_fgsm(network, star, attacked):
    found = attacked(Goal(STAR, is_targeted=False), "fgsm")
    expected = fgsm(network, star, 8 / 255, STAR)
    assert_close(found.pixels, expected)
    with torch.no_grad():
        assert_close(found.logits, network(normalize(expected)), A_NETWORK)


@pytest.mark.parametrize("method", ["ifgsm", "pgd"])
@pytest.mark.parametrize(("norm", "epsilon"), [("linf", 2 / 255), ("l2", 0.5)])
@pytest.mark.parametrize("goal", [Goal(STAR, is_targeted=False), Goal(DOTS, is_targeted=True)])
def test_ifgsm_and_pgd_take_the_same_way(network, star, attacked, method, norm, epsilon, goal):
    found = attacked(goal, method, norm, repr(epsilon), STEPS)
    points, losses = by_the_papers(
        network,
        star,
        start=random_start(star, epsilon, norm, 7) if method == "pgd" else star,
        epsilon=epsilon,
        step=(2.5 if method == "pgd" else 1) * epsilon / STEPS,
        index=goal.index,
        direction=-1 if goal.is_targeted else 1,
        norm=norm,
    )
    n = len(found.losses[0])
    assert n == STEPS + 1 or found.is_success
    assert found.losses[0] == close(losses[:n], STEPS * A_NETWORK, scale=LOGIT)
    assert_close(found.pixels, points[found.iterations], STEPS * A_NETWORK)


def test_a_held_out_picture_of_every_class_fools_the_network_from_its_file(loaded, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SAMPLES))
    from dataset import Shapes

    request = make_request(
        method="pgd", norm="linf", epsilon="8/255", steps=20, step_size=None, restarts=1, target=None, seed=0
    )
    for picture, label in Shapes(10, seed=1, size=224):
        picture.save(tmp_path / "drawn.png")
        inputs = open_inputs(
            InputRequest(files=(str(tmp_path / "drawn.png"),)),
            family=loaded.family,
            transforms=loaded.transforms,
            module=loaded.module,
            device=loaded.device,
            dtype=loaded.dtype,
        )
        attack = attack_image(loaded, inputs, request)
        read = save_and_reread(loaded, inputs, attack.found, tmp_path / "found.png")
        assert int(attack.before.argmax()) == label
        assert int(read.logits.argmax()) != label
        assert describe(attack, read, request, loaded.categories)["linf_saved"] <= 8 / 255 + 1e-12
