"""A NaN of a step that is not recorded is named where it was born, in that step."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from modelscope_cli import watch
from modelscope_cli.records.training_facts import BETWEEN, GRADIENT, INPUT, LOSS, OUTPUT, PARAMETER, Birth
from modelscope_cli.watching.read_record import read_record

AT = 39  # the schedule records none of the steps around it
KIND = "Sequential"


class Late(nn.Module):
    """Hands on what it is given, and from step `AT` on something else; `layer` comes before it inside."""

    def __init__(self, change, layer=None):
        super().__init__()
        self.change, self.layer, self.after = change, layer, layer and nn.Linear(8, 8)
        self.is_on = False

    def forward(self, x):
        x = x if self.layer is None else self.layer(x)
        x = self.change(x) if self.is_on else x
        return x if self.after is None else self.after(x)


def spoil_one(value):
    def change(x):
        spoilt = x.clone()
        spoilt[0, 3] = value
        return spoilt

    return change


def model_with(late):
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), late, nn.Linear(8, 4))


def train(
    model,
    loss=lambda step, scores, labels: F.cross_entropy(scores, labels),
    enter=lambda step, x: x,
    before=lambda step, optimizer: None,
    mend=lambda parameters: None,
    scaler=None,
    dtype=None,
    **asked,
):
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, **asked) as watched:
        for step in range(AT + 4):
            for module in model.modules():
                if isinstance(module, Late):
                    module.is_on = step >= AT
            before(step, optimizer)
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                out = loss(step, model(enter(step, torch.randn(6, 8))), torch.randint(4, (6,)))
            (out if scaler is None else scaler.scale(out)).backward()
            mend(list(model.parameters()))
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
    return watched.record()


def late_loss(make):
    def loss(step, scores, labels):
        healthy = F.cross_entropy(scores, labels)
        return healthy if step < AT else make(scores)

    return loss


def raise_rate(step, optimizer):
    if step == AT:
        optimizer.param_groups[0]["lr"] = 1e38


def steep(step, scores, labels):
    return (1e4 if step == AT else 1.0) * F.cross_entropy(scores, labels)


def clip(parameters):
    nn.utils.clip_grad_norm_(parameters, 1.0)


def root_at_zero(x):
    return x + (0 * x).abs().sqrt()  # finite forward, 0 * inf backward


BORN = {
    "log": (None, {"loss": late_loss(lambda x: torch.log(0 * x - 1).mean())}, (LOSS, AT, "")),
    "empty batch": (None, {"loss": late_loss(lambda x: x[:0].mean())}, (LOSS, AT, "")),
    "one value": (spoil_one(math.nan), {}, (OUTPUT, AT, "3")),
    "bfloat16": (spoil_one(math.nan), {"dtype": torch.bfloat16}, (OUTPUT, AT, "3")),
    "division": (lambda x: x / (0 * x), {}, (OUTPUT, AT, "3")),
    "backward": (root_at_zero, {}, (GRADIENT, AT, "2.weight")),
    "clipped": (root_at_zero, {"mend": clip}, (GRADIENT, AT, "2.weight")),
    "input": (None, {"enter": lambda step, x: x / (step < AT)}, (INPUT, AT, "")),
    "rate": (None, {"before": raise_rate, "loss": steep}, (PARAMETER, AT, "0.weight")),
}  # fmt: skip


@pytest.mark.parametrize("name", BORN)
def test_place_and_step_are_named(name):
    change, how, (what, step, where) = BORN[name]
    record = train(model_with(nn.Identity() if change is None else Late(change)), **how)
    assert record.births[0] == Birth(what, step, KIND, where, 0)
    known = step + (what == PARAMETER)
    assert known not in record.layers[0].series.step
    assert known + 1 in record.layers[0].series.step  # the next is looked at in any case
    found = {finding.code: finding for finding in record.findings}
    assert min(finding.since_step for finding in found.values()) == step
    if what == OUTPUT:
        assert (found["MS702"].layer, found["MS702"].since_step) == (where, step)
        assert f"the first cause: {where} is not finite" in found["MS701"].message
    elif what == GRADIENT:
        assert (found["MS703"].layer, found["MS703"].since_step) == (where, step)
    elif what == LOSS:
        assert "MS702" not in found
        assert "it arises in the loss computation" in found["MS701"].message


def test_what_a_module_computes_between_its_layers(tmp_path):
    late = Late(lambda x: torch.sqrt(x - 100), nn.Linear(8, 8))
    record = train(model_with(late), out=tmp_path)
    assert record.births[0] == Birth(BETWEEN, AT, KIND, "3", 0)
    assert read_record(tmp_path).births == record.births
    assert "what 3 computes between its layers is not finite" in record.findings[0].message


def test_a_step_that_a_scaler_skips_is_named_too():
    record = train(model_with(Late(spoil_one(math.nan))), scaler=torch.amp.GradScaler("cpu"))
    assert record.births == (Birth(OUTPUT, AT, KIND, "3", 0),)


def test_overflow_of_a_scaled_gradient_and_repaired_gradients_are_not_findings():
    def mend(parameters):
        for one in parameters:
            one.grad.nan_to_num_(0, 0, 0)

    assert train(model_with(Late(root_at_zero)), mend=mend).births == ()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    record = train(model_with(nn.Identity()), lambda _, x, y: 100 * F.cross_entropy(x, y), scaler=scaler)
    assert any(event.kind == "skipped" for event in record.events)
    assert record.births == ()


def test_a_mask_of_infinities_is_not_a_finding():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), nn.Linear(8, 4)

        def forward(self, x):
            mask = nn.Transformer.generate_square_subsequent_mask(3)
            return self.head(self.layer(x[:, None].expand(-1, 3, -1), src_mask=mask)[:, 0])

    record = train(Masked(), late_loss(lambda x: torch.sqrt(x - 100).mean()))
    assert record.births[0] == Birth(LOSS, AT, "Masked", "", 0)


def test_the_other_model_that_the_loss_goes_through():
    one, two = model_with(nn.Identity()), model_with(Late(spoil_one(math.nan)))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (one, two)]
    with watch([one, two], optimizers) as watched:
        for step in range(AT + 2):
            two(torch.randn(6, 8)).mean().backward()
            optimizers[1].step()
            two[3].is_on = step == AT
            two(one(torch.randn(6, 8)).repeat(1, 2)).mean().backward()
            optimizers[0].step()
            optimizers[0].zero_grad()
            optimizers[1].zero_grad()
            two[3].is_on = False
    assert watched.record().births[0] == Birth(OUTPUT, AT, "two", "3", 0)


def test_what_is_kept_is_that_of_one_step():
    model = model_with(nn.Identity())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer) as watched:
        for _ in range(40):
            for _ in range(3):
                model(torch.randn(6, 8)).mean().backward()
            flags = watched._watcher.recorder.registry.models[0].flags
            assert len(flags.trace) == 3 * (
                1 + 2 * 6
            )  # of each pass its beginning, and six modules in and out
            optimizer.step()
