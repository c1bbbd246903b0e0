"""What results say beside their numbers: which weights were filled, left out, not judged, and why."""

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli.records.grads import VANISHING
from modelscope_cli.report.grads.table import grads_sheet
from modelscope_cli.report.stats.table import stats_sheet

IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def classifier(n_classes=4, *, act=nn.ReLU, depth=1):
    torch.manual_seed(0)
    body = [one for _ in range(depth) for one in (nn.Conv2d(8, 8, 3, padding=1), act())]
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), act(), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(8, n_classes))


def test_the_header_says_how_much_of_a_checkpoint_was_taken(tmp_path):
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(32, 4))\n"
    )
    torch.manual_seed(0)
    state = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(32, 4)).state_dict()
    misfits = {
        "whole.pt": (state, "whole.pt"),
        "other_head.pt": (
            state | {"3.weight": torch.ones(7, 32), "3.bias": torch.ones(7)},
            "6 of 8 tensors from",
        ),
        "less.pt": ({name: one for name, one in state.items() if name[0] == "0"}, "2 of 8 tensors from"),
        "more.pt": (state | {"other": torch.ones(3)}, "more.pt"),
    }
    for name, (tensors, words) in misfits.items():
        torch.save(tensors, tmp_path / name)
        model = ms.load(f"{tmp_path}/net.py:net", checkpoint=tmp_path / name, num_classes=None, strict=False)
        assert model.info.weights.resolved in (words, f"{words} {name}")


def test_reasons_of_rules_are_true_of_trainable_norms_and_weights_of_a_factory():
    record = ms.check(classifier(), IMAGES, select=["MS001", "MS002", "MS101", "MS209"])
    reasons = {rule.code: rule.reason for rule in record.rules}
    assert (
        reasons["MS001"]
        == reasons["MS002"]
        == ("no checkpoint file was given: weights that the model's own code loads are not scanned")
    )
    assert reasons["MS209"] == "no norm was changed by training"


class OwnNorm(nn.Module):
    """A batch norm of another library, which rules about torch's cannot judge."""

    def forward(self, x):
        return x


def test_rules_about_norms_are_not_unjudged_in_a_net_without_norms():
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(784, 4))
    kinds = {
        "none": plain,
        "layer": nn.Sequential(nn.LayerNorm(16), plain),
        "other": nn.Sequential(OwnNorm(), plain),
    }
    codes = "MS207", "MS208", "MS209"
    found = {
        kind: [
            rule.code for rule in ms.check(net, select=["MS101", *codes], input_shape=(2, 3, 16, 16)).unjudged
        ]
        for kind, net in kinds.items()
    }
    assert found == {"none": [], "layer": ["MS209"], "other": [*codes]}


def test_more_images_are_asked_for_where_they_could_change_the_verdict():
    def fact(net):
        return dict(stats_sheet(ms.stats(net, IMAGES)).facts)["dead channels"]

    net = classifier()
    with torch.no_grad():
        net[0].weight[0], net[0].bias[0] = 0.0, 0.5
        net[1].bias[0] = -9.0
    assert fact(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())) == "none"
    assert "give 100 images" in fact(nn.Sequential(net, nn.ReLU()))


def test_the_rule_of_vanishing_gradients_is_the_one_that_marks_them():
    record = ms.grads(classifier(act=nn.Sigmoid, depth=12), IMAGES, mode="train")
    limit = VANISHING * record.totals.output_grad_norm
    marked = {row.name for row in record.parameters if row.mark == "vanishing"}
    assert marked
    assert marked == {
        row.name for row in record.parameters if len(row.shape) > 1 and 0 < (row.grad_norm or 0) < limit
    }
    unmarked = [row for row in record.parameters if len(row.shape) == 1 and 0 < (row.grad_norm or 0) < limit]
    assert unmarked
    assert "; biases and norms are not judged" in dict(grads_sheet(record).facts)["vanishing"]


class PartlyFrozen(nn.Module):
    """Keeps one of its two batch norms in eval mode."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.head = nn.Linear(3, 4)

    def train(self, mode=True):
        super().train(mode)
        self.second.eval()
        return self

    def forward(self, x):
        return self.head(self.second(self.first(x)).mean((2, 3)))


@pytest.mark.parametrize("command", [ms.stats, ms.grads])
def test_a_batch_norm_in_eval_mode_has_no_drift(command):
    record = command(PartlyFrozen(), IMAGES, mode="train")
    assert [row.name for row in record.batch_norm] == ["first"]
