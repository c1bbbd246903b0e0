"""Where two models differ everywhere, `diff` names the layers that add most to the difference themselves."""

import copy
import itertools

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli.report.diff.table import answer


def plain():
    widths = [3, 8, 8, 16, 16, 16]
    return nn.Sequential(
        *(one for a, b in itertools.pairwise(widths) for one in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU())),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)),
    )


def normed():
    layers = [
        one
        for a, b in ((3, 8), (8, 8), (8, 16))
        for one in (nn.Conv2d(a, b, 3), nn.BatchNorm2d(b), nn.ReLU())
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))


def noisy(weight, share):
    return weight + share * weight.std() * torch.randn_like(weight)


def rounded(weight, bits):
    scale = weight.abs().max() / (2 ** (bits - 1) - 1)
    return (weight / scale).round() * scale


CHANGES = {
    "noise": (lambda weight: noisy(weight, 0.003), lambda weight: noisy(weight, 0.3)),
    "bits": (lambda weight: rounded(weight, 10), lambda weight: rounded(weight, 3)),
    "another start": (lambda weight: noisy(weight, 0.003), torch.rand_like),
    "scale": (lambda weight: noisy(weight, 0.003), lambda weight: 1.2 * weight),
}


def compared(make, change, culprit):
    torch.manual_seed(0)
    a = make().eval()
    b, (all_, one) = copy.deepcopy(a), CHANGES[change]
    weights = [module for module in b if isinstance(module, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        for n, module in enumerate(weights):
            module.weight.copy_((one if n == culprit % len(weights) else all_)(module.weight))
    x = torch.randn(4, 3, 20, 20)
    return a, b, x, ms.diff(a, b, x), [str([*b].index(module)) for module in weights]


@pytest.mark.parametrize("make", [plain, normed])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("culprit", [0, 1, 2, -1])
def test_the_layer_that_adds_most_is_named_first(make, change, culprit):
    *_, record, names = compared(make, change, culprit)
    assert f"layers of A still differ, most of all {names[culprit]} (relative L2 " in answer(record)


@pytest.mark.parametrize("make", [plain, normed])
def test_what_a_layer_adds_is_its_distance_where_both_get_the_input_of_b(make):
    a, b, x, record, names = compared(make, "bits", 1)
    entering = {}
    for name, layer in b.named_children():
        layer.register_forward_hook(lambda layer, given, out, name=name: entering.update({name: given[0]}))
    with torch.no_grad():
        b(x)
        for row in record.layers:
            if row.name not in names:
                assert row.own_l2 is None  # it carries the difference only
                continue
            ours, theirs = (net[int(row.name)](entering[row.name]) for net in (a, b))
            assert row.own_l2 == pytest.approx(float((theirs - ours).norm() / ours.norm()), rel=1e-4)


def test_of_one_layer_that_differs_the_others_carry_the_difference():
    a = plain()
    b = copy.deepcopy(a)
    with torch.no_grad():
        b[4].weight[5] *= -1
    message = answer(ms.diff(a, b, torch.randn(4, 3, 20, 20)))
    assert "except for 6.2 % of the values, all in output channel 5: 4; " in message
    assert "with B's inputs, only 4 (relative L2 " in message


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.of = nn.Parameter(torch.ones(1, 3, 8, 8))

    def forward(self, x):
        return self.of


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.positions, self.conv = nn.Identity(), Positions(), nn.Conv2d(3, 2, 3)

    def forward(self, x):
        x = self.first(x)
        return self.conv(x + self.positions(x))


@pytest.mark.parametrize("keywords", [{}, {"b_dtype": "bfloat16"}])
def test_neither_weights_nor_inputs_that_layers_return_are_changed(keywords):
    torch.manual_seed(0)
    a, x = Embedded().eval(), torch.randn(2, 3, 8, 8)
    b = None if keywords else copy.deepcopy(a)
    with torch.no_grad():
        a.positions.of.mul_(1.001)
    kept = copy.deepcopy((a.state_dict(), x))
    assert any(row.own_l2 for row in ms.diff(a, b, x, **keywords).layers)
    assert torch.equal(x, kept[1])
    assert all(torch.equal(one, kept[0][name]) for name, one in a.state_dict().items())


def test_a_layer_of_another_class_is_told_with_that():
    a, b = plain(), plain()
    b.load_state_dict(a.state_dict())
    b[3] = nn.SiLU()
    message = answer(ms.diff(a, b, torch.randn(4, 3, 20, 20)))
    assert message.startswith("Different: with B's inputs, only 3 (SiLU in B, relative L2 ")


@pytest.mark.parametrize(("change", "said"), [
    (lambda weight: torch.where(weight.abs() < weight.abs().quantile(0.3), 0, weight), "zero, as of pruning"),
    (lambda weight: weight.clone().index_fill_(0, torch.tensor([1, 2]), 0), "zero, all of output channels 1, 2: 2"),
])  # fmt: skip
def test_zeros_are_of_pruning_where_they_stand_for_the_smallest_values(change, said):
    torch.manual_seed(0)
    a = plain()
    b = copy.deepcopy(a)
    with torch.no_grad():
        b[2].weight.copy_(change(b[2].weight))
    assert said in answer(ms.diff(a, b))


def test_no_layer_is_named_that_only_follows_another_shape(tmp_path):
    torch.manual_seed(0)
    ends = nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    a, b = (nn.Sequential(ends[0], nn.MaxPool2d(3, 2, ceil_mode=one), *ends[1:]) for one in (False, True))
    x = torch.randn(2, 3, 20, 20)
    torch.export.save(torch.export.export(b, (x,)), tmp_path / "b.pt2")
    message = answer(ms.diff(a, tmp_path / "b.pt2", x))
    assert "ceil_mode of max_pool2d is True in B" in message
    assert "still differ" not in message


@pytest.mark.parametrize(
    ("end", "eps", "kind"), [(nn.Softmax(1), 1e-5, "ending"), (nn.Identity(), 0.1, "epsilon")]
)
def test_what_two_exported_programs_compute_otherwise_is_named(end, eps, kind, tmp_path) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4, eps=1e-5), nn.Flatten(), nn.Linear(144, 5)]
    x, nets = torch.randn(2, 3, 8, 8), [nn.Sequential(*layers, nn.Identity()), nn.Sequential(*layers, end)]
    files = [tmp_path / "a.pt2", tmp_path / "b.pt2"]
    for net, file, value in zip(nets, files, (1e-5, eps), strict=True):
        layers[1].eps = value
        torch.export.save(torch.export.export(net.eval(), (x,)), file)
    assert [cause.kind for cause in ms.diff(*files, x).causes][:1] == [kind]
