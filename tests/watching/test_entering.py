"""What enters a model: its arguments, wherever they stand, and what its first layer with weights is given."""

import math

import pytest
import torch
from tolerance import close
from torch import nn

STEPS = 4


class Pair(nn.Module):
    """Takes two tensors in whatever they come in."""

    def __init__(self):
        super().__init__()
        self.scale, self.body = nn.Flatten(), nn.Linear(6, 3)

    def forward(self, *args, **kwargs):
        found = [x for x in self.flat((args, kwargs)) if x.is_floating_point()]
        return self.body(self.scale(sum(found)))

    def flat(self, value):
        if isinstance(value, torch.Tensor):
            return [value]
        children = value.values() if isinstance(value, dict) else value
        return [x for child in children for x in self.flat(child)]


def train(call, steps=STEPS, model=None):
    model = model or Pair()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        call(model, step).square().mean().backward()
        optimizer.step()


def entering(record):
    return {one.name: one for one in record.facts.inputs}


ONE = torch.linspace(-2, 4, 48).view(8, 6)
TWO = torch.full((8, 6), 3.0)
CALLS = {
    "by position": lambda model, step: model(ONE, TWO),
    "in a list": lambda model, step: model([ONE, TWO]),
    "nested": lambda model, step: model({"a": (ONE, torch.arange(8)), "b": [TWO]}),
}


@pytest.mark.parametrize("how", CALLS)
def test_every_tensor_of_numbers_is_seen_where_it_stands(recorded, how):
    seen = entering(recorded(lambda: train(CALLS[how])))
    assert list(seen) == ["input", "input#1", "body"]
    one, two = seen["input"], seen["input#1"]
    assert (one.model, one.type, one.shape, one.dtype) == ("Pair", "", (8, 6), "float32")
    assert (seen["body"].type, seen["body"].is_computed) == ("Linear", False)
    assert one.series.step == tuple(range(STEPS))
    assert one.series.mean == close([ONE.mean().item()] * STEPS)
    assert one.series.std == close([ONE.std(correction=0).item()] * STEPS)
    assert one.series.min == close([-2.0] * STEPS)
    assert one.series.max == close([4.0] * STEPS)
    assert (one.series.batch, one.series.is_alike) == ((8,) * STEPS, (False,) * STEPS)
    assert two.series.is_alike == (True,) * STEPS
    assert two.series.std == close([0.0] * STEPS)


def test_what_is_given_by_keyword_is_an_input_too(recorded):
    seen = entering(recorded(lambda: train(lambda model, step: model(x=ONE))))
    assert set(seen) == {"input", "body"}
    assert seen["input"].series.mean == close([ONE.mean().item()] * STEPS)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_counted_and_left_out_of_the_rest(recorded, value):
    def call(model, step):
        x = ONE.clone()
        if step == 2:
            x[0, :3] = value
        return model(x)

    record = recorded(lambda: train(call))
    one = entering(record)["input"]
    assert one.series.non_finite == (0, 0, 3, 0)
    assert one.series.mean[2] == close(ONE.flatten()[3:].mean().item())
    assert one.series.max[2] == close(4.0)
    first = record.findings[0]
    assert (first.code, first.since_step) == ("MS728", 2)
    assert first.place.startswith("test_entering.py:")


def test_accumulated_passes_are_one_row(recorded):
    def script():
        model = Pair()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for part in (ONE[:5], ONE[5:], TWO):
            model(part).mean().backward()
        optimizer.step()

    one = entering(recorded(script))["input"]
    assert one.series.mean == close([torch.cat([ONE, TWO]).mean().item()])
    assert (one.series.batch, one.series.is_alike) == ((8,), (False,))


def test_what_another_model_gives_is_said_to_be_computed(recorded):
    def script():
        first, second = nn.Linear(6, 6), Pair()
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
        for _ in range(STEPS):
            optimizer.zero_grad()
            second(first(ONE)).square().mean().backward()
            optimizer.step()

    seen = {(one.model, one.name): one.is_computed for one in recorded(script).facts.inputs}
    assert seen["Linear", "input"] is False
    assert seen["Pair", "input"] is True


def test_evaluation_is_not_a_part_of_it(recorded):
    def call(model, step):
        with torch.no_grad():
            model(1e6 * ONE)
        return model(ONE)

    assert entering(recorded(lambda: train(call)))["input"].series.max == close([4.0] * STEPS)


def test_what_is_empty_is_left_out(recorded):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, words, nothing):
            return self.head(self.words(words))

    record = recorded(
        lambda: train(lambda model, _: model(torch.arange(8), torch.zeros(0, 3)), model=Words())
    )
    assert list(entering(record)) == ["input", "head"]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_tokens_are_an_input_and_a_state_is_none(recorded, kind):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.over, self.head = (
                nn.Embedding(9, 4),
                kind(4, 4, batch_first=True),
                nn.Linear(4, 2),
            )

        def forward(self, words, state=None):
            return self.head(self.over(self.words(words), *(state or ()))[0])

    state = torch.ones(1, 2, 4)
    given = ((state, state),) if kind is nn.LSTM else (state,)
    words = torch.tensor([[1, 8], [3, 0]])
    record = recorded(lambda: train(lambda model, _: model(words, given), model=Reader()))
    seen = [one for one in record.facts.inputs if not one.type]
    assert [(one.name, one.dtype, one.shape) for one in seen] == [("input", "int64", (2, 2))]
    assert seen[0].series.mean == close([3.0] * STEPS)
