"""One table: what is typed wrong -> exit code, what the error quotes, what the hint says to run."""

import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from modelscope_cli.cli import app
from modelscope_cli.cli.app import run as run_argv

ALL, LOOK = "summary|stats|featuremaps", "stats|featuremaps"

# (commands, arguments, exit code, part of the error, part of the hint). `<X>` is the model X: an argument of
# `summary`, the option --model elsewhere.
TABLE = [
    # names that mean nothing
    (ALL, "<resnet3>", 2, "'resnet3': did you mean resnet34", "modelscope models resnet"),
    (ALL, "<nothing_like_it>", 2, "'nothing_like_it'", "modelscope models"),
    (LOOK, "<resnet18> -w IMAGENET1K_V9", 2, "'IMAGENET1K_V9', only IMAGENET1K_V1", "--weights IMAGENET1K_V1"),
    (LOOK, "<tiny> -w DEFAULT", 2, "'DEFAULT'", "--checkpoint FILE"),
    (LOOK, "<tiny> -w none -d cudda", 2, "'cudda' is not a device: did you mean cuda", "--device auto"),
    (LOOK, "<tiny> -w none -d cuda:99", 4, "'cuda:99'", "--device cpu"),
    (ALL, "<tiny> --dtype float33", 2, "'float33'", "--dtype float32"),
    (ALL, "<tiny> --format jsn", 2, "'jsn': did you mean json", "--format auto|table"),
    (ALL, "<tiny> --json --format csv", 2, "'--format csv'", "leave out --json"),
    (ALL, "<tiny> -o result.foo", 2, "'--output result.foo'", "--output result.foo --format"),
    (ALL, "<tiny> --no-such-option", 2, "--no-such-option", " --help"),
    (LOOK, "<tiny> -w none --columns meen", 2, "'meen'", "--columns name,"),
    ("summary", "<tiny> --columns nme,macs", 2, "'nme' in --columns 'nme,macs'", "--columns name,"),
    ("models", "--columns parms", 2, "'parms' in --columns 'parms': did you mean params", "--columns name,"),
    ("models", "--format jsn", 2, "'jsn': did you mean json", "--format auto|table"),
    ("models", "resnett", 2, "'resnett': did you mean resnet", "modelscope models"),
    ("featuremaps", "<tiny> --cmap virids", 2, "'virids': did you mean viridis", "--cmap viridis"),
    ("stats", "<tiny> --plot all.foo", 2, "'--plot all.foo'", "--plot all.png"),
    ("nonsense", "", 2, "'nonsense'", "modelscope --help"),
    ("summary", "", 2, "'MODEL'", "modelscope summary --help"),
    # numbers out of range, options that contradict each other
    (ALL, "<tiny> --num-classes 0", 2, "'0'", "--num-classes 10"),
    (ALL, "<tiny> --seed -1", 2, "'--seed'", " --help"),
    (ALL, "<tiny> --model-arg width", 2, "'width'", "--model-arg "),
    (ALL, "<tiny> --input-shape 1,a", 2, "'a' in '--input-shape 1,a'", "--input-shape 1,3,224,224"),
    ("summary|stats", "<tiny> --batch 0", 2, "'--batch 0'", "--batch 8"),
    ("summary", "<tiny> --depth -1", 2, "'--depth'", " --help"),
    ("stats", "<tiny> --near-zero -1", 2, "'--near-zero'", " --help"),
    ("stats", "<tiny> --correlation", 2, "--correlation", "--layer conv"),
    ("stats", "<tiny> --out somewhere", 2, "'somewhere'", "--plot FILE"),
    (LOOK, "{dot} <tiny> -w none --size 0", 2, "'0' in '--size 0'", "--size 224"),
    (LOOK, "{dot} <tiny> -w none --mean 1,2", 2, "'--mean 1,2'", "--mean 0.5"),
    (LOOK, "{dot} <tiny> -w none --input-shape 1,3,9,9", 2, "'{dot}'", "leave out --input-shape"),
    (LOOK, "<tiny> -w none --mean 0.5", 2, "'--mean 0.5'", "leave out --mean"),
    (LOOK, "<tiny> -w none --size 64 --input-shape 1,3,9,9", 2, "'--size 64'", "leave out --size"),
    ("featuremaps", "{dot} {dot} <tiny>", 2, "one picture at a time, not 2", "modelscope featuremaps {dot}"),
    ("featuremaps", "<tiny> -w none --overlay", 2, "--overlay", "leave out --overlay"),
    # two sides
    ("diff", "", 2, "'A'", "modelscope diff --help"),
    ("diff", "resnet18", 2, "nothing to compare 'resnet18' with", "--b-dtype bfloat16"),
    ("diff", "resnet18 resnt34", 2, "'resnt34': did you mean resnet34", "modelscope models resnet"),
    ("diff", "resnet18 --b-dtype float33", 2, "'float33'", "--dtype float32"),
    ("diff", "resnet18 resnet18 --b-weights NONE_V1", 2, "'NONE_V1', only", "--weights IMAGENET1K_V1"),
    ("diff", "resnet18 vit_b_16 -w none", 4, "no tensor in common", "modelscope diff"),
    ("diff", "alexnet vit_b_16 -w none --input-shape 1,3,64,64", 4, "have no layer in common", "vit_b_16"),
    ("diff", "{a} {b} {dot}", 2, "checkpoint '{a}' holds weights", "--model NAME"),
    ("diff", "{a} {b} --b-dtype bfloat16", 2, "'--b-dtype bfloat16'", "--model NAME"),
    ("diff", "{a} {b} --dtype bfloat16", 2, "'--dtype bfloat16'", "--model NAME"),
    ("diff", "{a} {b} -l conv", 2, "'--layer conv' is for a run", "--input-shape 1,3,224,224"),
    ("diff", "{a} {b} --b-mode train", 2, "'--b-mode train' is for a run", "--input-shape"),
    ("diff", "{a} {b} --no-normalize", 2, "'--no-normalize' is for a run", "--input-shape"),
    ("diff", "{a} {b} --tolerance -1", 2, "'--tolerance -1'", "--tolerance 1e-3"),
    ("diff", "{a} {b} --tolerance nan", 2, "'--tolerance nan'", "--tolerance 1e-3"),
    ("diff", "{a} {b} --columns nme", 2, "'nme'", "--columns name,"),
    ("diff", "{a} {b} --plot x.foo", 2, "'--plot x.foo'", "--plot x.png"),
    ("diff", "{a} {dot} <tiny> -c {b} --b-seed 1", 2, "two checkpoints for A", "leave out --checkpoint"),
    ("diff", "{a} {b} {dot} <tiny> --b-checkpoint {a}", 2, "two checkpoints for B", "leave out --b-c"),
    ("diff", "{a} {bad}/missing.pt", 4, "'{bad}/missing.pt'", "ls {bad}"),
    ("diff", "{bad}/empty.pt {a}", 4, "'{bad}/empty.pt' is empty", "get the file again"),
    ("diff", "{bad}/evil.pt {a}", 4, "'{bad}/evil.pt' is not loaded: it would run", "weights_only=False"),
    ("diff", "{a} {bad}/cut.safetensors", 4, "'{bad}/cut.safetensors'", "get the file again"),
    ("diff", "{a} {shapes}", 4, "no tensor in common", "modelscope diff"),
    ("diff", "{a} {shapes} {dot} <tiny>", 4, "'{shapes}' is of another architecture", "modelscope models"),
    ("diff", "{a} {b} {bad}/missing.jpg <tiny>", 4, "'{bad}/missing.jpg' does not exist", ""),
    ("diff", "{a} {b} {dot} <tiny> -l nothing", 2, "'nothing' matches nothing", "types present"),
    ("diff", "{a} {b} {dot} <tiny> -l conv@2", 2, "'conv@2' speaks of calls", "'conv'"),
    ("diff", "{a} {b} <tiny> --input-shape 1,5,9,9", 4, "A: forward raised in conv (Conv2d)", "summary"),
    ("diff", "torch:nn.Identity {dot} --b-dtype float16 --size 0", 2, "'0' in '--size 0'", "--size 224"),
    # pictures
    (LOOK, "{bad}/missing.jpg <tiny> -w none", 4, "'{bad}/missing.jpg' does not exist", ""),
    (LOOK, "'{bad}/*.webp' <tiny> -w none", 2, "'{bad}/*.webp' matches no file", "ls {bad}"),
    (LOOK, "{bad}/folder <tiny> -w none", 4, "'{bad}/folder' holds no picture", "ls {bad}/folder"),
    (LOOK, "{bad}/empty.jpg <tiny> -w none", 4, "'{bad}/empty.jpg' is empty", "file {bad}/empty.jpg"),
    (LOOK, "{bad}/text.jpg <tiny> -w none", 4, "'{bad}/text.jpg' is not a picture", "file {bad}/text.jpg"),
    (LOOK, "{bad}/cut.jpg <tiny> -w none", 4, "'{bad}/cut.jpg' cannot be decoded", "file {bad}/cut.jpg"),
    (LOOK, "{bad}/cut.png <tiny> -w none", 4, "'{bad}/cut.png' cannot be decoded", "file {bad}/cut.png"),
    (LOOK, "{bad}/bomb.png <tiny> -w none", 4, "'{bad}/bomb.png' is too large", "magick {bad}/bomb.png"),
    # tensors of the wrong shape
    (LOOK, "{bad}/five_channels.pt <tiny> -w none", 4, "forward raised in conv (Conv2d), given [1, 5, 64, 64]", ""),
    ("stats", "{bad}/rank_1.pt <tiny> -w none", 4, "given [64]", "modelscope summary --help"),
    ("featuremaps", "{bad}/rank_1.pt <tiny> -w none", 2, "'{bad}/rank_1.pt' has 64", "give one file"),
    (LOOK, "<tiny> -w none --input-shape 1,5,64,64", 4, "given [1, 5, 64, 64]", "--input-shape"),
    (LOOK, "<tiny> -w none --input-shape 64", 4, "given [64]", "--input-shape"),
    (LOOK, "{bad}/evil.pt <tiny> -w none", 4, "'{bad}/evil.pt'", "torch.save(torch.rand("),
    (LOOK, "{bad}/cut.safetensors <tiny> -w none", 4, "'{bad}/cut.safetensors'", ""),
    # checkpoints
    (ALL, "<tiny> -c {bad}/missing.pt", 4, "'{bad}/missing.pt'", "ls {bad}"),
    (ALL, "<tiny> -c {bad}/folder", 4, "'{bad}/folder' is a folder", "--checkpoint {bad}/folder/"),
    (ALL, "<tiny> -c {bad}/empty.pt", 4, "'{bad}/empty.pt' is empty", "get the file again"),
    (ALL, "<tiny> -c {bad}/text.jpg", 4, "'{bad}/text.jpg' is not a checkpoint", "get the file again"),
    (ALL, "<tiny> -c {bad}/evil.pt", 4, "'{bad}/evil.pt' is not loaded: it would run", "weights_only=False"),
    (ALL, "<tiny> -c {bad}/cut.safetensors", 4, "'{bad}/cut.safetensors'", "get the file again"),
    (ALL, "<tiny> -c {bad}/lying.safetensors", 4, "'{bad}/lying.safetensors'", "get the file again"),
    (ALL, "<tiny> -c {bad}/endless_header.safetensors", 4, "header too large", "get the file again"),
    (ALL, "<tiny> -c {shapes}", 4, "'{shapes}' is of another architecture", "modelscope models"),
    (LOOK, "<squeezenet1_1> -c {bad}/nan.safetensors", 4, "is of another architecture", "modelscope models"),
    # layers
    (ALL, "<tiny> -l nothing", 2, "'nothing' matches nothing", "types present: BatchNorm2d, Conv2d"),
    (ALL, "<tiny> -l block1.conv3", 2, "'block1.conv3'", "did you mean block1.conv"),
    (ALL, "<tiny> -l type:Conv2d@99", 2, "'type:Conv2d@99'", "--layer 'type:Conv2d'"),
    (ALL, "<tiny> -l 're:['", 2, "'re:['", "--layer 're:"),
    (ALL, "<tiny> -l conv --exclude nothing", 2, "'nothing' matches nothing", "types present"),
    ("summary", "<tiny> --freeze nothing", 2, "'nothing' matches nothing", "types present"),
    # the user's own code
    (ALL, "<{bad}/raises.py:X>", 4, "'{bad}/raises.py:X' raised ZeroDivisionError", "python {bad}/raises.py"),
    (ALL, "<{bad}/syntax.py:X>", 4, "'{bad}/syntax.py:X' raised SyntaxError", "python {bad}/syntax.py"),
    (ALL, "<{bad}/broken.py:Missing>", 2, "has no attribute 'Missing'", "{bad}/broken.py:"),
    (ALL, "<{bad}/missing.py:X>", 2, "'{bad}/missing.py'", "ls {bad}"),
    (ALL, "<no_such_package.models:X>", 2, "'no_such_package'", "python -c"),
    (ALL, "<{bad}/broken.py:Unbuildable>", 4, "raised KeyError: 'init'", "python {bad}/broken.py"),
    (LOOK, "<{bad}/broken.py:Misfit> -w none", 4, "forward raised in b (Linear), given [1, 4, 222, 222]", ""),
    (LOOK, "<{bad}/broken.py:Unlucky> -w none", 4, "ValueError: no luck today", "modelscope summary"),
    # where the result goes
    ("featuremaps", "{dot} <tiny> --out {bad}", 2, "'{bad}' is not empty", "--out {bad} --force"),
    ("featuremaps", "{dot} <tiny> --out {dot}", 4, "'--out {dot}' is a file", "--out {dot}-pictures"),
    ("featuremaps", "{dot} <tiny> --out {dot}/below", 4, "'{dot}' is a file", "--out "),
    ("featuremaps", "{dot} <tiny> --save-tensors {bad}/no/x.safetensors", 4, "'{bad}/no'", "mkdir -p {bad}/no"),
    ("stats", "{dot} <tiny> -l bn --correlation --out {bad}", 2, "'{bad}' is not empty", "--force"),
    ("stats", "{dot} <tiny> --plot {bad}/no/x.png", 4, "there is no folder '{bad}/no'", "mkdir -p {bad}/no"),
    (ALL, "<tiny> -o {bad}/no/x.csv", 4, "there is no folder '{bad}/no'", "mkdir -p {bad}/no"),
    (ALL, "<tiny> -o {dot}/x.csv", 4, "there is no folder '{dot}'", "mkdir -p {dot}"),
    (ALL, "<tiny> -o {bad}/folder.csv", 4, "'{bad}/folder.csv': it is a folder", "ls -ld {bad}/folder.csv"),
    ("models", "-o {bad}/no/x.csv", 4, "there is no folder '{bad}/no'", "mkdir -p {bad}/no"),
]  # fmt: skip

