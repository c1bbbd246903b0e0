"""A layer whose output nothing uses is told from one that the gradient does not come back to."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from modelscope_cli.watching.uses import Outputs

CUT = {
    "detached": lambda side, x: side(x).detach(),
    ".data": lambda side, x: side(x).data,
    "NumPy": lambda side, x: torch.from_numpy(side(x).detach().numpy()),
    "a list": lambda side, x: torch.tensor(side(x).tolist()),
    "argmax": lambda side, x: functional.one_hot(side(x).argmax(1), 3),
    "written into a buffer": lambda side, x: torch.zeros(16, 3).index_put_(
        (torch.arange(16),), side(x).detach()
    ),
    "first, under no_grad": torch.no_grad()(lambda side, x: side(x)),
}
UNUSED = {
    "dropped": lambda side, x: side(x) is None,
    "printed": lambda side, x: 0 * len(str(side(x).mean().item())),
    "kept": lambda side, x: bool(vars(side).update(last=side(x).detach())),
}


@pytest.mark.parametrize("how", [*CUT, *UNUSED])
def test_an_unused_layer_causes_nothing(recorded, how):
    def script():
        main, side = nn.Linear(6, 3), nn.Linear(6, 3)
        model = nn.ModuleDict({"main": main, "side": side})
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)  # nothing is learnt
        for _ in range(60):
            x = torch.randn(16, 6)
            both = [main, lambda x: (CUT | UNUSED)[how](side, x)]
            one, other = (part(x) for part in (both[::-1] if how.startswith("first") else both))
            loss = functional.cross_entropy(one + other, torch.randint(3, (16,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert not torch.overrides._get_current_function_mode_stack()

    found = {one.code: one for one in recorded(script).findings}
    if how in CUT:
        assert found["MS715"].follows is None
        assert "MS716" not in found
    else:
        assert "MS715" not in found
        assert found["MS716"].severity == "warning"
        assert "MS716" not in {one.follows for one in found.values()}


def test_outputs_are_known_as_long_as_they_are_there():
    outputs, model = Outputs(lambda: None), torch.nn.Linear(2, 2)
    kept = []
    with torch.no_grad():
        for n in range(1, 41):
            outputs.begin(model)
            made = torch.rand(n, 1 << 12)
            outputs.end(model, made)
            kept += [made] if n % 10 == 0 else []
        outputs.stop()
        assert all(map(outputs.reach, kept))
        assert not outputs.reach(torch.rand(3))
    assert len(outputs._made) <= len(kept) + 1
