"""Random command lines: every command, its options found in its signature, values that fit and values that cannot.

    python tests/cli/fuzz.py [--seed S] [--first F] [--lines N] [--all-kinds]

runs the lines F to N of those that a seed draws, in this process. What ends in a bug of ours (exit code 3) or an
uncaught exception is printed as soon as it is found, and every 50 lines how many ended with which code. Half of
the kinds of values are only used with --all-kinds: they tell whether what was mended was mended for all.
"""

import argparse
import atexit
import collections
import contextlib
import io
import os
import random
import shlex
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from modelscope_cli.shell.app import run
from modelscope_cli.shell.overview import COMMANDS
from modelscope_cli.shell.parameters import Parameter, parameters_of

# Copies: a line that is drawn may well say --force and --output.
SAMPLES = Path(tempfile.mkdtemp(prefix="modelscope-fuzz-"))
atexit.register(shutil.rmtree, SAMPLES, ignore_errors=True)
for _name in ("tiny_resnet.py", "sick.safetensors", "tiny_resnet.safetensors", "star.png"):
    shutil.copy(Path(__file__).resolve().parents[2] / "samples" / _name, SAMPLES)
TINY = f"{SAMPLES}/tiny_resnet.py:TinyResNet"
SICK, HEALTHY, STAR = (
    f"{SAMPLES}/{name}" for name in ("sick.safetensors", "tiny_resnet.safetensors", "star.png")
)

# What makes a line likely to run, and quick; an option that is drawn as well comes later and wins.
_SMALL = "-m {TINY} -w none --size 16"
_SMALL_SET = "-m {TINY} --pictures 20 --size 8 --steps 3 --batch 4"
USUAL = {
    **{"demo": "", "help": "", "schema": "stats", "report": "results"},
    "watch": "script.py",
    "summary": "{TINY}",
    **dict.fromkeys(("stats", "featuremaps", "grads", "predict", "ablate"), "{STAR} " + _SMALL),
    "explain": "{STAR} " + _SMALL + " --method hirescam --receipt none",
    **dict.fromkeys(("train", "lrfind"), _SMALL_SET),
    "check": "{TINY} --weights none --input-shape 2,3,16,16",
    "diff": "{SICK} {HEALTHY}",
    "weights": "{SICK}",
    "rules": "",
    "models": "resnet18",
}
# By what an option takes; of each pair the second half is held back.
INTEGERS = (
    ["0", "1", "2", "3", "7", "-1", str(2**31), str(2**63 - 1)],
    ["4", "16", str(2**32), str(2**64), "-0", "1_000", "0x10", "9" * 5000],
)
FLOATS = (
    ["0", "0.5", "1", "-1", "nan", "1e308", "1e-320"],
    ["0.1", "2", "1e-30", "1e9", "inf", "-inf", "1e-45", "-0.0"],
)
WORDS = (
    ["", "0", "conv", "a,b", "-1", "::error::", "\x1b[31m", "1,3,9,9", "x" * 5000, "fc", "8/255", "layer1.*"],
    [
        "@", "=", "re:[", "bn@-1", "1e308", "\udcff", "ü", "a=b,c", "type:*", "%s%n", "../..", "1,,2", "\n",
        "relu@1..4",
    ],
)  # fmt: skip
PATHS = (
    ["lost.pt", "{SICK}", "{STAR}", ".", "new.csv", "new.json", "new.png", "pipe", "y" * 300],
    [
        "{HEALTHY}", "/dev/null", "/dev/full", "a/b/c", "text.txt", "new.safetensors", "empty", "z/" * 2500,
        "link",
    ],
)  # fmt: skip
HOOKS = (
    [
        "zero@conv", "scale=2@relu", "print@fc", "scale=nan@head", "zero[99]@conv", "add=1e308@conv",
        "save=t.safetensors@head",
    ],
    [
        "noise=1e308@conv", "clamp=1,0@relu", "keep[0]@bn", "grad:scale=2@conv", "pre:zero(3)@head",
        "call=a.py:b@conv", "mean",
    ],
)  # fmt: skip
OWN = {
    "hook": HOOKS,
    "input_shape": (["1,3,16,16", "2,3,8,8", "0,3,8,8", "1"], ["int64:1,9", f"1,{2**62}", "x"]),
    "size": (["16", "8,12", "0", str(2**62)], ["1", "16,", "4096,1", "-8"]),
    "mean": (["0.5", "1e308", "nan"], ["0,0,0", "1e-320", "0.5,0.5"]),
    "std": (["0.5", "1e308", "1e-320"], ["0", "1,1,1", "nan"]),
    "format": (["auto", "table", "tsv", "csv", "json", "markdown"], ["github", "junit", "xml", ""]),
    "device": (["cpu", "auto", "cuda"], ["cuda:9", "meta", str(2**63), "mps"]),
    "dtype": (["float32", "float16", "bfloat16"], ["float64", "int8", ""]),
    "weights": (["none", "auto"], ["DEFAULT", "IMAGENET1K_V1", "x"]),
    "set_": (["MS202=0.5", "MS101=1e308"], ["MS202=nan", f"MS101={'9' * 5000}"]),
    "max_params": (["25M", "0", "1e308"], ["-1", "9" * 5000, "1e999"]),
}  # fmt: skip


