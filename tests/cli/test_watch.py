"""`modelscope watch`: the script is left alone, and what is wrong with it is said."""

import json
import signal
import subprocess
import sys

import pytest
import torch
import warm

LOOP = """
import sys, time, pathlib, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
def step(i):
    loss = model(torch.randn(16, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
for i in range(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
    step(i)
"""

# name: (what is added to the loop, exit code, what is written to stdout, to stderr)
ENDINGS = {
    "ends": ("print('done')", 0, "done\n", ""),
    "exits": ("sys.exit(5)", 5, "", ""),
    "exits with words": ("sys.exit('no more')", 1, "", "no more\n"),
    "terminated": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)", 143, "", ""),
}


def report_of(folder):
    return json.loads((folder / "report.json").read_text())


@pytest.mark.parametrize("ending", ENDINGS)
def test_exit_code_and_words_are_the_scripts_own_and_the_report_is_written(run, cwd, ending):
    code_at_end, code, out, err = ENDINGS[ending]
    (cwd / "loop.py").write_text(LOOP + code_at_end)
    outcome = run("watch -o table.tsv loop.py", expect=code)
    assert outcome.out == out
    assert outcome.err.startswith(err)
    report = report_of(cwd / "runs" / "watch-loop")
    assert report["steps"] == 5
    assert report["exit_code"] == code


def test_a_traceback_is_the_one_python_prints(cwd):
    (cwd / "loop.py").write_text(f"{LOOP.rstrip()}\n    if i == 3: model(torch.ones(3, 4)).backward()")
    bare = subprocess.run([sys.executable, "loop.py"], capture_output=True, text=True, check=False)
    watched = warm.run("-m", "modelscope_cli", "watch", "-o", "table.tsv", "loop.py")
    assert bare.returncode == watched.returncode == 1
    assert "Traceback" in bare.stderr
    assert watched.stderr.startswith(bare.stderr)
    assert report_of(cwd / "runs" / "watch-loop")["steps"] == 4


def test_module_arguments_path_and_main(run, cwd):
    (cwd / "package").mkdir()
    (cwd / "package" / "__init__.py").touch()
    (cwd / "package" / "train.py").write_text(
        "import sys, pickle\nfrom . import other\nclass Own: pass\n"
        "assert pickle.loads(pickle.dumps(Own())) and __name__ == '__main__'\n"
        "print(sys.argv[1:], other.__name__)\nsys.argv[:] = ['replaced']\n"
    )
    (cwd / "package" / "other.py").touch()
    outcome = run("watch --out o -o t.tsv -m package.train --every 3 --json")
    assert outcome.out == "['--every', '3', '--json'] package.other\n"
    assert "package.train never trained" in outcome.err


def test_nothing_is_wrong_with_the_healthy_sample_and_its_weights_are_the_same(run, cwd, samples):
    outcome = run("watch --out healthy --fail-on warning {samples}/train.py --save watched.pt")
    assert "verdict: nothing wrong found" in outcome.err
    assert report_of(cwd / "healthy")["findings"] == []
    assert warm.run(samples / "train.py", "--save", "bare.pt").returncode == 0
    bare, watched = torch.load("bare.pt"), torch.load("watched.pt")
    assert all(torch.equal(bare[key], watched[key]) for key in bare)


