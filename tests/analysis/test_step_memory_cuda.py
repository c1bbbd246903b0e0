"""A training step as on CUDA, where there is none: kernels from torch's documentation, sizes counted by hand."""

import pytest
import torch
import torch.nn.functional as F
from test_step_memory import Custom, Encoder, Recurrent, Tied, plain
from torch import nn
from torch.utils.checkpoint import checkpoint

import modelscope_cli as ms
from modelscope_cli.analysis.summary import memory
from modelscope_cli.analysis.summary.cuda_kernels import backward, chosen_kernel
from modelscope_cli.analysis.summary.memory import StepOptions, run_step
from modelscope_cli.analysis.summary.training_steps import TrainingSteps

HALF, FULL = torch.bfloat16, torch.float32


@pytest.fixture(autouse=True)
def without_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize(
    ("dtype", "head", "is_masked", "is_causal", "expected"),
    [
        (HALF, 64, False, False, "flash"),
        (HALF, 64, False, True, "flash"),
        (HALF, 13, False, False, "flash"),  # torch pads it
        (HALF, 264, False, False, "efficient"),  # flash ends at 256
        (HALF, 64, True, False, "efficient"),  # flash takes no mask
        (HALF, 12, True, False, "math"),  # efficient needs a multiple of 8
        (FULL, 64, False, False, "efficient"),  # flash is for half precision
        (FULL, 12, True, False, "efficient"),
        (FULL, 13, False, False, "math"),
        (torch.float64, 64, False, False, "math"),
    ],
)
def test_the_kernel_of_attention(dtype, head, is_masked, is_causal, expected):
    q = torch.empty(2, 3, 5, head, dtype=dtype)
    mask = torch.empty(5, 5, dtype=dtype) if is_masked else None
    assert chosen_kernel(q, q, q, mask, is_causal=is_causal) == expected


def test_attention_that_flash_refuses():
    q, k = torch.empty(2, 3, 5, 8, dtype=HALF), torch.empty(2, 3, 7, 8, dtype=HALF)
    assert chosen_kernel(q, k, k, None, is_causal=True) == "efficient"  # not square
    assert chosen_kernel(q, k, torch.empty(2, 3, 7, 16, dtype=HALF), None, is_causal=False) == "efficient"
    assert chosen_kernel(q[0], k[0], k[0], None, is_causal=False) == "math"  # three dimensions
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert chosen_kernel(q, q, q, None, is_causal=False) == "math"


class Attention(nn.Module):
    """Two heads of 8 over 40 tokens."""

    def __init__(self, is_masked=False):
        super().__init__()
        self.qkv, self.is_masked = nn.Linear(16, 48), is_masked

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        mask = torch.ones(40, 40, dtype=torch.bool, device=x.device) if self.is_masked else None
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


TOKENS = (torch.zeros(2, 40, 16),)


def test_what_each_kernel_keeps():
    n_input, n_qkv, n_output = 2 * 40 * 16, 2 * 40 * 48, 2 * 40 * 16
    full = run_step(Attention(), TOKENS, StepOptions("sgd", device="cuda"))
    assert full.kernels == {"efficient": 1}
    # The log-sum-exp of 40 rows has 64 places; the state of the random numbers is two integers.
    assert full.saved_bytes == 4 * (n_input + n_qkv + n_output) + 4 * 2 * 2 * 64 + 2 * 8
    half = run_step(Attention(), TOKENS, StepOptions("sgd", "bfloat16", device="cuda"))
    assert half.kernels == {"flash": 1}
    # The weights, cast to bfloat16, are not kept: the input needs no gradient.
    assert half.saved_bytes == 2 * (n_input + n_qkv + n_output) + 4 * 2 * 2 * 40 + 3 * 8
    masked = run_step(Attention(is_masked=True), TOKENS, StepOptions("sgd", device="cuda"))
    assert masked.saved_bytes == full.saved_bytes + 4 * 40 * 40


