"""Ctrl-C in a long loop: what is finished is the result, a second one ends at once, and the exit code is 130."""

import copy
import shutil
import signal

import numpy
import pytest
import torch
from PIL import Image
from torch import nn

import modelscope_cli as ms
from modelscope_cli.analysis.dataset import check_images
from modelscope_cli.interrupts import is_cut_short
from modelscope_cli.report.check.table import answer

N_BATCHES = 6


@pytest.fixture(autouse=True)
def handler():
    """Python's own handler, whatever another test has left; afterwards it is there again."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)
    is_cut_short()


class Net(nn.Sequential):
    """Presses Ctrl-C in its `n`-th pass."""

    def __init__(self, n: int | None = None) -> None:
        super().__init__(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
        )
        self.n = n

    def forward(self, x):
        if self.n is not None:
            self.n -= 1
            if self.n == 0:
                signal.raise_signal(signal.SIGINT)
        return super().forward(x)


class Batches:
    """Presses Ctrl-C before its batch `n`, so often."""

    def __init__(self, n: int, times: int = 1) -> None:
        generator = torch.Generator().manual_seed(0)
        targets = torch.tensor([0, 1, 2, 0])
        self.pairs = [(torch.randn(4, 3, 8, 8, generator=generator), targets) for _ in range(N_BATCHES)]
        self.n, self.times = n, times

    def __iter__(self):
        for n, batch in enumerate(self.pairs):
            for _ in range(self.times if n == self.n else 0):
                signal.raise_signal(signal.SIGINT)
            yield batch


def test_a_training_ends_after_the_step(tmp_path):
    record = ms.train(Net(), Batches(3), steps=50, out=tmp_path / "run")
    training = record.training
    assert training.steps == 4
    assert [(event.step, event.kind) for event in training.events] == [(4, "interrupted")]
    assert all(len(series.value) == 4 for series in training.loss)
    assert (tmp_path / "run" / "report.json").is_file()
    assert is_cut_short()
    assert not is_cut_short()


def test_a_second_ctrl_c_ends_at_once():
    with pytest.raises(KeyboardInterrupt):
        ms.train(Net(), Batches(3, times=2), steps=50)


def test_a_sweep_ends_after_the_step_and_the_model_is_as_it_was():
    net = Net()
    before = copy.deepcopy(net.state_dict())
    record = ms.lrfind(net, Batches(4), steps=100)
    assert record.stopped == "Ctrl-C after 5 steps"
    assert len(record.lr) == 5
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_an_ablation_keeps_the_layers_that_are_done():
    whole = ms.ablate(Net(), torch.zeros(1, 3, 8, 8))
    record = ms.ablate(Net(6), torch.zeros(1, 3, 8, 8))
    assert 0 < len(record.rows) < len(whole.rows)
    (notice,) = [one for one in record.run.warnings if one.code == "interrupted"]
    assert notice.message.startswith(
        f"Ctrl-C: only {len(record.rows)} of {len(whole.rows)} outputs on 1 image"
    )
    assert is_cut_short()


def test_a_check_of_images_keeps_what_it_has_read(tmp_path, monkeypatch):
    """It has not passed: most images were not tested, and neither is a class missing that was not reached."""
    for kind in ("cat", "dog"):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for n in range(4):
            noise = numpy.random.default_rng(n + 9 * (kind == "dog")).integers(0, 255, (32, 32, 3), "uint8")
            Image.fromarray(noise).save(tmp_path / "photos" / kind / f"{n}.png")
    looks = check_images._looks

    def press(files, is_compared):
        for n, look in enumerate(looks(files, is_compared)):
            if n == 2:
                signal.raise_signal(signal.SIGINT)
            yield look

    monkeypatch.setattr(check_images, "_looks", press)
    shutil.copytree(tmp_path / "photos", tmp_path / "others")
    record = ms.check_images(tmp_path / "photos", against=tmp_path / "others")
    assert is_cut_short()
    assert (record.images, record.verdict) == (3, "not judged")
    assert [one.message for one in record.run.warnings] == ["Ctrl-C: 13 of 16 images were not tested"]
    assert not {"MS804", "MS811"} & {one.code for one in record.findings}
    words = answer(record)
    assert words.startswith("Not judged: neither passed nor failed; Ctrl-C: 13 of 16 images were not tested")


def test_the_command_ends_with_130(run, cwd):
    (cwd / "net.py").write_text(
        "import signal\n"
        "import torch\n"
        "class Loader:\n"
        "    def __iter__(self):\n"
        "        for step in range(9):\n"
        "            if step == 2: signal.raise_signal(signal.SIGINT)\n"
        "            yield torch.zeros(4, 3, 32, 32), torch.arange(4)\n"
        "loader = Loader()\n"
    )
    outcome = run("train squeezenet1_1 --weights none --loaders net.py:loader --steps 9 --json", expect=130)
    assert outcome.json["steps"] == 3
    assert outcome.json["events"][-1]["message"] == "Ctrl-C after 3 steps: stopped"