MEASURED = LOOP.replace(
    "model(torch.randn(16, 4)).square().mean()",
    "(lambda x: nn.functional.mse_loss(model(x), x[:, :2]))(torch.randn(16, 4))",
)
SLOW = LOOP.replace("lr=0.05", "lr=1e-9")
NO_ZERO_GRAD = LOOP.replace("optimizer.zero_grad(); ", "")
# script, steps, options, exit code, the verdict, what is said of it
ANSWERS = [
    (
        LOOP,
        5,
        "",
        0,
        "cannot tell",
        "verdict: cannot tell yet: too short to judge, with 5 of the 20 steps needed",
    ),
    (LOOP, 5, "--fail-on warning", 0, "cannot tell", "cannot tell yet"),
    (LOOP, 5, "--fail-on error --strict", 1, "cannot tell", "cannot tell yet"),
    # A loss of torch with targets is held against what guessing costs, one of the script's own is not.
    (MEASURED, 200, "--fail-on error --strict", 0, "nothing wrong", "verdict: nothing wrong found"),
    (LOOP, 200, "--fail-on error --strict", 0, "learning", "without a metric the quality is unknown"),
    (SLOW, 60, "--fail-on warning", 1, "fault", "warning MS710: 0.weight: "),
    (NO_ZERO_GRAD, 9, "", 0, "fault", "error MS713: "),
    (NO_ZERO_GRAD, 9, "--fail-on error", 1, "fault", "(loop.py:6)"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "steps", "options", "code", "verdict", "said"), ANSWERS)
def test_the_four_answers_and_what_fails_on_them(run, cwd, script, steps, options, code, verdict, said):
    (cwd / "loop.py").write_text(script)
    outcome = run(f"watch --out o {options} loop.py {steps}", expect=code)
    assert said in outcome.err
    report = report_of(cwd / "o")
    assert report["verdict"] == verdict
    assert (report["reason"] is None) == (verdict == "fault")
    assert bool(report["findings"]) == (verdict == "fault")


