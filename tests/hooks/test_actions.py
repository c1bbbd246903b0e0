"""What an action makes of one tensor, against NumPy and formulas written out."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from modelscope_cli.hooks.actions import LeftAloneError, TensorPlace, change, part_of
from modelscope_cli.hooks.spec import parse_hook

X = torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(0))
TOKENS = X.flatten(2).transpose(1, 2)  # (2, 15, 4)
FLAT = X.mean((2, 3))  # (2, 4)


def act(text: str, x: Tensor, channel_dim: int | None = 1, seed: int = 0) -> Tensor:
    before = x.clone()
    result = change(parse_hook(f"{text}@layer"), x, TensorPlace(channel_dim, seed))
    assert torch.equal(x, before) or not x.isfinite().all()
    assert (result.shape, result.dtype, result.device) == (x.shape, x.dtype, x.device)
    return result


@pytest.mark.parametrize(("text", "truth"), [
    ("zero", lambda x: 0 * x),
    ("scale=-2.5", lambda x: -2.5 * x),
    ("add=10", lambda x: x + 10),
    ("clamp=-0.5,1", lambda x: np.clip(x, -0.5, 1)),
    ("mean", lambda x: x.mean((2, 3), keepdims=True) + 0 * x),
    ("nan-to-num", lambda x: x),
])  # fmt: skip
def test_arithmetic_is_numpys(text: str, truth) -> None:
    np.testing.assert_allclose(act(text, X).numpy(), truth(X.numpy()), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        act(f"{text}[1,3]", X).numpy()[:, [1, 3]], truth(X.numpy())[:, [1, 3]], 1e-6, 1e-6
    )
    assert torch.equal(act(f"{text}[1,3]", X)[:, [0, 2]], X[:, [0, 2]])


@given(st.integers(1, 6), st.permutations(range(4)))
@settings(max_examples=20, deadline=None)
def test_keep_leaves_the_channels_with_the_largest_mean(n: int, order: list[int]) -> None:
    x = X * torch.tensor([0.1, 1.0, 10.0, 100.0])[order].reshape(4, 1, 1)
    kept = act(f"keep={n}", x).abs().sum((0, 2, 3)) > 0
    strongest = x.abs().mean((0, 2, 3)).argsort(descending=True)[:n]
    assert set(kept.nonzero().flatten().tolist()) == set(strongest.tolist())
    assert torch.equal(act(f"keep={n}", x)[:, kept], x[:, kept])


def test_keep_works_on_vectors_and_tokens() -> None:
    assert act("keep=1", torch.tensor([[1.0, -3.0, 2.0]])).tolist() == [[0, -3, 0]]
    assert (act("keep=2", TOKENS, 2).abs().sum((0, 1)) > 0).sum() == 2


def test_keep_within_given_channels_leaves_the_others() -> None:
    result = act("keep=1[0,1]", X)
    assert torch.equal(result[:, 2:], X[:, 2:])
    assert sorted((result[:, :2].abs().sum((0, 2, 3)) > 0).tolist()) == [False, True]


def test_noise_is_gaussian_and_seeded_and_leaves_the_global_state_alone() -> None:
    state = torch.get_rng_state()
    x = torch.zeros(1, 4, 100, 100)
    first, again, other = act("noise=0.5", x), act("noise=0.5", x), act("noise=0.5", x, seed=1)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.mean().item() == pytest.approx(0, abs=0.02)
    assert first.std().item() == pytest.approx(0.5, rel=0.02)
    assert torch.equal(act("noise=0", X), X)
    assert torch.equal(state, torch.get_rng_state())


def test_zero_is_zero_of_anything() -> None:
    strange = torch.tensor([[torch.nan, torch.inf, -torch.inf, 1.0]])
    assert act("zero", strange).tolist() == [[0, 0, 0, 0]]
    assert torch.equal(act("nan-to-num", strange), torch.nan_to_num(strange))
    assert act("zero", torch.arange(4)[None]).tolist() == [[0, 0, 0, 0]]
    assert act("zero", torch.ones(2, 3, dtype=torch.bool)).any().item() is False


@pytest.mark.parametrize("text", ["zero", "scale=2", "add=1", "clamp=-1,1", "noise=1", "mean", "keep=2"])
@pytest.mark.parametrize("channels", ["", "[1,3]"])
def test_gradients_flow_through_and_the_next_layer_may_work_in_place(text: str, channels: str) -> None:
    x = X.clone().requires_grad_()
    act_result = change(parse_hook(f"{text}{channels}@layer"), x, TensorPlace(1, 0))
    (act_result * 1.0).relu_().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    if text == "zero":
        assert (x.grad[:, [1, 3]] == 0).all()
    with torch.no_grad():
        change(parse_hook(f"{text}{channels}@layer"), x, TensorPlace(1, 0)).relu_()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("text", ["scale=2", "add=0.1", "noise=1", "mean", "keep=2", "clamp=0,1"])
def test_the_dtype_stays(text: str, dtype: torch.dtype) -> None:
    act(text, X.to(dtype))


@pytest.mark.parametrize(("text", "x", "channel_dim", "why"), [
    ("scale=2", torch.arange(6).reshape(2, 3), 1, "int64"),
    ("noise=1", torch.ones(2, 3, dtype=torch.bool), 1, "bool"),
    ("keep=1", torch.ones(3), None, "no channels"),
    ("zero[1]", torch.ones(3), None, "no channels"),
    ("zero", torch.eye(3).to_sparse(), 1, "sparse"),
])  # fmt: skip
def test_what_an_action_means_nothing_for_is_left_alone(
    text: str, x: Tensor, channel_dim: int | None, why: str
) -> None:
    with pytest.raises(LeftAloneError, match=why):
        act(text, x, channel_dim)


def test_looking_sees_only_the_channels_asked_for() -> None:
    place = TensorPlace(1, 0)
    assert part_of(parse_hook("print@c"), X, place) is X
    assert torch.equal(part_of(parse_hook("print[0,2..3]@c"), X, place), X[:, [0, 2, 3]])
    with pytest.raises(LeftAloneError):
        part_of(parse_hook("print[0]@c"), X[0, 0, 0], TensorPlace(None, 0))
