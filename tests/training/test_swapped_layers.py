"""What is put in the place of other layers, and initial weights, against figures known from outside."""

import pytest
import torch
import torch.nn.functional as F
from tolerance import A_NETWORK, assert_close
from torch import nn
from torchvision.models import resnet18

from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.session import HookSession, Observer
from modelscope_cli.training.model import GeneralReLU, RunningBatchNorm, initialise, prepare, swap_norms
from modelscope_cli.training.request import TrainRequest


def normal(n=1_000_000):
    """The quantiles of N(0, 1): a sample without chance."""
    return torch.special.ndtri((torch.arange(n, dtype=torch.float64) + 0.5) / n)


@pytest.mark.parametrize(
    ("layer", "mean", "std"),
    [(GeneralReLU(), 0.3989, 0.5838), (nn.ReLU(), 0.3989, 0.5838), (GeneralReLU(0.1, 0.4), -0.0410, 0.6133)],
)
def test_moments_behind_a_relu_of_a_normal(layer, mean, std):
    y = layer(normal())
    assert y.mean().item() == pytest.approx(mean, abs=6e-5)
    assert y.std().item() == pytest.approx(std, abs=6e-5)


def test_the_maximum_cuts_from_above():
    x = torch.linspace(-9, 9, 101)
    assert torch.equal(GeneralReLU(0.1, 0.4, 6.0)(x), (F.leaky_relu(x, 0.1) - 0.4).clamp_max(6))


def test_running_batch_norm_of_one_batch_is_batch_norm():
    x = torch.randn(64, 5, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3 + 2
    norm = RunningBatchNorm(5).double()
    expected = F.batch_norm(x, None, None, training=True)
    assert_close(norm(x), expected)  # the averages start at zero, their ratio does not know
    norm.eval()
    assert_close(norm(x), expected)
    assert not [name for name, p in norm.named_parameters() if p.grad is not None]


def test_running_batch_norm_weighs_batches_by_size_and_momentum():
    generator = torch.Generator().manual_seed(2)
    a, b = torch.randn(17, 3, generator=generator), torch.randn(5, 3, generator=generator) + 1
    norm = RunningBatchNorm(3)
    norm(a)
    norm(b)
    old, new = (1 - 0.1) / 16**0.5, 1 - (1 - 0.1) / 4**0.5
    sums = (1 - old) * (1 - new) * a.sum(0) + new * b.sum(0)
    count = (1 - old) * (1 - new) * 17 + new * 5
    assert_close(norm.sums / norm.count, sums / count)


def test_running_batch_norm_passes_gradients_through_the_batch():
    norm = RunningBatchNorm(4).double()
    x = torch.randn(6, 4, 3, 3, dtype=torch.float64, requires_grad=True)

    def fresh(x):  # its output depends on what it has seen before
        return RunningBatchNorm(4).double()(x)

    assert torch.autograd.gradcheck(fresh, (x,))
    for _ in range(3):  # nothing of the last graph is left in the buffers
        norm(x).square().sum().backward()


def test_running_batch_norm_can_be_evaluated_before_it_has_seen_anything():
    x = torch.randn(2, 3, 4, 4)
    assert_close(RunningBatchNorm(3).eval()(x), x, A_NETWORK)


@pytest.mark.parametrize(
    ("norm", "kind"),
    [("layer", nn.GroupNorm), ("group", nn.GroupNorm), ("instance", nn.InstanceNorm2d),
     ("running", RunningBatchNorm), ("none", nn.Identity)],
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