@pytest.mark.slow
def test_a_run_imports_no_rules_of_check(cwd):
    (cwd / "loop.py").write_text(LOOP)
    code = (
        "import runpy, sys\nsys.argv[1:] = ['watch', '--out', 'o', 'loop.py']\n"
        "try: runpy.run_module('modelscope_cli', run_name='__main__')\nexcept SystemExit: pass\n"
        "rules = {one for one in sys.modules if one.startswith('modelscope_cli.rules.')}\n"
        "sys.exit('modelscope_cli.rules.training' not in rules or 'modelscope_cli.rules.registry' in rules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "verdict: cannot tell yet" in done.stderr


def test_the_way_of_the_scripts_own_to_show_errors_and_its_streams(run, cwd):
    """As rich.traceback, torch.distributed and every tee to a file have it."""
    (cwd / "loop.py").write_text(
        "import io, sys, traceback\nsys.stdout = io.StringIO()\n"
        "sys.excepthook = lambda *error: sys.stderr.write('mine: ' + ''.join(traceback.format_tb(error[2])))\n"
        "1 / 0"
    )
    before = sys.excepthook, sys.stdout
    outcome = run("watch --out o --json loop.py", expect=1)
    assert outcome.err.startswith('mine:   File "')
    assert "modelscope_cli" not in outcome.err
    assert outcome.json["exit_code"] == 1
    assert before == (sys.excepthook, sys.stdout)


def test_killed_at_step_150_leaves_at_least_140(run, cwd):
    kill = "    if i == 150: import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n"
    (cwd / "loop.py").write_text(LOOP.rstrip() + "\n" + kill)
    ours = ["-m", "modelscope_cli", "watch", "--every", "1", "--out", "killed", "loop.py", "1000"]
    assert warm.run(*ours).returncode == -signal.SIGKILL
    outcome = run("watch --report killed")
    report = report_of(cwd / "killed")
    assert report["steps"] >= 140
    assert max(report["layers"][0]["series"]["step"]) >= 140
    assert report["exit_code"] is None
    assert "killed" in outcome.err


def test_ctrl_c_from_outside(cwd):
    (cwd / "loop.py").write_text(
        LOOP + "pathlib.Path('reached').touch()\nfor _ in range(3000): time.sleep(0.01)"
    )
    with warm.start("-m", "modelscope_cli", "watch", "--out", "o", "loop.py") as process:
        process.wait_for(cwd / "reached")
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "modelscope_cli" not in err
    assert report_of(cwd / "o")["steps"] == 5


WITHOUT_OPTIMIZER = LOOP.replace(
    "optimizer.zero_grad(); loss.backward(); optimizer.step()", "loss.backward()"
)
ALL_SKIPPED = LOOP.replace(
    "loss.backward(); optimizer.step()",
    "scaler = torch.amp.GradScaler('cpu'); scaler.scale(loss * float('nan')).backward(); scaler.step(optimizer)",
)
OWN_TENSORS = """
import torch
w = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
for _ in range(3):
    optimizer.zero_grad(); w.square().sum().backward(); optimizer.step()
"""
STRANGE = {
    "skips every step": (ALL_SKIPPED, "no step was taken: the gradients were never finite"),
    "has no module": (OWN_TENSORS, "no model that SGD trains was seen running"),
    "never trains": ("print('hello')", "never trained: no optimizer stepped and nothing ran backward"),
    "without an optimizer": (WITHOUT_OPTIMIZER, "5 backward passes, but SGD never stepped"),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_says_what_is_missing(run, cwd, kind):
    script, words = STRANGE[kind]
    (cwd / "odd.py").write_text(script)
    assert words in run("watch --out o odd.py").err


WORKERS = """
import torch, multiprocessing
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
class Noisy(torch.utils.data.Dataset):
    net = nn.Linear(4, 4)
    def __len__(self): return 8
    def __getitem__(self, i): return self.net(torch.ones(4)).detach()
def double(x): return 2 * x
if __name__ == "__main__":
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x in DataLoader(Noisy(), 4, num_workers=2, multiprocessing_context="fork"):
        model(x).square().mean().backward(); optimizer.step(); optimizer.zero_grad()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [1, 2]))
"""


def test_workers_that_are_forked_or_spawned(cwd):
    (cwd / "loop.py").write_text(WORKERS)
    done = warm.run("-m", "modelscope_cli", "watch", "--out", "o", "-o", "t.tsv", "loop.py")
    assert (done.returncode, done.stdout) == (0, "[2, 4]\n"), done.stderr
    report = report_of(cwd / "o")
    assert report["steps"] == 2
    assert [layer["model"] for layer in report["layers"]] == ["Linear"]


# command line, exit code, what the error quotes, a word of the hint
REFUSED = [
    ("watch", 2, "no script", "demo/train.py"),
    ("watch lop.py", 2, "no script 'lop.py'", "modelscope watch loop.py"),
    ("watch -m no.such", 2, "'no.such'", "python -m no.such"),
    ("watch {star}", 4, "is not Python", "python"),
    ("watch wrong.py", 4, "line 1", "python wrong.py"),
    ("watch --layer cnov loop.py", 2, "'cnov'", "types: "),
    ("watch --out full loop.py", 2, "'full' is not empty", "--force"),
    ("watch --report empty", 2, "'empty'", "modelscope watch"),
    ("watch --report full loop.py", 2, "'loop.py'", "modelscope watch --report full"),
    ("watch --strict loop.py", 2, "needs --fail-on", "--fail-on error"),
]


@pytest.mark.parametrize(("line", "code", "quoted", "hint"), REFUSED)
def test_refusals(refused, cwd, line, code, quoted, hint):
    (cwd / "loop.py").write_text(LOOP)
    (cwd / "wrong.py").write_text("def (")
    (cwd / "full").mkdir()
    (cwd / "full" / "mine").touch()
    (cwd / "empty").mkdir()
    message, said = refused(line, code)
    assert quoted in message
    assert hint in said


WITH_ARGUMENTS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--epochs")
parser.parse_args()
"""


@pytest.mark.parametrize(("typed", "meant"), [
    ("train.py --every 5 --epochs 3", "watch --every 5 train.py --epochs 3"),
    ("--steps 3 train.py --fail-on=error x", "watch --steps 3 --fail-on=error train.py x"),
    ("train.py --strict --epochs 3", "watch --strict train.py --epochs 3"),
])  # fmt: skip
def test_options_behind_the_script_get_a_command_that_has_them_before(run, cwd, typed, meant):
    (cwd / "train.py").write_text(WITH_ARGUMENTS)
    outcome = run(f"watch {typed}", expect=2)
    assert outcome.err.endswith(f"hint: modelscope {meant}\n")
    assert "unrecognized arguments" in outcome.err
    assert outcome.out == ""


@pytest.mark.parametrize("out", ["", "--out o"])
@pytest.mark.parametrize(
    ("script", "code"), [(WITH_ARGUMENTS, 2), ("raise SystemExit('no')", 1), ("raise SystemExit(7)", 7)]
)
def test_a_script_that_fails_before_it_trains_leaves_neither_table_nor_folder(run, cwd, out, script, code):
    (cwd / "train.py").write_text(script)
    outcome = run(f"watch {out} train.py --unknown", expect=code)
    assert outcome.out == ""
    assert f"ended with exit code {code} before it trained anything" in outcome.err
    assert "hint" not in outcome.err
    assert [path.name for path in cwd.iterdir()] == ["train.py"]


SPOILT = LOOP.replace("square().mean()", "square().mean() * (float('nan') if i > 9 else 1)")


def test_a_log_of_stdout_has_the_verdict_below_the_rows(run, cwd):
    (cwd / "loop.py").write_text(SPOILT)
    told = run("watch loop.py 30")
    verdict = told.out[told.out.index("error MS701") :]
    assert verdict in told.err
    assert "at step 10 on" in verdict or "from step 10 on" in verdict
    assert "try: " in verdict


@pytest.mark.parametrize("format", ["json", "csv", "tsv", "github"])
def test_a_format_that_was_asked_for_is_nothing_else(run, cwd, format):
    (cwd / "loop.py").write_text(SPOILT + "\nprint('said by the script')\n")
    told = run(f"watch --format {format} loop.py 30")
    assert "said by the script" in told.err
    assert "said by the script" not in told.out
    assert "try: look" not in told.out or format == "github"
    if format == "json":
        assert json.loads(told.out)["findings"][0]["code"] == "MS701"
    elif format in ("csv", "tsv"):
        assert {line.count("\t" if format == "tsv" else ",") for line in told.out.splitlines()} == {15}


@pytest.mark.slow
def test_a_log_of_both_streams_has_the_verdict_once(cwd):
    (cwd / "loop.py").write_text(SPOILT)
    line = [sys.executable, "-m", "modelscope_cli", "watch", "loop.py", "30"]
    with (cwd / "both.log").open("w") as log:
        subprocess.run(line, stdout=log, stderr=log, cwd=cwd, check=True)
    assert (cwd / "both.log").read_text().count("error MS701") == 1


def test_options_behind_the_script_are_named_before_it_runs(run, cwd):
    (cwd / "loop.py").write_text(LOOP)
    note = "passed to loop.py: --columns name --top=3 (options of modelscope come before the script)\n"
    assert run("watch loop.py 3 --columns name --top=3 --own").err.startswith(note)
    for line in (
        "watch -- loop.py 3 --columns name",
        "watch loop.py 3 -- --columns name",
        "watch loop.py 3 --own",
    ):
        assert "passed to" not in run(line).err
    (cwd / "loop.py").write_text(LOOP + "# parser.add_argument('--columns')")
    assert "passed to" not in run("watch loop.py 3 --columns name").err


DYING = """
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 36, 4)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(200):
    if i == int(sys.argv[1]):
        with torch.no_grad():
            model[int(sys.argv[2])].weight.zero_()
            model[0].bias.fill_(-1.0)
    loss = nn.functional.cross_entropy(model(torch.randn(8, 3, 8, 8)), torch.randint(4, (8,)))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


@pytest.mark.parametrize(("line", "code"), [("22 0", 1), ("26 0", 1), ("27 0", 0), ("22 2", 0), ("99 0", 0)])
def test_layers_that_are_all_zero_count_in_a_short_run(run, cwd, line, code):
    """From the fourth step before its end on, and neither later nor where weights of 0 have a gradient."""
    (cwd / "dying.py").write_text(DYING)
    told = run(f"watch --steps 30 --fail-on error dying.py {line}", expect=code)
    assert ("error MS705" in told.err) == bool(code)
