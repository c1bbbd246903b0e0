"""Names, labels, metadata and paths of other people reach every stream and every file of a result harmless."""

import itertools
import json
import re

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

HOSTILE = (
    "\x1b[31mred\x1b[0m\x07", "\n::error::pwned", "::warning::pwned", "##[error]pwned",
    "\x9b31m\x85\u202epwned\u2066", "=cmd|'/C calc'!A1", "<script>alert(1)</script>", "a|b`c*d_[e](f)",
    "$\\frac{1}$ $x$", "\U0001f600 漢",
)  # fmt: skip
NET = """
from collections import OrderedDict
from torch import nn

def net():
    parts = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    parts += [nn.ReLU() for _ in range({n} - 6)] + [nn.Linear(4, {n})]
    names = {names}
    net = nn.Sequential(*parts)
    net._modules = OrderedDict(zip(names, parts))
    return net
"""
# In a terminal, in the log of a CI, in a page: no control, no bidi override, no half of a pair.
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
COMMANDS = {
    "summary": "summary {net} --input-shape 2,3,16,16",
    "stats": "stats '{picture}' -m {net} -w none --size 16",
    "featuremaps": "featuremaps '{picture}' -m {net} -w none --size 16 --out out",
    "grads": "grads '{picture}' -m {net} -w none --size 16 --out out",
    "predict": "predict '{picture}' -m {net} -w none --size 16 --labels '{labels}'",
    "predict metadata": "predict '{picture}' -m {net} -c '{weights}' --size 16",
    "ablate": "ablate '{picture}' -m {net} -c '{weights}' --size 16 --out out",
    "train": "train {net} '{data}' --size 16 --steps 2 --batch 4 --every 1 --out out",
    "lrfind": "lrfind {net} '{data}' --size 16 --steps 4 --batch 4 --out out",
    "check": "check {net} '{picture}' -c '{weights}' --size 16 --set MS202=0 --fail-on error",
    "diff": "diff '{weights}' '{other}'",
    "diff run": "diff {net} {net} '{picture}' -w none --b-seed 1 --size 16",
    "weights": "weights '{weights}' --stats",
    "watch": "watch --out out '{script}'",
}


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """Everything that can have a name, with all of the hostile ones."""
    folder = tmp_path_factory.mktemp("foreign") / "\x1b[31m\n##[error]x"
    folder.mkdir()
    # What stands between dots are the names of layers; parameters have no slash to worry about.
    names = [name.replace(".", "") for name in HOSTILE]
    plain_folder = folder.parent
    (plain_folder / "net.py").write_text(NET.replace("{n}", str(len(names))).replace("{names}", ascii(names)))
    torch.manual_seed(0)
    space = {}
    exec((plain_folder / "net.py").read_text(), space)
    state = space["net"]().state_dict()
    metadata = {"categories": json.dumps(HOSTILE), HOSTILE[0]: HOSTILE[1]}
    save_file(state, folder / "w.safetensors", metadata)
    save_file({name: tensor + 1 for name, tensor in state.items()}, folder / "o.safetensors", metadata)
    assert load_file(folder / "w.safetensors").keys() == state.keys()
    (folder / "labels.json").write_text(json.dumps(HOSTILE))
    picture = folder / "\x1b]0;x\x07\n::error::y.png"
    Image.effect_noise((16, 16), 50).convert("RGB").save(picture)
    for name in HOSTILE:
        classes = folder / "data" / name.replace("/", "")
        classes.mkdir(parents=True)
        for number in range(3):
            Image.effect_noise((16, 16), 50).convert("RGB").save(classes / f"{number}.png")
    (folder / "script.py").write_text(
        "import torch, sys; sys.path.insert(0, sys.path[0] + '/..'); from net import net\n"
        "n = net(); o = torch.optim.SGD(n.parameters(), 0.1)\n"
        "for _ in range(3): o.zero_grad(); n(torch.rand(2, 3, 16, 16)).sum().backward(); o.step()\n"
    )
    return {
        **{"net": f"{plain_folder}/net.py:net", "picture": picture, "labels": folder / "labels.json"},
        **{"weights": folder / "w.safetensors", "other": folder / "o.safetensors", "data": folder / "data"},
        "script": folder / "script.py",
    }


def assert_harmless(text, where):
    found = STEERING.search(text)
    assert not found, (where, text[max(found.start() - 80, 0) : found.start() + 20])
    assert "##[" not in text, where
    for line in text.splitlines():
        assert not line.lstrip().startswith("::"), (where, line)


# What a command draws and writes beside its table is the same in every format, and a format makes the same of every
# table: each command is drawn with a table, and has one of the other formats in turn.
@pytest.mark.parametrize(("name", "format"), [
    *(pytest.param(name, "table", marks=pytest.mark.drawn) for name in COMMANDS),
    *zip(COMMANDS, itertools.cycle(("tsv", "csv", "json", "markdown")), strict=False),
])  # fmt: skip
def test_every_stream_and_every_file(run, cwd, foreign, name, format):
    outcome = run(
        f"{COMMANDS[name].partition(' ')[0]} --format {format} {COMMANDS[name].partition(' ')[2]}",
        None,
        **foreign,
    )
    assert outcome.code in (0, 1), outcome.err
    assert_harmless(outcome.out, "stdout")
    assert_harmless(outcome.err, "stderr")
    assert "Glyph" not in outcome.err
    texts = {path.name: path.read_bytes().decode() for path in cwd.rglob("*") if path.suffix in TEXTS}
    texts |= {f"stdout.{format}": outcome.out}
    for file, text in texts.items():
        assert_harmless(text, file)
        if file.endswith("csv"):
            assert not re.search(r"(^|,|\n)\"?[=+@]", text), file
        if file.endswith(("md", "markdown")):
            assert "<script" not in text
        if file.endswith(".json"):
            json.loads(text)


TEXTS = (".json", ".jsonl", ".csv", ".tsv", ".md", ".svg", ".txt", ".xml")


@pytest.mark.parametrize(("line", "code"), [
    ("weights '{hostile}'", 4),
    ("summary '{hostile}'", 2),
    ("predict '{hostile}' {tiny}", 4),
    ("stats {star} {tiny} -l '{hostile}'", 2),
    ("rules --format '{hostile}'", 2),
    ("rules --columns '{hostile}'", 2),
    ("rules -o '{hostile}/x.csv'", 4),
    ("rules --{hostile}", 2),
    ("check {TINY} --select '{hostile}'", 2),
    ("watch '{hostile}'", 2),
    ("train '{hostile}' -m {TINY}", 4),
    ("stats {star} {tiny} --hook '{hostile}'", 2),
])  # fmt: skip
@pytest.mark.parametrize("hostile", [HOSTILE[0], HOSTILE[1], HOSTILE[4], "\udcff\udcfe"])
def test_errors_are_one_line_and_harmless(run, line, code, hostile):
    outcome = run(line, expect=None, hostile=hostile)
    assert outcome.code in (2, 4), outcome.err
    assert_harmless(outcome.err, "stderr")
    assert outcome.err.count("\nhint: ") == 1
