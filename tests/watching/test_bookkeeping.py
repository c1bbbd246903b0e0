"""Who steps, who holds what, who clears it, and in which mode: faults that are certain, and loops like them."""

import inspect
import os

import pytest
import torch
from torch import nn

from modelscope_cli.records.watch import WatchRecord, labelling

CERTAIN = {f"MS7{number}" for number in range(11, 19)} | {"MS737", "MS743", "MS745"}
STEPS = 8


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(8, 3)

    def features(self, x):
        return self.drop(self.norm(self.trunk(x)).relu())

    def forward(self, x):
        return self.head(self.features(x))


def loss_of(model):
    return nn.functional.cross_entropy(model(torch.randn(16, 6)), torch.randint(3, (16,)))


def made(model, kind=torch.optim.SGD, **options):
    return kind(model.parameters(), lr=0.01, **options)


def train(optimizer, model):
    for _ in range(STEPS):
        optimizer.zero_grad()
        model.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def here(back: int = 0) -> str:
    """Return the line of the caller, so many lines before this one."""
    frame = inspect.currentframe().f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno - back}"


def certain_of(record: WatchRecord) -> list[str]:
    return [finding.code for finding in record.findings if finding.code in CERTAIN]


def facts_of(record: WatchRecord, name: str):
    (found,) = [one.facts for one in record.parameters if one.name == name]
    return found


# Gradients that nobody clears, or somebody too early


CLEAR = {
    "set to None": lambda optimizer, model: optimizer.zero_grad(set_to_none=True),
    "set to zero": lambda optimizer, model: optimizer.zero_grad(set_to_none=False),
    "by the model": lambda optimizer, model: model.zero_grad(),
    "through .data": lambda optimizer, model: [one.grad.data.zero_() for one in model.parameters()],
    "by hand": lambda optimizer, model: [setattr(one, "grad", None) for one in model.parameters()],
}


@pytest.mark.parametrize("how", CLEAR)
def test_gradients_that_are_cleared_between_backward_and_step(recorded, how):
    def script():
        model = Net()
        optimizer = made(model)
        for _ in range(STEPS):
            loss_of(model).backward()
            CLEAR[how](optimizer, model)
            optimizer.step()

    record = recorded(script)
    assert certain_of(record)[0] == "MS714"
    assert record.facts.optimizers[0].uncleared == 0


@pytest.mark.parametrize("how", CLEAR)
@pytest.mark.parametrize("when", ["before backward", "after the step"])
def test_gradients_that_are_cleared_in_time(recorded, how, when):
    def script():
        model = Net()
        optimizer = made(model)
        loss_of(model).backward()
        for _ in range(STEPS):
            if when == "before backward":
                CLEAR[how](optimizer, model)
            loss_of(model).backward()
            optimizer.step()
            if when == "after the step":
                CLEAR[how](optimizer, model)
                loss = loss_of(model)
                loss.backward()

    assert certain_of(recorded(script)) == []


def test_accumulation_clears_every_fourth_time(recorded):
    def script():
        model = Net()
        optimizer = made(model)
        for i in range(4 * STEPS):
            (loss_of(model) / 4).backward()
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()

    record = recorded(script)
    assert (certain_of(record), record.steps) == ([], STEPS)


@pytest.mark.parametrize("order", ["critic clears itself first", "both clear after their step"])
def test_a_generator_leaves_gradients_in_its_critic(recorded, order):
    def script():
        critic, generator = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)), nn.Linear(4, 6)
        optimizers = made(critic, torch.optim.Adam), made(generator, torch.optim.Adam)
        for _ in range(STEPS):
            for n, optimizer in enumerate(optimizers):
                if order.startswith("critic"):
                    optimizer.zero_grad()
                fakes = generator(torch.randn(16, 4))
                judged = critic(fakes if n else fakes.detach()).mean()
                (-judged if n else judged - critic(torch.randn(16, 6)).mean()).backward()
                optimizer.step()
                if not order.startswith("critic"):
                    for one in optimizers:
                        one.zero_grad()

    record = recorded(script)
    assert certain_of(record) == []
    assert {one.optimizer for one in record.facts.optimizers} == {"Adam", "Adam#2"}


# Who holds what


def test_a_head_that_was_replaced_after_the_optimizer_was_made(recorded):
    places = []

    def script():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        places.append(here(1))
        model.head = nn.Linear(8, 3)
        train(optimizer, model)

    (found,) = [one for one in recorded(script).findings if one.code in CERTAIN]
    assert (found.code, found.layer, found.severity, found.place) == (
        "MS712",
        "head.weight",
        "error",
        places[0],
    )
    assert "replaced" in found.message


# What is used


class Cut(Net):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        if self.how == "under no_grad":
            with torch.no_grad():
                x = self.features(x)
            return self.head(x)
        if self.how == "detached":
            return self.head(self.features(x).detach())
        return self.head(self.drop(x.repeat(1, 2)[:, :8]))


