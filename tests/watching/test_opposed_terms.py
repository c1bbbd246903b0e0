"""Parts that work against each other: a generator and its discriminator, a reconstruction and its prior."""

import pytest
import torch
from torch import nn
from torch.nn import functional


@pytest.mark.parametrize("is_rewarded_for_being_recognised", [True, False])
def test_the_losses_of_adversaries_cannot_both_go_to_zero(recorded, is_rewarded_for_being_recognised):
    def script():
        maker, judge = nn.Linear(4, 8), nn.Linear(8, 1)
        by_maker = torch.optim.Adam(maker.parameters(), 0.05)
        by_judge = torch.optim.Adam(judge.parameters(), 0.05)
        loss_of = functional.binary_cross_entropy_with_logits
        one, zero = torch.ones(16, 1), torch.zeros(16, 1)
        for _ in range(150):
            made = maker(torch.randn(16, 4))
            loss = loss_of(judge(torch.rand(16, 8) + 1), one) + loss_of(judge(made.detach()), zero)
            by_judge.zero_grad()
            loss.backward()
            by_judge.step()
            by_maker.zero_grad()
            loss_of(judge(made), zero if is_rewarded_for_being_recognised else one).backward()
            by_maker.step()

    found = {one.code for one in recorded(script).findings}
    assert ("MS722" in found) is is_rewarded_for_being_recognised


PLAIN = nn.BCEWithLogitsLoss()
# name: (loss of a discriminator, by its scores of real and generated samples, whether it is healthy)
JUDGES = {
    "two labels": (lambda real, made: PLAIN(real, one_of(real)) + PLAIN(made, 0 * one_of(made)), True),
    "smoothed": (lambda real, made: PLAIN(real, 0.9 * one_of(real)) + PLAIN(made, 0 * one_of(made)), True),
    "one of them by hand": (
        lambda real, made: PLAIN(real, one_of(real)) + functional.softplus(made).mean(),
        True,
    ),
    "relativistic": (lambda real, made: PLAIN((real - made) / 2, one_of(real)), True),
    "ones": (lambda real, made: PLAIN(real, one_of(real)) + PLAIN(made, one_of(made)), False),
    "together": (lambda real, made: PLAIN(torch.cat([real, made]), torch.zeros(32, 1)), False),
}
one_of = torch.ones_like


@pytest.mark.parametrize("what", JUDGES)
def test_a_discriminator_gets_two_labels(recorded, what):
    loss_of, is_healthy = JUDGES[what]

    def script():
        maker, judge = nn.Linear(4, 8), nn.Linear(8, 1)
        by_maker = torch.optim.Adam(maker.parameters(), 0.01)
        by_judge = torch.optim.Adam(judge.parameters(), 0.01)
        for _ in range(40):
            made = maker(torch.randn(16, 4))
            by_judge.zero_grad()
            loss_of(judge(torch.rand(16, 8)), judge(made.detach())).backward()
            by_judge.step()
            score = judge(made)
            by_maker.zero_grad()
            PLAIN(score, one_of(score)).backward()
            by_maker.step()

    assert [one.code for one in recorded(script).findings] == ([] if is_healthy else ["MS725"])


@pytest.mark.parametrize("fault", ["detached", "wrong sign", "no weight", None])
def test_the_prior_of_an_autoencoder(recorded, fault):
    def script():
        into, out = nn.Linear(8, 4), nn.Linear(2, 8)
        model = nn.ModuleList([into, out])
        optimizer = torch.optim.Adam(model.parameters(), 0.02)
        for _ in range(160):
            x = torch.randn(32, 2) @ torch.linspace(-1, 1, 16).view(2, 8)
            mean, log = into(x).chunk(2, 1)
            z = mean + torch.randn_like(mean) * (log / 2).exp()
            prior = -0.5 * (1 + log - mean**2 - log.exp()).sum(1).mean()
            cost = functional.mse_loss(out(z.detach() if fault == "detached" else z), x, reduction="sum") / 32
            weight = {"detached": 1, "wrong sign": -50, "no weight": 0, None: 0.01}[fault]
            loss = cost + weight * prior
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    causes = [one for one in recorded(script).findings if one.follows is None]
    codes = {"detached": ["MS715"], "wrong sign": ["MS722"], "no weight": ["MS723"], None: []}
    assert [one.code for one in causes] == codes[fault]
    assert all("KL" in one.message for one in causes)
