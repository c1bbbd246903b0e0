"""What is put in the place of other layers, and initial weights, against figures known from outside."""

import pytest
import torch
import torch.nn.functional as F
from tolerance import assert_close
from torch import nn
from torchvision.models import resnet18

from modelscope_cli.errors import UsageError
from modelscope_cli.training.model import initialise, prepare, swap_norms
from modelscope_cli.training.request import TrainRequest


@pytest.mark.parametrize(
    ("norm", "kind"),
    [("layer", nn.GroupNorm), ("group", nn.GroupNorm), ("instance", nn.InstanceNorm2d),
     ("none", nn.Identity)],
)  # fmt: skip
def test_every_batch_norm_of_a_resnet_is_swapped(norm, kind):
    model = resnet18()
    swap_norms(model, norm)
    kinds = [type(module) for module in model.modules()]
    assert nn.BatchNorm2d not in kinds
    assert kinds.count(kind) == 20
    assert model(torch.randn(2, 3, 64, 64)).isfinite().all()


def test_layer_norm_is_that_of_torch_over_channels_and_places():
    model = nn.Sequential(nn.BatchNorm2d(6))
    swap_norms(model, "layer")
    x = torch.randn(2, 6, 5, 5)
    assert_close(model(x), F.layer_norm(x, (6, 5, 5)))


def test_a_layer_in_two_places_stays_one():
    shared = nn.BatchNorm1d(3)
    model = nn.Sequential(shared, nn.Linear(3, 3), shared)
    prepare(model, TrainRequest(norm="layer"))
    assert model[0] is model[2]
    assert isinstance(model[0], nn.GroupNorm)


def test_nothing_to_swap_is_an_error():
    with pytest.raises(UsageError) as error:
        prepare(nn.Sequential(nn.Linear(3, 3)), TrainRequest(norm="group"))
    assert error.value.message == "'--norm-layer group': this model has no batch norm"


def wide():
    return nn.Sequential(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 36, 200))


@pytest.mark.parametrize(("init", "conv_std", "linear_std"), [
    ("kaiming-normal", (2 / 288) ** 0.5, (2 / 2304) ** 0.5),
    ("kaiming-uniform", (2 / 288) ** 0.5, (2 / 2304) ** 0.5),
    ("xavier", (2 / (288 + 576)) ** 0.5, (2 / (2304 + 200)) ** 0.5),
])  # fmt: skip
def test_initial_deviations_are_those_of_the_papers(init, conv_std, linear_std):
    model = wide()
    before = torch.get_rng_state()
    initialise(model, TrainRequest(init=init))
    assert torch.equal(torch.get_rng_state(), before)
    assert model[0].weight.std().item() == pytest.approx(conv_std, rel=0.02)
    assert model[3].weight.std().item() == pytest.approx(linear_std, rel=0.02)
    assert not model[0].bias.any()


def test_frozen_batch_norms_are_warned_of():
    (notice,) = prepare(resnet18(), TrainRequest(), train_only=["fc"])
    assert notice.code == "frozen_statistics"
    assert notice.message.startswith("20 frozen batch norms (bn1 ...)")
