"""By default `check` fails for broken checkpoints, made as in the bench, and for no healthy one."""

import random
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import modelscope_cli as ms
from modelscope_cli.records.check import CheckRecord

BENCH = Path(__file__).parents[1] / "bench" / "gate"
sys.path.insert(0, str(BENCH))
try:
    import broken
    import nets
finally:
    sys.path.remove(str(BENCH))

SIZE = 16


def images(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return images (N, 3, 16, 16) of four classes, each a pattern in noise, of mean 0 and standard deviation 1."""
    patterns = torch.randn(4, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(9))
    labels = torch.arange(n) % 4
    x = patterns[labels] + torch.randn(n, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed))
    return x / 2**0.5, labels


def trained(seed: int, steps: int = 60) -> nn.Module:
    torch.manual_seed(seed)
    model = nets.resnet().train()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    x, labels = images(256, 0)
    for _ in range(steps):
        chosen = torch.randint(len(x), (32,))
        optimizer.zero_grad()
        functional.cross_entropy(model(x[chosen]), labels[chosen]).backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def given() -> broken.Given:
    state, other = (dict(trained(seed).state_dict()) for seed in (1, 2))
    torch.manual_seed(3)
    return broken.Given(state, other, nets.resnet(), images(32, 4)[0], random.Random(5))


def check(state: broken.State, tmp_path: Path, x: Tensor | None) -> CheckRecord:
    file = tmp_path / "weights.pt"
    torch.save(state, file)
    shape = {"input_shape": (2, 3, SIZE, SIZE)} if x is None else {}
    return ms.check(f"{BENCH / 'nets.py'}:resnet", x, checkpoint=file, device="cpu", **shape)


# Maker, a rule that has to find it as an error
FOUND = [
    ("after_a_step_on_nan", "MS101"),
    ("nan_in_the_statistics", "MS101"),
    ("overflow_of_float16", "MS101"),
    ("one_layer_times_1000", "MS208"),
    ("one_layer_divided_by_1000", "MS208"),
    ("every_weight_times_10", "MS208"),
    ("second_half_of_zeros", "MS208"),
    ("task_vector_too_long", "MS208"),
    ("without_its_scale", "MS208"),
    ("of_raw_images", "MS208"),
    ("reset", "MS209"),
    ("second_half_as_made", "MS209"),
    ("first_half_as_made", "MS209"),
    ("buffers_alone", "MS209"),
    ("parameters_alone", "MS209"),
]
MAKERS = {name: make for makers in broken.KINDS.values() for name, make in makers.items()}


@pytest.mark.parametrize(("maker", "code"), FOUND, ids=[maker for maker, _ in FOUND])
def test_a_broken_checkpoint_fails_by_default(given, tmp_path, maker, code):
    record = check(MAKERS[maker](given), tmp_path, images(8, 6)[0])
    assert not record.passed
    assert code in {one.code for one in record.findings if one.severity == "error"}


@pytest.mark.parametrize("steps", [0, 1, 10, 60])
@pytest.mark.parametrize("is_noise", [False, True], ids=["images", "noise"])
def test_a_healthy_training_passes_from_its_first_step_on(tmp_path, steps, is_noise):
    check(trained(1, steps).state_dict(), tmp_path, None if is_noise else images(8, 6)[0]).assert_passed()


def test_one_value_in_each_channel_has_no_variance_to_judge(tmp_path):
    """The batch norm of a single image without height and width."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    for _ in range(100):
        model(torch.randn(16, 3))
    nn.init.normal_(model[2].bias)
    one, two = (ms.check(model.eval(), torch.randn(n, 3), select="MS208") for n in (1, 2))
    assert (one.findings, two.findings) == ((), ())


def test_a_flat_image_is_not_held_against_the_statistics(given, tmp_path):
    flat = torch.full((1, 3, SIZE, SIZE), 0.1)
    assert "MS208" not in {one.code for one in check(given.state, tmp_path, flat).findings}


def test_the_mean_square_is_one_over_the_inputs_of_the_statistics():
    """The law of MS208, by the definition of both: no input of the statistics is foreign, whatever its size."""
    from modelscope_cli.analysis.activations.batch_norm import NormInputObserver
    from modelscope_cli.hooks.session import HookSession

    for size, centre in ((1.0, 0.0), (300.0, -5000.0), (1e-2, 3.0)):
        norm = nn.BatchNorm2d(5, momentum=None, eps=1e-12)
        x = centre + size * torch.randn(
            64, 5, 7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
        )
        norm.double()(x)
        observer = NormInputObserver()
        with HookSession(nn.Sequential(norm), [observer]) as session:
            session.run((x,))
        observer.settle()
        (row,) = observer.rows()
        n = x.numel() / 5
        assert row.square == pytest.approx((n - 1) / n, rel=1e-4)  # the running variance divides by n - 1
        assert row.variance == pytest.approx((n - 1) / n, rel=1e-4)
