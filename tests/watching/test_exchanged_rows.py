"""The loss is computed again for exchanged predictions only as often as it takes to be certain."""

import pytest
import torch
from torch import nn
from torch.nn import functional


@pytest.mark.parametrize("is_related", [True, False])
def test_the_loss_is_computed_again_until_it_is_certain_to_rise(watching, is_related):
    def train():
        model = nn.Linear(4, 4)
        nn.init.eye_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(60):
            x = 0.1 * torch.randn(32, 4)
            target = x if is_related else 0.1 * torch.randn(32, 4)
            loss = functional.mse_loss(
                model(x), target + 1
            )  # the offset is most of the loss: it rises slightly
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    (model,) = watching(train).recorder.registry.models
    (seen,) = model.exchanged.values()
    assert (len(seen) < 20) is is_related
    assert len(seen) >= 8
    assert len(model.of_one_point) > 20