def draw_line(draw: random.Random, with_all: bool) -> list[str]:
    """Return one command line."""
    command = draw.choice(list(COMMANDS))
    usual = USUAL[command] if draw.random() < 0.98 else ""
    line = [command]
    hints = list(parameters_of(command).values())
    typed = [
        *shlex.split(_filled(usual)),
        *(
            word
            for hint in draw.sample(hints, draw.randint(0, min(4, len(hints))))
            for word in _words(draw, hint, with_all)
        ),
    ]
    return line + (typed if command != "watch" else typed[1:] + typed[:1])


def _words(draw: random.Random, one: Parameter, with_all: bool) -> list[str]:
    if one.kind is bool:
        return [draw.choice(one.names)]
    pools: Any = OWN.get(one.name)
    if one.choices:
        pools = ([*one.choices], ["nonsense"])
    elif pools is None:
        kinds: dict[type, Any] = {int: INTEGERS, float: FLOATS, Path: PATHS}
        pools = kinds.get(one.kind, WORDS)
    value = _filled(draw.choice(pools[0] + pools[1] if with_all else pools[0]))
    return [value] if one.is_argument else [f"{one.names[0]}={value}"]


def _filled(text: str) -> str:
    for word, path in (("TINY", TINY), ("SICK", SICK), ("HEALTHY", HEALTHY), ("STAR", STAR)):
        text = text.replace(f"{{{word}}}", path)
    return text


@contextlib.contextmanager
def playground() -> Iterator[Path]:
    """A folder with one of each thing that a path can be, to run in."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        here = Path(name, "a", "b")  # `../..` is not the whole disk
        here.mkdir(parents=True)
        os.chdir(here)
        os.mkfifo("pipe")
        Path("empty").touch()
        Path("text.txt").write_text("once upon a time\n")
        Path("script.py").write_text("print('no model')\n")
        Path("link").symlink_to("nowhere")
        try:
            yield here
        finally:
            os.chdir(before)


def run_line(line: list[str]) -> tuple[int, str]:
    """Run a line; return its exit code, and what it wrote to stderr; 3 where an exception got past us."""
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        try:
            return run(line), err.getvalue()
        except BaseException:
            return 3, traceback.format_exc()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--all-kinds", action="store_true")
    asked = parser.parse_args()
    os.environ["MSCOPE_OFFLINE"] = "1"
    draw = random.Random(asked.seed)
    codes: collections.Counter[int] = collections.Counter()
    with playground() as folder:
        os.environ["TORCH_HOME"] = str(folder / "torch")
        for number in range(asked.lines):
            line = draw_line(draw, asked.all_kinds)
            if number < asked.first:
                continue
            code, err = run_line(line)
            codes[code] += 1
            if code == 3 or ("Traceback" in err and "--debug" not in line):
                tell(f"{number}: {shlex.join(line)[:600]}\n    {err[-600:]}")
            if number % 50 == 49 or number == asked.lines - 1:
                tell(f"lines {asked.first} to {number}, exit codes {dict(sorted(codes.items()))}")


def tell(text: str) -> None:
    """Print at once: a run that is killed has told what it found."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
