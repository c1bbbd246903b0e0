"""The device that stands for an accelerator is as strict as one: what a mistake needs in order to be noticed."""

import signal

import pytest
from stand_in_runs import Python

# Each is an error on every accelerator, and would pass on a CPU.
MISTAKES = {
    "x + torch.ones(3)": "same device",
    "torch.equal(x, torch.ones(3))": "same device",
    "torch.stack([x, torch.ones(3)])": "same device",
    "x + torch.ones(3, device='stand:1')": "same device",
    "x.numpy()": "Tensor.cpu()",
    "torch.rand(3, device='stand', generator=torch.Generator())": "generator",
    "torch.ones(3, device='stand:2')": "ordinal",
}


def test_a_tensor_of_the_cpu_beside_one_of_the_device_is_an_error(python: Python) -> None:
    outcome = python(
        """
x, said = torch.ones(3, device="stand"), []
for mistake in sys.argv[1:]:
    try:
        exec(mistake)
        said.append("nothing")
    except Exception as error:
        said.append(str(error))
    assert x.tolist() == [1.0, 1.0, 1.0]
print(json.dumps(said))
""",
        *MISTAKES,
    )
    said = dict(zip(MISTAKES, outcome.json, strict=True))
    assert {mistake: words for mistake, words in said.items() if MISTAKES[mistake] not in words} == {}


def test_memory_cannot_be_read_between_kernels(python: Python) -> None:
    read = "import ctypes; ctypes.c_float.from_address(torch.ones(3, device='stand').data_ptr()).value"
    assert python(read).code == -signal.SIGSEGV


def test_new_memory_is_not_zero(python: Python) -> None:
    assert python("print(torch.empty(3, device='stand').isnan().all().item())").out == "True\n"


def test_a_copy_that_does_not_block_is_done_when_it_is_waited_for(python: Python) -> None:
    outcome = python("""
x = torch.arange(3.0, device="stand")
y = x.to("cpu", non_blocking=True)
before = y.isnan().all().item()
torch.accelerator.synchronize()
print(before, y.tolist())
""")
    assert outcome.out == "True [0.0, 1.0, 2.0]\n"


def test_random_numbers_are_its_own(python: Python) -> None:
    outcome = python("""
torch.manual_seed(0)
state, cpu = torch.stand.get_rng_state(), torch.get_rng_state()
a = torch.rand(3, device="stand")
torch.stand.set_rng_state(state)
print(torch.equal(a, torch.rand(3, device="stand")), torch.equal(cpu, torch.get_rng_state()))
""")
    assert outcome.out == "True True\n"


def test_events_are_stamped_by_its_own_clock(python: Python) -> None:
    outcome = python("""
x = torch.ones(3, device="stand")
begun, ended = (torch.Event("stand", enable_timing=True) for _ in range(2))
begun.record(); x + 1; x + 2; ended.record()
print(begun.elapsed_time(ended))
""")
    assert outcome.out == "2.0\n"


@pytest.mark.parametrize(("settings", "error"), [
    ({"bytes": 1 << 20}, "OutOfMemoryError"),
    ({"kernels_left": 5}, "AcceleratorError"),
    ({"has_float64": False}, "TypeError"),
    ({"missing": ["aten::std"]}, "NotImplementedError"),
    ({"has_events": False}, "RuntimeError"),
    ({}, "none"),
])  # fmt: skip
def test_it_can_be_made_to_fail(python: Python, settings: dict[str, object], error: str) -> None:
    program = """
x = torch.ones(100, device="stand")
try:
    for n in range(9):
        x + n
    x.double()
    torch.ones(1 << 20, device="stand")
    x.std()
    torch.Event("stand").record()
    print("none")
except Exception as error:
    print(type(error).__name__)
"""
    assert python(program, **settings).out == f"{error}\n"


# A training of two steps on the CPU and on the device, from the same weights.
TRAINING = """
import copy
from torch import nn
torch.manual_seed(0)
dtype = getattr(torch, sys.argv[1])
net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                    nn.LayerNorm(72), nn.Linear(72, 5)).to(dtype)
twin = copy.deepcopy(net).to("stand")
for _ in range(2):
    x, y = torch.randn(4, 3, 8, 8, dtype=dtype), torch.randint(5, (4,))
    for model in (net, twin):
        optimizer = torch.optim.AdamW(model.parameters())
        device = next(model.parameters()).device
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
gaps = [(a.double() - twin.state_dict()[name].cpu().double()).abs().max() for name, a in net.state_dict().items()]
print(max(gaps).item(), net[1].num_batches_tracked.item(), twin[1].num_batches_tracked.item())
"""


@pytest.mark.parametrize(("dtype", "rounding"), [("float32", 1e-6), ("bfloat16", 2**-7)])
def test_it_trains_as_the_cpu_does(python: Python, dtype: str, rounding: float) -> None:
    gap, *steps = python(TRAINING, dtype).out.split()
    assert float(gap) <= rounding
    assert steps == ["2", "2"]


def test_autocast_is_that_of_an_accelerator(python: Python) -> None:
    outcome = python("""
layer = torch.nn.Linear(4, 2).to("stand")
with torch.autocast("stand", torch.bfloat16):
    y = layer(torch.ones(1, 4, device="stand"))
    print(y.dtype, torch.nn.functional.cross_entropy(y, torch.zeros(1, dtype=int, device="stand")).dtype)
""")
    assert outcome.out.split() == ["torch.bfloat16", "torch.float32"]
