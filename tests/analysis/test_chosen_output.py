"""`--output-kind KIND:OUTPUT`: one of several outputs."""

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError


class HeadsOfOneWidth(nn.Module):
    def __init__(self, as_dict):
        super().__init__()
        self.a, self.b, self.as_dict = nn.Linear(12, 3), nn.Linear(12, 3), as_dict

    def forward(self, x):
        a, b = self.a(x.flatten(1)), self.b(x.flatten(1))
        return {"a": a, "b": b} if self.as_dict else (a, b)


@pytest.mark.parametrize("as_dict", [True, False])
def test_one_of_several_outputs_is_read_as_if_it_were_the_only_one(as_dict):
    torch.manual_seed(0)
    both, x = HeadsOfOneWidth(as_dict).eval(), torch.rand(2, 3, 2, 2)
    names = {"a": both.a, "b": both.b} if as_dict else {"0": both.a, "1": both.b}
    for name, head in names.items():
        alone, chosen = nn.Sequential(nn.Flatten(), head).eval(), f"classes:{name}"
        ours, theirs = (
            [[row["index"], row["logit"]] for row in ms.predict(model, x, output_kind=kind).to_rows()]
            for model, kind in ((both, chosen), (alone, "classes"))
        )
        assert ours == theirs
        loss = ms.grads(both, x, output_kind=chosen).loss
        assert loss.value == pytest.approx(ms.grads(alone, x, output_kind="classes").loss.value)
    with pytest.raises(CannotRunError, match="has no output 'c'") as caught:
        ms.predict(both, x, output_kind="classes:c")
    assert caught.value.hint.startswith(f"output_kind='classes:{next(iter(names))}'")
    with pytest.raises(UsageError, match="'clases' is not a value"):
        ms.predict(both, x, output_kind="clases:a")
