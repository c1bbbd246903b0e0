"""`modelscope watch --try-fixes`: the script again with one thing changed, and nothing of it left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from modelscope_cli.watching.log import VERSION
from modelscope_cli.watching.trials import landlock

pytestmark = pytest.mark.skipif(
    not landlock.is_available(), reason="this kernel has no Landlock, which keeps trials from writing"
)

TRAIN = """
import os, pathlib, shutil, sys, torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
HERE = pathlib.Path(__file__).resolve().parent
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
x = torch.randn(512, 16)
y = (x @ torch.randn(16, 4)).argmax(1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
def train(steps=60, at=lambda i: None):
    for i in range(steps):
        b = torch.randint(0, 512, (32,))
        loss = nn.functional.cross_entropy(net(x[b]), y[b])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), LIMIT)
        optimizer.step()
        at(i)
"""
CLIPPED = TRAIN.replace("LIMIT", "1e-7")
HEALTHY = TRAIN.replace("LIMIT", "1.0")

WRITES = """
runs = HERE / "runs_of_mine"
if runs.exists():
    shutil.rmtree(runs)
runs.mkdir()
if os.path.exists("net.pt"):
    net.load_state_dict(torch.load("net.pt"))
    raise SystemExit("it found what a run has left")
with open(HERE / "log.csv", "a") as log:
    log.write("begun\\n")