@pytest.mark.parametrize(("how", "code", "layer", "words"), [
    ("under no_grad", "MS715", "trunk.weight", "no_grad()"),
    ("detached", "MS715", "trunk.weight", "it stops between its layer and the loss"),
    ("not called", "MS716", "trunk.weight", "is never used"),
])  # fmt: skip
def test_layers_that_the_loss_does_not_reach(recorded, how, code, layer, words):
    def script():
        model = Cut(how)
        optimizer = made(model)
        train(optimizer, model)

    record = recorded(script)
    (found,) = [one for one in record.findings if one.code in CERTAIN]
    assert (found.code, found.layer) == (code, layer)
    assert words in found.message
    trunk, head = facts_of(record, "trunk.weight"), facts_of(record, "head.weight")
    assert (trunk.has_gradient, trunk.has_changed) == (False, False)
    assert (head.has_gradient, head.has_changed, head.has_run) == (True, True, True)
    assert trunk.has_run == (how != "not called")
    assert trunk.is_severed == (how == "under no_grad")


@pytest.mark.parametrize("way", ["made to require gradients", "times a tensor of its own"])
def test_a_loss_of_a_detached_output_is_not_about_the_tensor_that_lets_it_run_backward(recorded, way):
    def loop():
        model, scale = Net(), torch.ones(1, requires_grad=True)
        optimizer = made(model)
        for _ in range(STEPS):
            out = model(torch.randn(16, 6)).detach()
            out = out.requires_grad_() if way == "made to require gradients" else out * scale
            optimizer.zero_grad()
            nn.functional.cross_entropy(out, torch.randint(3, (16,))).backward()
            optimizer.step()

    record = recorded(loop)
    assert [finding.code for finding in record.findings if finding.code in CERTAIN] == ["MS715"]
    labels = [*map(labelling(record.layers, record.parameters), record.parameters)]
    assert "head.weight" in labels  # there is one model


@pytest.mark.parametrize("is_held", [True, False])
def test_what_is_frozen_on_purpose_is_not_a_fault(recorded, is_held):
    def script():
        model = Net()
        model.trunk.requires_grad_(False)
        held = model.parameters() if is_held else [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(held, lr=0.01)
        train(optimizer, model)

    record = recorded(script)
    assert certain_of(record) == []
    assert not facts_of(record, "trunk.weight").requires_grad


@pytest.mark.parametrize("how", ["whole", "part", "assigned", "not strictly", "names that do not fit"])
def test_what_load_state_dict_has_set_is_noted(recorded, how):
    def script():
        model, weights = Net(), Net().state_dict()
        trunk = {name: value for name, value in weights.items() if name.startswith("trunk")}
        if how == "part":
            model.trunk.load_state_dict({"weight": weights["trunk.weight"], "bias": weights["trunk.bias"]})
        elif how == "not strictly":
            model.load_state_dict(trunk, strict=False)
        elif how == "names that do not fit":
            model.load_state_dict({f"model.{name}": value for name, value in trunk.items()}, strict=False)
        else:
            model.load_state_dict(weights, assign=how == "assigned")
        train(torch.optim.SGD(model.parameters(), lr=0.01), model)

    record = recorded(script)
    assert facts_of(record, "trunk.weight").was_loaded is (how != "names that do not fit")
    assert facts_of(record, "head.weight").was_loaded is (how in ("whole", "assigned"))


# In which mode


def test_a_model_that_stays_in_evaluation_mode_after_an_evaluation(recorded):
    def script():
        model = Net()
        optimizer = made(model)
        for i in range(2 * STEPS):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            if i == 3:
                model.eval()

    record = recorded(script)
    (found,) = [one for one in record.findings if one.code in CERTAIN]
    assert (found.code, found.since_step) == ("MS718", 4)
    assert "BatchNorm1d and Dropout" in found.message
    (facts,) = record.facts.models
    assert (facts.steps_in_training, facts.steps_in_evaluation) == (4, 2 * STEPS - 4)


def test_a_model_that_goes_back_to_training_mode_each_time(recorded):
    def script():
        model = Net()
        optimizer = made(model)
        for _ in range(STEPS):
            model.eval()
            loss_of(model)  # nobody said no_grad
            with torch.no_grad():
                loss_of(model)
            model.train()
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()

    record = recorded(script)
    assert certain_of(record) == []
    assert record.facts.models[0].evaluation_since is None


def test_a_model_that_does_not_care_may_be_in_evaluation_mode(recorded):
    def script():
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
        optimizer = made(model)
        train(optimizer, model)

    assert certain_of(recorded(script)) == []


# Facts of a phase that is over before the run is


def test_a_second_phase_that_leaves_nothing_behind(recorded):
    """Its optimizer takes fewer steps than the first, and all is gone when the function returns."""

    def script():
        first, second = Net(), Net()
        for model, n, early in ((first, 40, False), (second, 30, True)):
            optimizer = made(model)
            for _ in range(n):
                optimizer.zero_grad()
                loss_of(model).backward()
                if early:
                    model.zero_grad()
                optimizer.step()
            del optimizer

    assert certain_of(recorded(script)) == ["MS714"]


# Validation


def validated(optimizer, model, *, in_evaluation, validate=loss_of):
    for _ in range(STEPS):
        model.train()
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        model.train(not in_evaluation)
        with torch.no_grad():
            validate(model)


@pytest.mark.parametrize("in_evaluation", [True, False])
def test_validation_in_training_mode(recorded, in_evaluation):
    def script():
        model = Net()
        validated(made(model), model, in_evaluation=in_evaluation)

    record = recorded(script)
    assert certain_of(record) == ([] if in_evaluation else ["MS743"])
    (facts,) = record.facts.models
    assert facts.evaluated == ((0, STEPS) if in_evaluation else (STEPS, 0))
    assert facts.loose_modes == (() if in_evaluation else ("BatchNorm1d", "Dropout"))


def test_dropout_of_nothing_is_the_same_in_both_modes(recorded):
    def script():
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.0), nn.Linear(8, 3))
        validated(made(model), model, in_evaluation=False)

    assert certain_of(recorded(script)) == []