def test_dropout_keeps_one_byte_a_value_and_norms_stay_in_float32():
    x = torch.zeros(4, 8)
    drops = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    assert run_step(drops, (x,), StepOptions("sgd", device="cuda")).saved_bytes == 4 * 32 + 32
    assert run_step(drops, (x,), StepOptions("sgd")).saved_bytes == 4 * 32 + 4 * 32
    norm = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))
    saved = run_step(norm, (x,), StepOptions("sgd", "bfloat16", device="cuda")).saved_bytes
    # The input, mean and deviation of each row, and what is cast to bfloat16: the output and the weights.
    assert saved == 4 * 32 + 2 * 4 * 4 + 2 * 32 + 2 * 64


def test_an_optimizer_takes_a_copy_of_the_weights_at_once():
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(8)))
    n_bytes = 8 * 64 * 64 * 4
    on_cuda = run_step(model, (torch.zeros(1, 64),), StepOptions("adamw", device="cuda"))
    assert on_cuda.peak.phase == "optimizer"
    # Weights, gradients, two moments, and the root of one of them for all weights at once.
    assert 5 * n_bytes <= on_cuda.peak.bytes < 5.1 * n_bytes
    assert run_step(model, (torch.zeros(1, 64),), StepOptions("adamw")).peak.bytes < 4.5 * n_bytes


class Broadcasts(nn.Module):
    """In-place, views, two uses of one weight, an output that is not used, and shapes that are broadcast."""

    def __init__(self):
        super().__init__()
        self.scale, self.fc = nn.Parameter(torch.rand(3, 1)), nn.Linear(4, 4)

    def forward(self, x):
        y = self.fc(x)[:, None] * self.scale
        y[:, 0].mul_(2)
        large, _ = self.fc(y).exp().max(1)
        return large + self.scale.sum()


@pytest.mark.parametrize(
    ("build", "shape"),
    [(Broadcasts, (5, 4)), (Tied, (2, 1, 12, 12)), (Custom, (2, 1, 12, 12)), (plain, (2, 1, 12, 12)),
     (lambda: Encoder(dropout=0.0), (2, 1, 12, 12))],
)  # fmt: skip
def test_gradients_are_those_of_torchs_engine(build, shape):
    torch.manual_seed(0)
    model, x = build(), torch.rand(shape)
    state = torch.get_rng_state()
    model(x).square().sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    torch.set_rng_state(state)
    backward(model(x).square().sum(), lambda number: None)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


class Recomputed(nn.Sequential):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


@pytest.mark.parametrize("kind", [nn.Sequential, Recomputed])
def test_memory_is_freed_as_by_torchs_engine(monkeypatch, kind):
    layers = [kind(nn.Linear(32, 32), nn.Sigmoid(), nn.Tanh(), nn.Linear(32, 32)) for _ in range(3)]
    model, x = nn.Sequential(*layers, nn.Linear(32, 32), nn.Sigmoid()), torch.zeros(64, 32)
    options = StepOptions("sgd")
    by_engine = run_step(model, (x,), options)
    mode_of = memory._mode_of

    class _Assumed:
        def __init__(self, *args):
            self.mode = mode_of(*args)

        def __enter__(self):
            self.mode.__enter__()
            return {}

        def __exit__(self, *raised):
            return self.mode.__exit__(*raised)

    monkeypatch.setattr(memory, "_mode_of", _Assumed)
    by_us = run_step(model, (x,), options)
    assert by_us.saved_bytes == by_engine.saved_bytes
    assert by_us.sizes["gradients"] == by_engine.sizes["gradients"]
    # The output goes before the backward pass here, with its graph.
    assert by_engine.peak.bytes - x.nbytes - 100 <= by_us.peak.bytes <= by_engine.peak.bytes


def test_a_record_says_what_was_assumed_and_what_could_not_be():
    training = ms.summary("resnet18", device="cuda", train=True, input_shape="2,3,32,32").training
    assert training.device == "cuda"
    assert training.is_fake
    assert "no CUDA here" in training.assumed[0]
    model, x = Recurrent(), torch.randn(2, 1, 12, 12)
    steps = TrainingSteps(model, (x,), StepOptions(device="cuda"), lambda reason: (model, (x,)))
    training = steps.memory()
    assert training.device == "cpu"
    assert not training.is_fake
    assert training.assumed == ("the step cannot be modelled on cuda: its tensors are on cpu",)