train()
torch.save(net.state_dict(), runs / "net.pt")
torch.save(net.state_dict(), "net.pt")
os.system(f"echo done >> {HERE}/log.csv")
"""


def report_of(folder):
    return json.loads((folder / "report.json").read_text())


def files(folder):
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


@pytest.mark.slow
def test_the_cause_is_proved_with_a_line_for_each_trial_and_nothing_remains(run, cwd, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (cwd / "train.py").write_text(f"{CLIPPED}train()\nsys.exit(3)\n")
    outcome = run("watch --try-fixes --fix-time 10m --format table --out out train.py", expect=3)
    record = report_of(cwd / "out")
    fix, (first, *others) = record["fix"], record["findings"]
    assert (fix["trial"], fix["source"]) == ("no clipping", "train.py:17")
    assert fix["loss_last"] < 0.5 * fix["loss_without"]
    assert first["code"] == "MS741"
    assert first["proved"] == fix
    assert first["message"].startswith(f"proved: {fix['sentence'].removeprefix('proved: ')}")
    assert all(one["follows"] == "MS741" for one in others)
    assert [row["helps"] for row in record["trials"]] == [None, "proved", None, "proved"]
    assert record["tried"] == fix["sentence"]
    trials = [line for line in outcome.out.splitlines() if line.startswith(("rerun", "no clipping"))]
    assert [line.split()[0] for line in trials] == ["rerun", "no", "rerun", "no"]
    assert trials[-1].endswith("proved")
    assert "no clipping" in (cwd / "out" / "report.html").read_text()
    assert not [one for one in tmp_path.iterdir() if one.name.startswith("modelscope")]
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    lines = [Path(f"/proc/{one}/cmdline").read_text() for one in children]
    assert not [line for line in lines if "watching.trials" in line]


def test_a_healthy_training_is_not_tried(run, cwd):
    (cwd / "train.py").write_text(f"{HEALTHY}train(80)\n")
    run("watch --try-fixes --out out train.py")
    record = report_of(cwd / "out")
    assert (record["trials"], record["fix"]) == ([], None)
    assert record["tried"] == "not tried: nothing wrong was found"


@pytest.mark.slow
def test_trials_leave_the_files_as_the_run_has_left_them(run, cwd):
    (cwd / "train.py").write_text(CLIPPED + WRITES)
    (cwd / "net.pt.old").write_text("kept")
    run("watch --out plain train.py")
    alone = {name: one for name, one in files(cwd).items() if not name.startswith("plain")}
    for name in set(alone) - {"train.py", "net.pt.old"}:
        (cwd / name).unlink()
    run("watch --try-fixes --out tried train.py")
    found = {name: one for name, one in files(cwd).items() if not name.startswith(("plain", "tried"))}
    assert found == alone
    assert report_of(cwd / "tried")["fix"]["trial"] == "no clipping"


@pytest.mark.slow
def test_a_write_elsewhere_is_refused_and_the_hint_allows_it(run, cwd, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    write = f"log = pathlib.Path({str(other / 'log')!r})\ntrain(at=lambda i: log.write_text(str(i)))\n"
    (cwd / "train.py").write_text(CLIPPED + write)
    run("watch --try-fixes --out out train.py")
    record = report_of(cwd / "out")
    assert (record["trials"], record["fix"]) == ([], None)
    assert (other / "log").read_text() == "59"
    hint = f"--fix-writes {other}"
    assert hint in record["tried"]
    run(f"watch --try-fixes {hint} --force --out out train.py")
    assert report_of(cwd / "out")["fix"]["trial"] == "no clipping"


@pytest.mark.slow
def test_trials_after_a_run_that_has_ended_or_was_killed(run, cwd):
    (cwd / "train.py").write_text(f"{CLIPPED}train(at=lambda i: i == 50 and os.kill(os.getpid(), 9))\n")
    killed = subprocess.run(
        [sys.executable, "-m", "modelscope_cli", "watch", "--out", "out", "train.py"], check=False
    )
    assert killed.returncode == -signal.SIGKILL
    run("watch --try-fixes --report out")
    record = report_of(cwd / "out")
    assert record["fix"]["trial"] == "no clipping"
    run("watch --report out")
    assert report_of(cwd / "out")["trials"] == record["trials"]


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_known(cwd):
    (cwd / "train.py").write_text(f"{CLIPPED}import time; train(at=lambda i: time.sleep(0.03))\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "modelscope_cli", "watch", "--try-fixes", "--out", "out", "train.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    log = cwd / "out" / "log.jsonl"
    while process.poll() is None and not (log.exists() and '"end"' in log.read_text()):
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    assert process.returncode == 130
    record = report_of(cwd / "out")
    assert record["tried"].startswith("interrupted")
    assert record["findings"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("watch --fix-time 5m train.py", "'--fix-time 300' needs --try-fixes"),
        ("watch --try-fixes --fix-time soon train.py", "'--fix-time soon' is not a time"),
        ("watch --try-fixes --fix-time 0 train.py", "too small"),
        ("watch --fix-writes out train.py", "needs --try-fixes"),
        ("watch --try-fixes", "no script to watch"),
        ("watch --try-fixes --report nowhere", "there is no log.jsonl in 'nowhere'"),
    ],
)
def test_what_makes_no_sense_is_refused(run, cwd, line, words):
    (cwd / "train.py").write_text(HEALTHY)
    assert words in run(line, expect=2).err


def test_a_log_that_does_not_name_its_script(run, cwd):
    (cwd / "out").mkdir()
    begin = {"version": VERSION, "script": "train.py", "argv": [], "rank": 0, "world": 1}
    (cwd / "out" / "log.jsonl").write_text(json.dumps({"begin": begin}) + "\n")
    assert "does not record how its script was started" in run("watch --try-fixes --report out", expect=2).err


STRANGE = {
    "reads stdin": ("input()", "train()"),
    "ends at once": ("", "print('done')"),
    "ends at once with 3": ("sys.exit(3)", "train()"),
    "has no seed": ("torch.seed()", "train()"),
    "catches Exception": ("", "try:\n    train()\nexcept Exception:\n    pass"),
    "catches everything": ("", "try:\n    train()\nexcept BaseException:\n    raise"),
    "is in a thread": ("", "import threading\nt = threading.Thread(target=train); t.start(); t.join()"),
    "reads argv": ("assert sys.argv[1:] == ['--epochs', '3'], sys.argv", "train()"),
    "fails late": ("", "train()\nraise ValueError('no')"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", STRANGE)
def test_a_strange_script_ends_in_a_line_or_an_answer(run, cwd, what):
    before, after = STRANGE[what]
    (cwd / "train.py").write_text(f"{CLIPPED}{before}\n{after}\n")
    plain = subprocess.run(
        [sys.executable, "train.py", "--epochs", "3"],
        stdin=subprocess.DEVNULL,
        check=False,
        capture_output=True,
    )
    alone = files(cwd)
    outcome = subprocess.run(
        [
            sys.executable,
            *["-m", "modelscope_cli", "watch", "--try-fixes", "--out", "out", "train.py", "--epochs", "3"],
        ],
        stdin=subprocess.DEVNULL,
        check=False,
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == plain.returncode
    assert "this is a bug" not in outcome.stderr
    assert {name: one for name, one in files(cwd).items() if not name.startswith("out")} == alone
    if (cwd / "out" / "report.json").exists():
        record = report_of(cwd / "out")
        assert (record["fix"] or {}).get("trial") == "no clipping" or record["tried"].startswith(
            "not tried: "
        )
