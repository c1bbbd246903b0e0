"""What is put in the place of other layers, and initial weights, against figures known from outside."""

import pytest
import torch
import torch.nn.functional as F
from tolerance import assert_close
from torch import nn
from torchvision.models import resnet18

from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.session import HookSession, Observer
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
    shared = nn.ReLU()
    model = nn.Sequential(shared, nn.Linear(3, 3), shared)
    prepare(model, TrainRequest(activation="leaky:0.2"), torch.zeros(1, 3))
    assert model[0] is model[2]
    assert model[0].negative_slope == 0.2


@pytest.mark.parametrize(("request_", "message"), [
    (TrainRequest(norm="group"), "'--norm-layer group': this model has no batch norm"),
    (TrainRequest(activation="leaky"), "'--activation leaky': this model has no ReLU"),
])  # fmt: skip
def test_nothing_to_swap_is_an_error(request_, message):
    with pytest.raises(UsageError) as error:
        prepare(nn.Sequential(nn.Linear(3, 3)), request_, torch.zeros(1, 3))
    assert error.value.message == message


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
    initialise(model, TrainRequest(init=init), torch.zeros(1, 32, 8, 8))
    assert torch.equal(torch.get_rng_state(), before)
    assert model[0].weight.std().item() == pytest.approx(conv_std, rel=0.02)
    assert model[3].weight.std().item() == pytest.approx(linear_std, rel=0.02)
    assert not model[0].bias.any()


def test_kaiming_knows_the_leak():
    model = wide()
    initialise(model, TrainRequest(init="kaiming-normal", activation="leaky:0.5"), torch.zeros(1, 32, 8, 8))
    assert model[0].weight.std().item() == pytest.approx((2 / 1.25 / 288) ** 0.5, rel=0.02)


def test_lsuv_gives_every_layer_unit_variance_and_moves_no_buffer():
    class Variances(Observer):
        def __init__(self):
            self.found = []

        def leave(self, call, module, inputs, output, is_innermost):
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                self.found.append(output.var().item())

    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 100, 10)),
    )
    x = torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 5
    initialise(model, TrainRequest(init="lsuv"), x)
    assert model[1].num_batches_tracked == 0
    observer = Variances()
    with HookSession(model, [observer], is_training=True) as session:
        session.run((x,))
    assert len(observer.found) == 4
    assert observer.found == pytest.approx([1] * 4, abs=0.1)


def test_frozen_batch_norms_are_warned_of():
    (notice,) = prepare(resnet18(), TrainRequest(), torch.zeros(1, 3, 8, 8), train_only=["fc"])
    assert notice.code == "frozen_statistics"
    assert notice.message.startswith("20 frozen batch norms (bn1 ...)")
