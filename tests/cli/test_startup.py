"""What must be quick imports nothing heavy, and what a shell completes is right."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[2] / "samples"
HEAVY = {"torch", "torchvision", "PIL", "numpy", "matplotlib", "safetensors"}

# Runs a command line as the console script does, and afterwards lists what has been imported.
DRIVER = """
import sys
from modelscope_cli.__main__ import main
sys.argv[0] = "modelscope"
try:
    main()
finally:
    print("imported:", *{name.partition(".")[0] for name in sys.modules}, flush=True)
"""


def python(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def run_and_list_imports(*argv, **environment):
    done = python("-c", DRIVER, *argv, **environment)
    assert "Traceback" not in done.stderr
    out, _, imported = done.stdout.rpartition("imported:")
    return done.returncode, out, done.stderr, set(imported.split())


@pytest.mark.parametrize(("argv", "code", "said"), [
    ("--help", 0, "featuremaps"),
    ("stats --help", 0, "--plot"),
    ("summary resnet3", 2, "'resnet3'"),
    ("stats --columns meen", 2, "'meen'"),
    ("grads --clip -1", 2, "'--clip -1'"),
    ("models nothing_like_it", 2, "'nothing_like_it'"),
    ("nonsense", 2, "'nonsense'"),
])  # fmt: skip
def test_nothing_heavy_is_imported(argv, code, said):
    returned, out, err, imported = run_and_list_imports(*argv.split())
    assert returned == code
    assert said in (err if code else out)
    assert "modelscope_cli" in imported
    assert not HEAVY & imported


def test_texts_files_and_flags_are_read_without_pydantic(tmp_path):
    words = ["weights", str(tmp_path / "nothing.pt"), "--key", "a", "--stats", "--sort", "mean"]
    assert "pydantic" not in run_and_list_imports(*words)[-1]


def test_the_check_above_can_fail():
    *_, imported = run_and_list_imports("models", "resnet18")
    assert {"torch", "torchvision"} <= imported


def complete(line, shell="bash"):
    """Ask for the completions of a line that ends where the cursor is."""
    words = line.split(" ")
    asked = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    code, out, err, imported = run_and_list_imports(_MODELSCOPE_COMPLETE=f"complete_{shell}", **asked)
    assert code == 0
    assert err == ""
    assert not HEAVY & imported
    return out


@pytest.mark.parametrize(
    ("line", "shell"),
    [("summary vit_l_", "bash"), ("grads vit_l_", "zsh"), ("stats photo.jpg --model vit_l_", "fish")],
)
def test_shells_complete_model_names(line, shell):
    out = complete(f"modelscope {line}", shell)
    assert "vit_l_16" in out
    assert "vit_l_32" in out
    assert "vit_b_16" not in out


@pytest.mark.parametrize(("line", "offered"), [
    ("modelscope stats photo", []),  # the shell completes files then
    ("modelscope featuremaps --dev", ["--device"]),
])  # fmt: skip
def test_shells_complete_commands_and_options(line, offered):
    assert complete(line).split() == offered


def test_python_m_is_the_same_program():
    done = python("-m", "modelscope_cli", "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("modelscope ")