CASES = [
    pytest.param(command, arguments, code, quoted, hint, id=" ".join([command, *arguments.split()]))
    for commands, arguments, code, quoted, hint in TABLE
    for command in commands.split("|")
]


class Evil:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


BROKEN = """
from torch import nn

class Misfit(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Linear(7, 2)
    def forward(self, x):
        return self.b(self.a(x))

class Unlucky(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 4, 3)
    def forward(self, x):
        self.a(x)
        raise ValueError('no luck today')

class Unbuildable(nn.Module):
    def __init__(self):
        raise KeyError('init')
"""


@pytest.fixture(scope="module")
def bad(tmp_path_factory, samples):
    """A folder with one of everything that can be wrong with a file."""
    folder = tmp_path_factory.mktemp("bad")
    (folder / "folder").mkdir()
    (folder / "folder.csv").mkdir()
    (folder / "empty.jpg").touch()
    (folder / "empty.pt").touch()
    (folder / "text.jpg").write_text("once upon a time\n")
    for name, source in [("cut.jpg", "harbour.jpg"), ("cut.png", "star.png")]:
        content = (samples / source).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
    Image.new("1", (20_000, 20_000)).save(folder / "bomb.png")
    Image.new("RGB", (1, 1), "teal").save(folder / "dot.png")
    Image.new("RGB", (20_000, 20), "teal").save(folder / "wide.png")
    Image.new("RGB", (20, 20_000), "teal").save(folder / "tall.png")

    torch.save({"state_dict": Evil(folder / "mark")}, folder / "evil.pt")
    torch.save(torch.zeros(1, 5, 64, 64), folder / "five_channels.pt")
    torch.save(torch.zeros(64), folder / "rank_1.pt")
    whole = (samples / "tiny_resnet.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + length])
    header["conv.weight"]["data_offsets"][1] += 10**9
    lie = json.dumps(header).encode()
    (folder / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    (folder / "lying.safetensors").write_bytes(struct.pack("<Q", len(lie)) + lie + whole[8 + length :])
    (folder / "endless_header.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    state = load_file(samples / "tiny_resnet.safetensors")
    state["conv.weight"][0] = np.nan
    save_file(state, folder / "nan.safetensors")

    (folder / "raises.py").write_text("1 / 0\n")
    (folder / "syntax.py").write_text("def (\n")
    (folder / "broken.py").write_text(BROKEN)
    return folder


def files_below(*folders):
    return {
        path: path.stat().st_mtime_ns for folder in folders for path in folder.rglob("*") if path.is_file()
    }


def as_typed(command, arguments, bad, samples):
    model = r"\1" if command == "summary" else r"--model \1"
    arguments = re.sub("<tiny>", f"<{samples}/tiny_resnet.py:TinyResNet>", arguments)
    return f"{command} {re.sub('<(.*?)>', model, arguments)}"


@pytest.mark.parametrize(("command", "arguments", "code", "quoted", "hint"), CASES)
def test_bad_input(run, bad, cwd, samples, command, arguments, code, quoted, hint):
    words = {"bad": bad, "dot": bad / "dot.png", "shapes": samples / "shapes_squeezenet1_1.safetensors"}
    words |= {"a": samples / "tiny_resnet.safetensors", "b": samples / "sick.safetensors"}
    before = files_below(bad, cwd)
    outcome = run(as_typed(command, arguments, bad, samples), expect=code, **words)

    lines = outcome.err.splitlines()
    (place,) = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    assert quoted.format(**words) in lines[place]
    assert not lines[place].endswith(".")
    assert lines[place + 1] == ""
    assert lines[place + 2].startswith("hint: ")
    assert hint.format(**words) in lines[place + 2]
    assert len(lines) == place + 3
    assert outcome.out == ""
    assert files_below(bad, cwd) == before  # evil.pt, too, left no mark


@pytest.mark.parametrize("command", ["stats", "featuremaps"])
@pytest.mark.parametrize("name", ["dot.png", "wide.png", "tall.png"])
def test_odd_pictures_are_pictures(run, bad, command, name):
    assert run(f"{command} {bad}/{name} {{tiny}} -l head").column("name") == ["head"]


def test_weights_with_nan_work_and_warn(run, bad, samples):
    line = f"stats {bad}/dot.png -m {samples}/tiny_resnet.py:TinyResNet -c {bad}/nan.safetensors"
    outcome = run(f"{line} -l conv -l head --json")
    (warning,) = [line for line in outcome.err.splitlines() if line.startswith("warning: ")]
    assert "NaN" in warning
    assert "conv.weight" in warning
    assert [notice["message"] for notice in outcome.json["warnings"]] == [warning.removeprefix("warning: ")]
    conv, head = outcome.json["layers"]
    assert conv["nan_count"] == conv["numel"] // 16
    assert conv["mean"] is not None
    assert head["nan_count"] == 10
    assert (head["mean"], head["problem"]) == (None, "no finite value")


@pytest.mark.parametrize("model", ["Misfit", "Unlucky"])
def test_summary_of_a_forward_that_raises_shows_how_far_it_got(run, bad, model):
    outcome = run(f"summary {bad}/broken.py:{model} --input-shape 1,3,64,64", expect=4)
    assert outcome.column("name") == {"Misfit": ["Misfit", "a", "b"], "Unlucky": ["Unlucky", "a"]}[model]
    failed = {"Misfit": "forward raised in b (Linear), given [1, 4, 62, 62]", "Unlucky": "no luck today"}[
        model
    ]
    assert f"{failed}" in outcome.err
    assert "\n\nhint: " in outcome.err
    last = outcome.rows[-1]
    assert (last["input"], last["output"]) == {
        "Misfit": ("1x4x62x62", ""),
        "Unlucky": ("1x3x64x64", "1x4x62x62"),
    }[model]


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (KeyboardInterrupt(), 130, ""),
        (ZeroDivisionError("oh\nno"), 3, "error: this is a bug in modelscope: ZeroDivisionError: oh no\n"),
        (MemoryError(), 4, "error: out of memory\n"),
        (OSError(28, "No space left on device"), 4, "error: cannot write: No space left on device\n"),
        (BrokenPipeError(), 0, ""),
    ],
)
@pytest.mark.parametrize("debug", ["", "--debug"])
def test_what_ends_a_command_from_inside(monkeypatch, capfd, raised, code, said, debug):
    def end(*_: object) -> None:
        raise raised

    monkeypatch.setattr("modelscope_cli.models.catalogue.list_models", end)
    # The pipe that has gone is this test's own stdout; what is done to it is tested with a real one.
    monkeypatch.setattr(app._console, "abandon_stdout", lambda: None)
    assert run_argv(["models", "resnet18", *filter(None, [debug])]) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert said in err
    assert bool(said) == bool(err)
    assert ("Traceback" in err) == (bool(debug) and code == 3)


def test_debug_shows_where_an_error_came_from(capfd):
    assert run_argv(["summary", "resnet3", "--debug"]) == 2
    err = capfd.readouterr().err
    assert err.startswith("Traceback")
    assert err.endswith("\n\nhint: modelscope models resnet\n")


def test_without_arguments_there_is_help(capfd):
    assert run_argv([]) == 2
    out, err = capfd.readouterr()
    assert "Usage: modelscope" in out
    assert err == ""