def test_passes_without_gradients_that_no_loss_is_computed_from_are_not_validation(recorded):
    """Pseudo labels, and a teacher that is validated instead."""

    def script():
        model, teacher = Net(), Net().eval()
        optimizer = made(model)
        for _ in range(STEPS):
            with torch.no_grad():
                labels = model(torch.randn(16, 6)).argmax(1)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(torch.randn(16, 6)), labels).backward()
            optimizer.step()
            with torch.no_grad():
                loss_of(teacher)

    assert certain_of(recorded(script)) == []


# A gradient scaler


def unscaled_by_the_scaler(scaler, optimizer, model):
    scaler.unscale_(optimizer)
    optimizer.step()


def unscaled_by_hand(scaler, optimizer, model):
    for parameter in model.parameters():
        parameter.grad /= scaler.get_scale()
    optimizer.step()


def stepped_by_the_scaler(scaler, optimizer, model):
    scaler.step(optimizer)
    scaler.update()


def not_unscaled(scaler, optimizer, model):
    optimizer.step()


def clipped_by_hand(scaler, optimizer, model):
    for parameter in model.parameters():
        parameter.grad /= scaler.get_scale()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()


def clipped_while_scaled(scaler, optimizer, model):
    norm = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    nn.utils.clip_grad_norm_(model.parameters(), 0.5 * float(norm))
    optimizer.step()


def not_finite(scaler, optimizer, model):
    for parameter in model.parameters():
        parameter.data.fill_(torch.nan)
    optimizer.step()


NOT_UNSCALED = [not_unscaled, clipped_while_scaled, not_finite]
STEPPED = [stepped_by_the_scaler, unscaled_by_the_scaler, unscaled_by_hand, clipped_by_hand, *NOT_UNSCALED]


@pytest.mark.parametrize("how", STEPPED)
@pytest.mark.parametrize("options", [{}, {"fused": True}])
def test_steps_by_gradients_of_a_scaled_loss(recorded, how, options):
    def script():
        model = Net()
        optimizer = made(model, torch.optim.Adam, **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for _ in range(STEPS):
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            scaler.scale(loss_of(model)).backward()
            how(scaler, optimizer, model)
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    found = certain_of(recorded(script))
    assert ("MS745" in found) is (how in NOT_UNSCALED)
    assert how is not_finite or len(found) <= 1


@pytest.mark.parametrize(
    ("batches", "in_evaluation", "follow_up", "is_told"),
    [
        (4, False, lambda scores: scores.argmax(1).eq(0).sum(), True),
        (4, False, lambda scores: scores.sub(1).abs().mean(), True),
        (4, True, lambda scores: scores.argmax(1), False),
        (2, False, lambda scores: scores.argmax(1), False),
        (4, False, lambda scores: scores.add(1).mul(0.5).clamp(0, 1), False),  # a generated image
        (4, False, lambda scores: None, False),  # for the statistics of batch norm
    ],
)
def test_an_accuracy_alone_shows_the_mode_of_a_validation(
    recorded, batches, in_evaluation, follow_up, is_told
):
    def script():
        model = Net()
        validated(made(model), model, in_evaluation=in_evaluation, validate=validate)

    def validate(model):
        for _ in range(batches):
            follow_up(model(torch.randn(8, 6)))

    assert certain_of(recorded(script)) == ["MS743"] * is_told
