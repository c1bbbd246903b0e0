"""What commands print, kept as files that a review can read. `--update-golden` rewrites them."""

import csv
import json
import re
import shlex
from pathlib import Path

import pytest

from modelscope_cli.shell.app import run

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STATS = (
    "stats -m samples/tiny_resnet.py:TinyResNet -c samples/tiny_resnet.safetensors --input-shape 2,3,64,64 -q"
)
GOLDEN = {
    "summary.txt": "summary samples/tiny_resnet.py:TinyResNet --format table",
    "summary.tsv": "summary samples/tiny_resnet.py:TinyResNet --format tsv",
    "summary.md": "summary samples/tiny_resnet.py:TinyResNet --format markdown",
    "summary.json": "summary samples/tiny_resnet.py:TinyResNet --json",
    "summary_resnet34.txt": "summary resnet34 --depth 2 --format table",
    "stats.txt": f"{STATS} --format table --columns name,type,shape,mean,std,min,max,zero,dead",
    "stats.tsv": f"{STATS} --format tsv --columns name,mean,std,mad,min,max,rms,zero,near_zero,dead",
}


def lasting(text: str) -> str:
    """Leave out what another day changes: versions and times."""
    text = re.sub(r'("(version|python|torch|torchvision)"): "[^"]*"', r'\1: "..."', text)
    return re.sub(r'"elapsed_ms": [\d.]+', '"elapsed_ms": 0', text)


def assert_same_but_for_last_digits(text: str, golden: str) -> None:
    """Another processor adds up in another order: numbers with a point may differ in the last digits."""
    words, known = (re.split(r"(?<![\w.])(-?\d+\.\d+)(?![\w.])", whole) for whole in (text, golden))
    squeezed = (["".join(part.split()) for part in parts[::2]] for parts in (words, known))
    assert next(squeezed) == next(squeezed)
    assert list(map(float, words[1::2])) == pytest.approx(list(map(float, known[1::2])), rel=1e-3, abs=2e-4)


@pytest.fixture
def printed(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("MSCOPE_OFFLINE", "1")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.chdir(ROOT)

    def run_it(line):
        assert run(shlex.split(line)) == 0
        return capsys.readouterr().out

    return run_it


@pytest.mark.parametrize("name", GOLDEN)
def test_output_is_as_it_was(printed, name, request):
    text = lasting(printed(GOLDEN[name]))
    if request.config.getoption("--update-golden"):
        (HERE / name).write_text(text, encoding="utf-8")
    golden = (HERE / name).read_text(encoding="utf-8")
    if name.startswith("stats"):
        assert_same_but_for_last_digits(text, golden)
    else:
        assert text == golden


def test_another_number_or_word_is_noticed():
    assert_same_but_for_last_digits("a  1.0001 b", "a 1.0000 b")
    for text in ["a 1.01 b", "c 1.0000 b", "a 1.0000"]:
        with pytest.raises(AssertionError):
            assert_same_but_for_last_digits(text, "a 1.0000 b")


def test_the_columns_add_up_to_the_printed_totals():
    with (HERE / "summary.tsv").open(encoding="utf-8", newline="") as file:
        root, *rows = csv.DictReader(file, delimiter="\t")
    innermost = [row for row in rows if row["type"] != "Block"]
    counted_once = [row for row in innermost if "#" not in row["name"]]
    totals = json.loads((HERE / "summary.json").read_text(encoding="utf-8"))["totals"]
    for rows_of, key, total in [
        (counted_once, "params", "params"),
        (counted_once, "trainable", "trainable_params"),
        (innermost, "macs", "macs"),
        (innermost, "flops", "flops"),
        (innermost, "memory", "activation_bytes"),
    ]:
        assert sum(int(row[key]) for row in rows_of) == totals[total]
        assert int(root[key]) == totals[total] or key == "memory"
    table = (HERE / "summary.txt").read_text(encoding="utf-8")
    assert f"parameters     {totals['params']:,} ({totals['trainable_params']:,} trainable)" in table
