"""One sick variant of the healthy network for every rule: each injury breaks that rule and no other."""

import torch
from torch import Tensor, nn


class Beside(nn.Module):
    """Runs something beside the network, without effect on its answer."""

    def __init__(self, net: nn.Module, extra: nn.Module) -> None:
        super().__init__()
        self.net, self.extra = net, extra

    def forward(self, x: Tensor) -> Tensor:
        self.extra(x)
        return self.net(x)


class After(nn.Module):
    """Does something to what the network answers; knows whether it is in train mode."""

    def __init__(self, net: nn.Module, change) -> None:
        super().__init__()
        self.net, self.change = net, change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.net(x), self.training)


class Do(nn.Module):
    """A layer from a function."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    return x.detach() + factor * (x - x.detach())


def non_finite_weight(net: nn.Module) -> nn.Module:
    net.block1.conv1.weight.data[0, 0, 0, 0] = torch.nan
    return net


def infinite_weight(net: nn.Module) -> nn.Module:
    net.head.bias.data[0] = torch.inf
    return net


def zero_running_variance(net: nn.Module) -> nn.Module:
    net.block1.conv1.weight.data[0] = 0  # a constant channel, as pruning leaves it
    net.block1.bn1.running_mean[0] = 0
    net.block1.bn1.running_var[0] = 0
    return net


def negative_running_variance(net: nn.Module) -> nn.Module:
    net.block2.bn2.running_var[3] = -1.0  # makes NaN in eval mode
    return net


def nan_in_a_layer(net: nn.Module) -> nn.Module:
    net.pool = nn.Sequential(net.pool, Do(lambda x: torch.log(x - 1)))
    return net


def nan_between_layers(net: nn.Module) -> nn.Module:
    class Divides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net.block2

        def forward(self, x: Tensor) -> Tensor:
            y = self.inner(x)
            return y / (y * 0)

    net.block2 = Divides()
    return net


def dead_channels(net: nn.Module) -> nn.Module:
    net.block1.bn1.weight.data[:12] = 0
    net.block1.bn1.bias.data[:12] = -1
    return net


def dead_units(net: nn.Module) -> nn.Module:
    def rarely_above(x: Tensor) -> Tensor:
        return x - x.flatten(2).quantile(0.995, dim=2)[..., None, None]

    return Beside(net, nn.Sequential(Do(rarely_above), nn.ReLU()))


def saturated_sigmoid(net: nn.Module) -> nn.Module:
    return Beside(net, nn.Sequential(Do(lambda x: 100 * x), nn.Sigmoid()))


def saturated_tanh(net: nn.Module) -> nn.Module:
    return Beside(net, nn.Sequential(Do(lambda x: 100 * x), nn.Tanh()))


def near_zero(net: nn.Module) -> nn.Module:
    for parameter in net.block1.bn2.parameters():
        parameter.data *= 3e-7
    return net


def poorly_initialised(net: nn.Module) -> nn.Module:
    net.head.weight.data *= 100
    return net


def drifted(net: nn.Module) -> nn.Module:
    net.block1.bn1.running_var /= 50  # and weights that take it back in eval mode
    net.block1.bn1.weight.data /= 50**0.5
    return net


def foreign(net: nn.Module) -> nn.Module:
    net.block3.bn2.running_mean /= 100  # the last norm, and weights that take it back in eval mode
    net.block3.bn2.running_var /= 100**2
    net.block3.bn2.weight.data /= 100
    return net


def norm_as_made(net: nn.Module) -> nn.Module:
    nn.init.ones_(net.block3.bn2.weight)
    nn.init.zeros_(net.block3.bn2.bias)
    return net


def nan_gradient(net: nn.Module) -> nn.Module:
    return After(net, lambda scores, _: scores + (scores * 0).abs().sqrt())


def vanishing(net: nn.Module) -> nn.Module:
    net.block1 = nn.Sequential(net.block1, Do(lambda x: scale_gradient(x, 1e-9)))
    return net


def exploding(net: nn.Module) -> nn.Module:
    net.block1 = nn.Sequential(net.block1, Do(lambda x: scale_gradient(x, 1e9)))
    return net


def spare_layer(net: nn.Module) -> nn.Module:
    net.spare = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    return net


def detached(net: nn.Module) -> nn.Module:
    return Beside(net, nn.Conv2d(3, 4, 3))


def one_answer(net: nn.Module) -> nn.Module:
    net.head.bias.data[3] += 50
    return net


def permuted(net: nn.Module) -> nn.Module:
    return After(net, lambda scores, _: scores.roll(3, dims=1))


def noisy(net: nn.Module) -> nn.Module:
    return After(net, lambda scores, _: scores + 1e-3 * torch.rand_like(scores))


def two_faced(net: nn.Module) -> nn.Module:
    return After(net, lambda scores, training: 5 * scores if training else scores)


def constant(net: nn.Module) -> nn.Module:
    return After(net, lambda scores, _: 0 * scores.detach() + (scores - scores.detach()))


def itself(net: nn.Module) -> nn.Module:
    return net


# rule, injury, the layer that is named, thresholds
VARIANTS = [
    ("MS101", non_finite_weight, "block1.conv1", {}),
    ("MS101", infinite_weight, "head", {}),
    ("MS102", zero_running_variance, "block1.bn1", {}),
    ("MS102", negative_running_variance, "block2.bn2", {}),
    ("MS201", nan_in_a_layer, "pool.1", {}),
    ("MS201", nan_between_layers, "block2", {}),
    ("MS202", dead_channels, "block1.relu", {}),
    ("MS203", dead_units, "extra.1", {}),
    ("MS204", saturated_sigmoid, "extra.1", {}),
    ("MS204", saturated_tanh, "extra.1", {}),
    ("MS205", near_zero, "block1", {}),
    ("MS206", poorly_initialised, "head", {}),
    ("MS207", drifted, "block1.bn1", {}),
    ("MS208", foreign, "block3.bn2", {}),
    ("MS209", norm_as_made, "block3.bn2", {}),
    ("MS301", nan_gradient, "net.head", {}),
    ("MS302", vanishing, "block1.0.conv2", {}),
    ("MS303", exploding, "block1.0.conv2", {}),
    ("MS401", spare_layer, "spare", {}),
    ("MS402", detached, "extra", {}),
    ("MS501", itself, None, {"MS501": 50_000}),
    ("MS502", itself, None, {"MS502": 1e6}),
    ("MS503", itself, None, {"MS503": 1e6}),
    ("MS504", itself, None, {"MS504": "1,1000"}),
    ("MS505", itself, None, {"MS505": 1e6}),
    ("MS506", permuted, None, {"MS506": 0.9, "MS605": 2.0}),
    ("MS601", one_answer, None, {}),
    ("MS602", noisy, None, {}),
    ("MS603", two_faced, None, {}),
    ("MS604", constant, None, {}),
    ("MS605", permuted, None, {}),
]
