"""`watch` from Python: a script as the command runs it, and a loop of the caller's own."""

import json
import os

import pytest
import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.optim import optimizer as optim
from torch.utils.data import DataLoader, TensorDataset

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.shell.app import run
from modelscope_cli.watching.log import VERSION, log_file

pytestmark = pytest.mark.usefixtures("undrawn")

OF_THE_CALL = {"argv", "elapsed_ms"}
LOOP = """
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[2]) if sys.argv[2:] else 0.05)
for i in range(int(sys.argv[1]) if sys.argv[1:] else 5):
    loss = model(torch.randn(16, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.py").write_text(LOOP)
    return tmp_path


@pytest.fixture(autouse=True)
def _nothing_stays():
    before = torch.autograd.backward, torch.amp.GradScaler.step, torch.amp.GradScaler.scale
    yield
    assert not hooks._has_any_global_hook()
    assert not {**optim._global_optimizer_pre_hooks, **optim._global_optimizer_post_hooks}
    assert before == (torch.autograd.backward, torch.amp.GradScaler.step, torch.amp.GradScaler.scale)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.relu, self.b = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)

    def forward(self, x):
        return self.b(self.relu(self.a(x)))


def seeded(kind=Net, lr=0.05):
    torch.manual_seed(0)
    model = kind()
    return model, torch.optim.SGD(model.parameters(), lr=lr)


def step(model, optimizer, x=None, factor=1.0):
    loss = factor * model(torch.randn(16, 4) if x is None else x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def comparable(document):
    facts = {key: value for key, value in document["facts"].items() if key not in ("time", "memory")}
    return {key: value for key, value in document.items() if key not in OF_THE_CALL} | {"facts": facts}


# Scripts


def test_function_and_command_give_the_same_document(capsys, folder):
    assert run(["watch", "--out", "typed", "--json", "loop.py", "12"]) == 0
    document = json.loads(capsys.readouterr().out)
    in_memory = ms.watch("loop.py", arguments=["12"])
    assert capsys.readouterr() == ("", "")
    assert sorted(file.name for file in folder.iterdir()) == ["loop.py", "typed"]
    written = ms.watch("loop.py", arguments=["12"], out="called")
    names = {file.name for file in (folder / "called").iterdir()}
    assert names == {file.name for file in (folder / "typed").iterdir()}
    for record in (in_memory, written):
        assert comparable(json.loads(json.dumps(record.to_dict()))) == comparable(document)


def test_a_loop_that_no_with_surrounds_says_so():
    model = nn.Linear(2, 2)
    (told,) = ms.watch(model, torch.optim.SGD(model.parameters())).record().run.warnings
    assert told.message == "nothing is watched yet: put the loop in `with watch(...) as watched:`"


def test_two_runs_of_a_script_have_no_seed_and_say_how_many_numbers_changed(folder):
    a, b = (ms.watch("loop.py", arguments=[n]) for n in ("12", "13"))
    compared = ms.diff(a, b)
    assert (a.run.seed, compared.b.seed, "seed" in str(compared)) == (None, None, False)
    n = sum(row.status != "same" for row in compared.figures)
    shown = len({row.name for row in compared.figures if row.status != "same"})
    assert f"{n - shown} other numbers of these rows changed" in str(compared)
    assert "answer  Different: " in str(compared).splitlines()[2]


# The version of the log


def changed_log(folder, version):
    """Return the record of a short run, and leave its log with another version."""
    record = ms.watch("loop.py", out="run")
    log = log_file(folder / "run")
    first, rest = log.read_text().split("\n", 1)
    begin = json.loads(first)
    assert begin["begin"].pop("version") == VERSION
    if version is not None:
        begin["begin"]["version"] = version
    log.write_text(json.dumps(begin) + "\n" + rest)
    return record


OLDER, NEWER = (
    "modelscope watch --out FOLDER SCRIPT   # writes a new one",
    "pip install --upgrade modelscope-cli",
)


@pytest.mark.parametrize(("version", "said", "hint"), [
    (None, "version 1", OLDER),  # from before there were versions
    (VERSION - 1, f"version {VERSION - 1}", OLDER),
    *((version, f"version {version}", NEWER) for version in (VERSION + 1, str(VERSION), [1])),
])  # fmt: skip
def test_a_log_of_another_version_is_refused_by_name(folder, capsys, version, said, hint):
    changed_log(folder, version)
    with pytest.raises(CannotRunError, match=f"version {VERSION}") as caught:
        ms.watch(report="run")
    assert f"'run/log.jsonl' is a log of {said}, but" in caught.value.message
    assert run(["watch", "--report", "run"]) == 4
    assert f"hint: {hint}\n" in capsys.readouterr().err


# A loop of one's own


def test_a_loop_gives_what_its_script_gives(capsys):
    model, optimizer = seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    with ms.watch(model, optimizer) as watched:
        for _ in range(5):
            step(model, optimizer)
    assert capsys.readouterr() == ("", "")
    ours, scripts = watched.record(), ms.watch("loop.py")
    keys = ("layers", "parameters", "loss", "lr", "findings", "events", "steps", "recorded", "exit_code")
    assert all(getattr(ours, key) == getattr(scripts, key) for key in keys)
    assert ours.run.model.source == "object"
    assert ours.run.warnings == ()
    assert os.listdir() == ["loop.py"]


def test_it_can_be_asked_at_any_time():
    model, optimizer = seeded(lr=1e-9)
    watched = ms.watch(model)
    assert watched.findings == ()
    assert "killed" not in str(watched)
    with watched:
        for n in range(20):
            step(model, optimizer)
            assert watched.record().steps == n + 1
            assert watched.record().exit_code is None
            assert watched.record().run.warnings == ()
            assert [finding.code for finding in watched.findings] == (["MS710"] if n >= 7 else [])
    assert watched.record().exit_code == 0
    assert watched.findings == watched.record().findings
    assert "MS710" in str(watched)


def test_an_exception_goes_on_and_what_was_seen_remains(folder):
    model, optimizer = seeded()
    watched = ms.watch(model, out="run")

    def broken():
        with watched:
            step(model, optimizer)
            step(model, 1 / 0)

    with pytest.raises(ZeroDivisionError):
        broken()
    assert (watched.record().steps, watched.record().exit_code) == (1, 1)
    written = json.loads((folder / "run" / "report.json").read_text())
    assert comparable(written) == comparable(json.loads(json.dumps(watched.record().to_dict())))
    assert {"log.jsonl", "layers.csv", "report.html"} <= {file.name for file in (folder / "run").iterdir()}
    assert comparable(ms.watch(report="run").to_dict()) == comparable(watched.record().to_dict())


@pytest.mark.parametrize(
    ("keywords", "steps", "code"),
    [({"steps": 3}, 3, 0), ({"abort_on": "nan"}, 6, 1), ({"abort_on": "findings"}, 6, 1)],
)
def test_it_stops_the_block_and_nothing_behind_it(keywords, steps, code):
    model, optimizer = seeded()
    with ms.watch(model, optimizer, **keywords) as watched:
        for n in range(50):
            step(model, optimizer, factor=float("nan") if n == 5 else 1.0)
    assert (watched.record().steps, watched.record().exit_code) == (steps, code)


def test_one_at_a_time_and_again_afterwards():
    model, optimizer = seeded()
    with ms.watch(model), pytest.raises(UsageError, match="already being watched"), ms.watch(model):
        pass
    with ms.watch(model):
        with pytest.raises(UsageError, match="already being watched"):
            ms.watch("loop.py")
        step(model, optimizer)
    watched = ms.watch(model)
    assert watched.verdict == "not started"
    with watched:
        step(model, optimizer)
        assert watched.verdict == "running"
    with pytest.raises(UsageError, match="would replace what was recorded of its 1 step"), watched:
        pass
    assert watched.record().steps == 1


def test_a_training_by_modelscope_in_the_block_is_recorded_apart():
    data = DataLoader(TensorDataset(torch.randn(32, 4), torch.arange(32) % 2), 16)
    alone = ms.train(seeded()[0], data, steps=6)
    model, optimizer = seeded()
    with ms.watch(model, optimizer) as watched:
        for n in range(20):
            inner = ms.train(seeded()[0], data, steps=6) if n == 10 else None
            step(model, optimizer)
            assert inner is None or str(inner) == str(alone)
    record = watched.record()
    assert record.steps == 20
    assert [one.message for one in record.run.warnings if "modelscope trained in this run" in one.message]


def test_only_the_models_that_are_given_are_looked_at():
    model, optimizer = seeded()
    other, others = seeded(lambda: nn.Sequential(nn.Linear(4, 2)))
    with ms.watch(model) as watched:
        for _ in range(3):
            step(other, others)
            step(model, optimizer, factor=2.0)
    record = watched.record()
    assert {row.model for row in record.layers} == {"Net"}
    assert {row.optimizer for row in record.parameters} == {"SGD"}
    assert record.steps == 3
    alone, optimizer = seeded()
    x = torch.ones(8, 4)
    with ms.watch(alone) as first:
        step(alone, optimizer, x)
    again, optimizer = seeded()
    with ms.watch(again) as second:
        step(other, others, 5 * x)  # its loss is its own
        step(again, optimizer, x)
    assert first.record().loss == second.record().loss


REFUSED = {
    "nothing": ((), {}, "no script"),
    "no such script": (("lop.py",), {}, "lop.py"),
    "a number": ((7,), {}, "int is not a torch.nn.Module"),
    "no models": (([],), {}, "not a torch.nn.Module"),
    "a model without parameters": ((nn.ReLU(),), {}, "ReLU has no parameters"),
    "an optimizer that is none": ((Net(), Net()), {}, "Net is not a torch.optim"),
    "an optimizer for a script": (("loop.py", object()), {}, "a loop of your own"),
    "arguments for a loop": ((Net(),), {"arguments": ["3"]}, "to a script only"),
    "a pattern that matches nothing": ((Net(),), {"layer": "cnov"}, "'cnov'"),
    "a call": ((Net(),), {"layer": "relu@1"}, "every call"),
    "every nothing": ((Net(),), {"every": 0}, "at least 1"),
    "another reason": ((Net(),), {"abort_on": "nun"}, "did you mean nan"),
    "a report and a script": (("loop.py",), {"report": "run"}, "is not needed"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what):
    arguments, keywords, words = REFUSED[what]
    with pytest.raises(UsageError) as caught:
        ms.watch(*arguments, **keywords)
    assert words in caught.value.message
