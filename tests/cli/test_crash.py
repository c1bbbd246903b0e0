"""A script that an exception ends: that is the verdict of `watch`, with the layer, its input and the line."""

import html
import json
import shlex

import pytest
import torch
from cli.test_watch import LOOP, SPOILT
from torch.nn.functional import cross_entropy

import modelscope_cli as ms
from modelscope_cli.shell.app import run as run_argv
from modelscope_cli.watching.crash import crash_of


@pytest.fixture
def crashed(capsys):
    """Run a command line whose script may print a traceback."""

    def run(line, expect):
        assert run_argv(shlex.split(line)) == expect
        return capsys.readouterr()

    return run


CRASH = """
import sys, torch
from torch import nn
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4 * 36, 5)
    def forward(self, x):
        return self.head(self.features(x).flatten(1))
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for i in range(20):
    x, y = torch.randn(8, 3, 8, 8), torch.arange(8) % 5
    if i == int(sys.argv[1]):
        exec(sys.argv[2])
    loss = nn.CrossEntropyLoss()(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
FORWARD = "crash.py:11"  # its line


@pytest.mark.parametrize("step", [0, 3, 12])
@pytest.mark.parametrize(("spoil", "said"), [
    ("x = x[..., 1:]", f" in layer head (Linear): got 8x120, needs 144 features ({FORWARD})"),
    ("x = x[:, :1]", f" in layer features.0 (Conv2d): got 8x1x8x8, needs 3 channels ({FORWARD})"),
    (
        "model.features[0] = nn.Conv2d(3, 6, 3)",
        f" in layer features.1 (BatchNorm2d): got 8x6x6x6, needs 4 channels ({FORWARD})",
    ),
    ("x = x.double()", " in layer features.0 (Conv2d): RuntimeError: "),
    ("y = y[:4]", " in CrossEntropyLoss: ValueError: Expected input batch_size (8) to match target batch_size (4)"),
    ("y = {}['labels']", ": KeyError: 'labels' (crash.py:17)"),
])  # fmt: skip
def test_a_crash_is_the_verdict(crashed, cwd, step, spoil, said):
    (cwd / "crash.py").write_text(CRASH)
    told = crashed(f'watch --fail-on error --html page.html crash.py {step} "{spoil}"', 1)
    sentence = f"crashed at step {step}{said}"
    if not step:
        comma = "," * said.startswith(" ")
        assert f"warning: crash.py crashed before it trained anything{comma}{said}" in told.err
    record = ms.read(cwd / "page.html")
    assert (record.verdict, record.exit_code) == ("crashed", 1)
    assert record.reason.startswith(sentence)
    assert f"verdict: {sentence}" in told.out
    assert sentence[1:] in html.unescape((cwd / "page.html").read_text())


@pytest.mark.parametrize(("error", "hint"), [
    (IndexError("Target 255 is out of bounds."), "255 is out of bounds; try: cross_entropy(..., ignore_index=255)"),
    (IndexError("Target 5 is out of bounds."), "labels are 0 to C-1 for C outputs"),
    (AssertionError("No inf checks were recorded prior to update."), "scaler.step(optimizer), not"),
    (RuntimeError("step() has already been called since the last update()."), "then scaler.update()"),
    (ValueError("Tried to step 41 times. The total is 40"), "epochs * len(loader)"),
])  # fmt: skip
def test_a_known_error_has_a_hint(error, hint):
    assert hint in str(crash_of(error))


@pytest.mark.parametrize(
    ("end", "code"), [("sys.exit(3)", 3), ("raise KeyboardInterrupt", 130), ("exit('no')", 1)]
)
def test_what_ends_a_script_on_purpose_is_not_a_crash(crashed, cwd, end, code):
    (cwd / "loop.py").write_text(LOOP + end)
    assert json.loads(crashed("watch --json loop.py 25", code).out)["verdict"] != "crashed"


def test_a_crash_after_nan_keeps_the_finding(crashed, cwd):
    (cwd / "loop.py").write_text(SPOILT + "\nassert False, 'the loss is nan'")
    told = crashed("watch loop.py 30", 1)
    assert "verdict: crashed at step 30: AssertionError: the loss is nan (loop.py:13)" in told.out
    assert "error MS701" in told.out


class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise ValueError(f"sample {index} is empty")


def test_an_error_of_a_worker_is_the_error_and_not_its_traceback():
    with pytest.raises(ValueError, match="sample 0") as raised:
        next(iter(torch.utils.data.DataLoader(Broken(), num_workers=1)))
    assert crash_of(raised.value).startswith(": ValueError: sample 0 is empty (test_crash.py:")


LATE = """CUDA error: device-side assert triggered
Search for `cudaErrorAssert' in the manual for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace may be incorrect."""
FULL = (
    "CUDA out of memory. Tried to allocate 468.75 GiB. GPU 0 has a total capacity of 139.80 GiB of which 138.99 "
    "GiB is free. Including non-PyTorch memory, this process has 826.00 MiB memory in use. Of the allocated memory"
)


@pytest.mark.parametrize(("error", "told", "untold"), [
    (RuntimeError(LATE), "the device failed: CUDA error: device-side assert triggered (seen at test_", "ReLU"),
    (torch.OutOfMemoryError(FULL), "in layer 0 (ReLU): OutOfMemoryError: CUDA out of memory. Tried", "Of the"),
], ids=["late", "full"])  # fmt: skip
def test_an_error_of_a_device(error, told, untold):
    class ReLU(torch.nn.Module):
        def forward(self, x):
            raise error

    with pytest.raises(type(error)) as raised:
        torch.nn.Sequential(ReLU())(torch.ones(2))
    crash = crash_of(raised.value)
    assert told in crash
    assert untold not in crash
    assert ("CUDA_LAUNCH_BLOCKING=1" in crash) == ("ReLU" not in crash)


def test_a_loop_of_ones_own():
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = ms.watch(model, optimizer)

    def train():
        with watched:
            for width in (4, 4, 5):
                model(torch.randn(3, width)).sum().backward()
                optimizer.step()

    with pytest.raises(RuntimeError, match="shapes"):
        train()
    place = f"test_crash.py:{train.__code__.co_firstlineno + 3}"
    assert watched.record().reason == f"crashed at step 2 in Linear: got 3x5, needs 4 features ({place})"


def test_the_state_of_the_batch_before_is_named():
    cell, state = torch.nn.LSTM(3, 4), None

    def train(state):
        for _ in range(2):
            output, state = cell(torch.randn(5, 2, 3), state)
            output.sum().backward()

    with pytest.raises(RuntimeError, match="second time") as raised:
        train(state)
    assert crash_of(raised.value).endswith(
        "left by the previous batch: state = tuple(s.detach() for s in state)"
    )


@pytest.mark.parametrize(("broken", "advice"), [
    (lambda x, y: cross_entropy(x, y.float()), "labels.long()"),
    (lambda x, y: cross_entropy(x, y + 3), "count labels from 0"),
    (lambda x, y: cross_entropy(x, y[:, None]), "labels.squeeze(1)"),
    (lambda x, y: cross_entropy(x, y, reduction="none").backward(), "loss.mean()"),
    (lambda x, y: torch.nn.Linear(3, 2)(x.double()), "x.float()"),
    (lambda x, y: torch.nn.Linear(3, 2, device="meta")(x), "model.to(device)"),
    (lambda x, y: (s := x.sigmoid(), s.add_(1), s.sum().backward()), "y = y + 1"),
    (lambda x, y: torch.nn.Embedding(3, 2)(x), "tokens.long()"),
    (lambda x, y: x.detach().sum().backward(), "trainable weights"),
])  # fmt: skip
def test_what_to_try_after_the_usual_errors(broken, advice):
    x, y = torch.randn(4, 3, requires_grad=True), torch.zeros(4, dtype=torch.long)
    with pytest.raises((RuntimeError, IndexError)) as raised:
        broken(x, y)
    assert advice in crash_of(raised.value).partition("; try: ")[2]
