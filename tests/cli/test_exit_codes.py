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

from modelscope_cli.shell import app
from modelscope_cli.shell.app import run as run_argv

ALL, LOOK, ASK = "summary|stats", "featuremaps|grads", "predict"
PICTURE, LEARN = "featuremaps", "train"

# (commands, arguments, exit code, part of the error, part of the hint). `<X>` is the model X: an argument of
# `summary`, the option --model elsewhere.
TABLE = [
    # names that mean nothing
    (ALL, "<resnet3>", 2, "'resnet3': did you mean resnet34", "modelscope summary --list resnet"),
    (LOOK, "<resnet18> -w IMAGENET1K_V9", 2, "'IMAGENET1K_V9', only IMAGENET1K_V1", "--weights IMAGENET1K_V1"),
    (LOOK, "<tiny> -w none -d cudda", 2, "'cudda' is not a device: did you mean cuda", "--device auto"),
    (LOOK, "<tiny> -w none -d cuda:99", 4, "'cuda:99'", "--device cpu"),
    (ALL, "<tiny> --format jsn", 2, "'jsn' is not a format: did you mean json", "did you mean json"),
    (ALL, "<tiny> -o result.foo", 2, "'--output result.foo'", "--format table"),
    (ALL, "<tiny> --no-such-option", 2, "--no-such-option", " --help"),
    ("summary", "<tiny> --columns nme,macs", 2, "'nme' in --columns 'nme,macs'", "--columns name,"),
    ("nonsense", "", 2, "'nonsense'", "modelscope --help"),
    # numbers out of range, options that contradict each other
    (ALL, "<tiny> --model-arg width", 2, "'width'", "--model-arg "),
    (ALL, "<tiny> --input-shape 1,a", 2, "'a' in '--input-shape 1,a'", "--input-shape 1,3,224,224"),
    ("summary|stats", "<tiny> --batch 0", 2, "'--batch 0'", "--batch 1"),
    ("stats", "{dot} <tiny> --resume --out somewhere", 2, "'somewhere' contains no run", "leave out --resume"),
    ("predict", "{dot} <tiny> --doctor --resume", 2, "'--doctor' and '--resume'", "leave out --resume"),
    (LOOK, "{dot} <tiny> -w none --size 0", 2, "'0' in '--size 0'", "--size 224"),
    (LOOK, "{dot} <tiny> -w none --input-shape 1,3,9,9", 2, "'{dot}'", "leave out --input-shape"),
    ("featuremaps", "{dot} {dot} <tiny>", 2, "one image at a time, not 2", "leave out {dot}"),
    ("ablate", "<tiny> -w none --by-channel", 2, "'--by-channel' needs --layer", "--by-channel --layer"),
    ("ablate", "<tiny> -w none --no-save --force", 2, "--no-save", "leave out --no-save"),
    ("ablate", "<tiny> -w none -q --target 10", 2, "target 10 is out of range", "or one of 0..9"),
    ("ablate", "<tiny> -w none -q --target star", 2, "'star' is not a class index", "--target predicted"),
    ("ablate|explain", "{dot} <tiny> -q -c {nan}", 4, "output is NaN or infinite", "modelscope stats"),
    ("predict|stats", "--input {dot} <tiny>", 2, "'--input {dot}' is not NAME=SPEC", "--input x={dot}"),
    ("stats|check|weights", "-dot.png <tiny>", 2, "'-dot.png' is a file", "./-dot.png --model"),
    ("summary", "https://x.y/z.pth", 2, "'https://x.y/z.pth' is a URL", "curl -LO https://x.y/z.pth"),
    ("check", "broken.py:Net", 4, "raised SyntaxError", "hint: python "),
    # two sides
    ("diff", "resnet18", 2, "nothing to compare 'resnet18' with", "--b-dtype bfloat16"),
    ("diff", "resnet18 nosuch.png", 4, "'nosuch.png' does not exist", "ls ."),
    ("diff", "resnet18 vit_b_16 -w none", 4, "no tensor in common", "compares their outputs"),
    ("diff", "{a} {b} {dot}", 4, "'{a}' does not hold the weights of a", "--checkpoint {a}"),
    ("diff", "{a} {b} --b-dtype bfloat16", 2, "'--b-dtype bfloat16'", "--model NAME"),
    ("diff", "{a} {b} -l nothing", 2, "layer pattern 'nothing' matches no tensor", "--layer"),
    ("diff", "{a} {b} {dot} <tiny> --b-checkpoint {a}", 2, "both give weights for B", "leave out --b-c"),
    ("diff", "{bad}/empty.pt {a}", 4, "'{bad}/empty.pt' is empty", "download the file again"),
    ("diff", "{a} {shapes} {dot} <tiny>", 4, "'{shapes}' is for another architecture", "modelscope weights"),
    ("diff", "{a} {b} {dot} <tiny> -l conv@2", 2, "'conv@2' names calls", "try conv"),
    ("diff", "{a} {b} <tiny> --input-shape 1,5,9,9", 4, "A: forward raised in conv (Conv2d)",
     "--input-shape 1,3,9,9"),
    # pictures
    (PICTURE, "'{bad}/*.webp' <tiny> -w none", 2, "'{bad}/*.webp' matches no file", "ls {bad}"),
    (PICTURE, "{bad}/empty.jpg <tiny> -w none", 4, "'{bad}/empty.jpg' is empty", "rm {bad}/empty.jpg"),
    (PICTURE, "{bad}/folder <tiny> -w none", 4, "the folder '{bad}/folder' is empty", "ls -a {bad}/folder"),
    (PICTURE, "{bad}/cut.jpg <tiny> -w none", 4, "'{bad}/cut.jpg' cannot be decoded", "file {bad}/cut.jpg"),
    (PICTURE, "{bad}/bomb.png <tiny> -w none", 4, "'{bad}/bomb.png' is too large", "magick {bad}/bomb.png"),
    # tensors of the wrong shape
    (LOOK, "{bad}/five_channels.pt <tiny> -w none", 4, "forward raised in conv (Conv2d), given [1, 5, 64, 64]", ""),
    ("stats", "{bad}/rank_1.pt <tiny> -w none", 4, "given [64]", "modelscope stats --help"),
    (LOOK, "<tiny> -w none --input-shape 1,5,64,64", 4, "given [1, 5, 64, 64]", "--input-shape"),
    (LOOK, "{bad}/evil.pt <tiny> -w none", 4, "'{bad}/evil.pt'", "torch.save(torch.rand("),
    # checkpoints
    (ALL, "<tiny> -c {bad}/missing.pt", 4, "'{bad}/missing.pt'", "ls {bad}"),
    (ALL, "<tiny> -c {bad}/empty.pt", 4, "'{bad}/empty.pt' is empty", "download the file again"),
    (ALL, "<tiny> -c {bad}/evil.pt", 4, "'{bad}/evil.pt' is not loaded: it would run", "hint: modelscope weights "),
    (ALL, "<tiny> -c {bad}/cut.safetensors", 4, "'{bad}/cut.safetensors'", "download the file again"),
    (ALL, "<tiny> -c {shapes}", 4, "'{shapes}' is for another architecture", "modelscope weights"),
    (LOOK, "<squeezenet1_1> -c {bad}/nan.safetensors", 4, "for another architecture", "modelscope weights"),
    # checkpoints, looked into
    ("weights", "{bad}/missing.pt", 4, "no checkpoint file '{bad}/missing.pt'", "ls {bad}"),
    ("weights", "{bad}/text.jpg", 4, "it is text, 'once upon a time'", "download the file again"),
    ("weights", "{bad}/pointer.pth", 4, "a git-lfs pointer", "git lfs pull --include pointer"),
    ("weights", "{bad}/page.pth", 4, "it is a web page", "download the file again"),
    ("weights", "{bad}/evil.pt", 1, "'{bad}/evil.pt' contains no named tensors", "do not load it"),
    ("weights", "{bad}/escape.index.json", 4, "outside its folder, '../evil.pt'", "grep -n"),
    ("weights", "{bad}/lost.index.json", 4, "shard '{bad}/lost.pt' is missing", "ls {bad}"),
    ("weights", "{shapes} --layer fetures", 2, "'fetures' matches no tensor: did you mean fea", "--layer "),
    ("weights", "{shapes} --convert copy.pt", 2, "'--convert copy.pt'", "--convert copy.pt.safetensors"),
    ("weights", "{shapes} --convert {shapes}", 2, "is the file itself", "-copy.safetensors"),
    ("weights", "{shapes} --convert {bad}/no/x.safetensors", 4, "there is no folder '{bad}/no'", "mkdir -p "),
    ("weights", "{shapes} -o {bad}/no/x.csv", 4, "there is no folder '{bad}/no'", "mkdir -p {bad}/no"),
    (ALL, "<{bad}/nan.safetensors>", 4, "does not hold the weights of a", "--checkpoint {bad}/nan"),
    (ALL, "<{shapes}> -c {bad}/nan.safetensors", 2, "cannot be combined", "leave out --checkpoint"),
    # layers
    (ALL, "<tiny> -l nothing", 2, "'nothing' matches no layer", "types: BatchNorm2d, Conv2d"),
    (ALL, "<tiny> -l block1.conv3", 2, "'block1.conv3'", "did you mean block1.conv"),
    (ALL, "<tiny> -l type:Conv2d@99", 2, "'type:Conv2d@99'", "try type:Conv2d"),
    # the user's own code
    (ALL, "<{bad}/raises.py:X>", 4, "'{bad}/raises.py:X' raised ZeroDivisionError", "python {bad}/raises.py"),
    (ALL, "<{bad}/syntax.py:X>", 4, "'{bad}/syntax.py:X' raised SyntaxError", "python {bad}/syntax.py"),
    (ALL, "<{bad}/broken.py:Missing>", 2, "has no attribute 'Missing'", "{bad}/broken.py:"),
    (ALL, "<{bad}/missing.py:X>", 4, "no file '{bad}/missing.py'", "{bad}/mine.py:"),
    (ALL, "<no_such_package.models:X>", 2, "'no_such_package'", "python -c"),
    (ALL, "<{bad}/broken.py:Unbuildable>", 4, "raised KeyError: 'init'", "hint: --debug"),
    (LOOK, "<{bad}/broken.py:Misfit> -w none", 4, "forward raised in b (Linear), given [1, 4, 222, 222]", ""),
    (LOOK, "<{bad}/broken.py:Unlucky> -w none", 4, "ValueError: no luck today", " --help   # shows how to give"),
    # what a classifier says
    ("ablate", "{dot} <{bad}/broken.py:Maps>", 4, "outputs feature maps of 4x222x222", "--output-kind"),
    ("ablate", "{dot} <{bad}/broken.py:Boxes>", 4, "outputs 4 values per image", "modelscope stats"),
    (ASK, "{dot} {dot} <{bad}/broken.py:Tokens>", 4, "output for 2 images is 10x4", "--batch 1"),
    (ASK, "{dot} <{bad}/broken.py:Silent>", 4, "the model returns a dict without tensors", "modelscope summary"),
    ("predict", "{dot} <tiny> --threshold 0.3", 2, "'--threshold 0.3'", "--scores sigmoid"),
    ("predict", "{dot} <tiny> --doctor --top 3", 2, "'--doctor' and '--top 3'", "leave out --top 3"),
    ("predict", "{dot} <tiny> --doctor --hook zero@fc", 2, "--hook zero@fc", "leave out --hook zero@fc"),
    ("predict", "{bad}/five_channels.pt <tiny> -w none --doctor", 2, "which are not preprocessed", "images"),
    ("predict", "{dot} <fcn_resnet50> -w none --doctor", 4, "'segmentation' is not a", "leave out --doctor"),
    ("predict", "{dot} <tiny> -c {bad}/nan.safetensors --doctor", 4, "NaN", "modelscope stats"),
    # train, lrfind
    (LEARN, "<tiny> --optimizer sdg", 2, "'sdg' is not a value of --optimizer", "--optimizer sgd"),
    (LEARN, "<tiny> {bad}/missing", 4, "'{bad}/missing' does not exist", "ls {bad}"),
    (LEARN, "<tiny> {dot}", 4, "'{dot}' is a file, not a folder", "ls {bad}"),
    (LEARN, "<tiny> {bad}/classes", 4, "in '{bad}/classes' hold no images", "ls {bad}/classes"),
    (LEARN, "<tiny> {bad}/alone", 4, "images of one class only, 'cat'", "ls {bad}/alone"),
    (LEARN, "<tiny> {bad}/outer", 4, "images of one class only, 'inner'", "{bad}/outer/inner"),
    (LEARN, "<tiny> --size 64 --pictures 20 --freeze re:.*", 2, "there is nothing to train", "leave out --freeze"),
    (LEARN, "<resnet18> --size 32 --batch 1 --pictures 20", 4, "more than 1 value per channel", "--batch 2"),
    (LEARN, "<{bad}/broken.py:Maps>", 4, "the model's output is 32x4x62x62, not a row", "modelscope summary"),
    (LEARN, "<{bad}/broken.py:Few> --size 8", 4, "4 scores, but the data have 10 classes", "num_classes=10"),
    (LEARN, "<tiny> --loaders {bad}/mine.py:empty", 2, "yields no batches", "starts again"),
    (LEARN, "<tiny> --loaders {bad}/mine.py:words", 2, "a str, not two tensors", "yield inputs, targets"),
    (LEARN, "<tiny> --loaders x.py:words {bad}", 2, "'--loaders x.py:words' and the folder", "--loaders x.py"),
    # where the result goes
    ("featuremaps", "{dot} <tiny> --out {dot}", 4, "'--out {dot}' is a file", "--out {dot}-pictures"),
    ("featuremaps", "{dot} <tiny> --save-tensors {bad}/no/x.safetensors", 4, "'{bad}/no'", "mkdir -p {bad}/no"),
    ("stats", "{dot} <tiny> -l bn --out {bad}", 2, "'{bad}' is not empty", "--force"),
    (ALL, "<tiny> -o {bad}/folder.csv", 4, "'{bad}/folder.csv': it is a folder", "ls -ld {bad}/folder.csv"),
    ("grads", "{dot} <tiny> --out somewhere --no-save", 2, "--no-save writes no folder", "leave out --no-save"),
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

class Maps(nn.Conv2d):
    def __init__(self):
        super().__init__(3, 4, 3)

class Silent(Misfit):
    def forward(self, x):
        return {"words": "none"}

class Boxes(Maps):
    def forward(self, x):
        return [{"boxes": super(Boxes, self).forward(x)[0, :, 0].T[:1]}]

class Tokens(Maps):
    def forward(self, x):
        return super().forward(x)[:, :, 0, :5].transpose(1, 2).flatten(0, 1)

class Few(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.LazyLinear(4))
        self(__import__("torch").zeros(1, 3, 8, 8))

class NoClasses(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3))

class Detached(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(3 * 224 * 224, 4))
    def forward(self, x):
        return super().forward(x).detach()

class Unbuildable(nn.Module):
    def __init__(self):
        raise KeyError('init')
"""


MINE = """
words = ["once", "upon"]
empty = []
def fails():
    raise ValueError("no data")
"""


@pytest.fixture(scope="module")
def bad(tmp_path_factory, samples):
    """A folder with one of everything that can be wrong with a file."""
    folder = tmp_path_factory.mktemp("bad")
    (folder / "folder").mkdir()
    (folder / "folder.csv").mkdir()
    (folder / "two").mkdir()
    (folder / "empty.jpg").touch()
    (folder / "empty.pt").touch()
    (folder / "text.jpg").write_text("once upon a time\n")
    for name, source in [("cut.jpg", "harbour.jpg"), ("cut.png", "star.png")]:
        content = (samples / source).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
    Image.new("1", (20_000, 20_000)).save(folder / "bomb.png")
    Image.new("RGB", (1, 1), "teal").save(folder / "dot.png")
    for name in "ab":
        Image.new("RGB", (1, 1), "teal").save(folder / "two" / f"{name}.png")
    Image.new("RGB", (20_000, 20), "teal").save(folder / "wide.png")
    Image.new("RGB", (20, 20_000), "teal").save(folder / "tall.png")

    (folder / "pointer.pth").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    (folder / "page.pth").write_text("<!DOCTYPE html><html><title>404</title></html>")
    (folder / "escape.index.json").write_text('{"weight_map": {"a": "../evil.pt"}}')
    (folder / "lost.index.json").write_text('{"weight_map": {"a": "lost.pt"}}')
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
    (folder / "mine.py").write_text(MINE)
    (folder / "classes" / "cat").mkdir(parents=True)
    for where in ("alone/cat", "outer/inner/cat", "outer/inner/dog"):
        (folder / where).mkdir(parents=True)
        Image.new("RGB", (9, 9), "teal").save(folder / where / "1.png")
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
def test_bad_input(refused, bad, cwd, samples, monkeypatch, command, arguments, code, quoted, hint):
    # What is proposed; `tests/hints/` has the whole lines that it becomes.
    monkeypatch.setattr("modelscope_cli.shell.hints._whole", lambda *_: None)
    words = {"bad": bad, "dot": bad / "dot.png", "shapes": samples / "shapes_squeezenet1_1.safetensors"}
    words |= {"trained": samples / "tiny_resnet.safetensors", "nan": bad / "nan.safetensors"}
    words |= {"a": samples / "tiny_resnet.safetensors", "b": samples / "sick.safetensors"}
    for name in re.findall(r"-dot\.png|broken\.py", arguments):
        (cwd / name).write_text("class Net(:")
    before = files_below(bad, cwd)
    message, suggested = refused(as_typed(command, arguments, bad, samples), code, **words)
    assert quoted.format(**words) in message
    assert hint.format(**words) in suggested
    assert files_below(bad, cwd) == before  # evil.pt, too, left no mark


@pytest.mark.parametrize(("raised", "code", "said"), [
    (KeyboardInterrupt(), 130, "interrupted: nothing was saved; "),
    (ZeroDivisionError("oh\nno"), 3, "error: this is a bug in modelscope: ZeroDivisionError: oh no\n"),
    (MemoryError(), 4, "error: out of memory\n"),
    (OSError(28, "No space left on device"), 4, "error: cannot write: No space left on device\n"),
    (BrokenPipeError(), 0, ""),
    (SystemExit(0), 4, "error: the code of the model called sys.exit(0)\n"),
])  # fmt: skip
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
    assert ("Traceback" in err) == (bool(debug) and (code == 3 or isinstance(raised, SystemExit)))


def test_what_fails_while_an_error_is_explained_is_a_bug_and_no_traceback(monkeypatch, capfd):
    def fail(*_: object) -> None:
        raise StopIteration

    monkeypatch.setattr("modelscope_cli.shell.hints.what_was_meant", fail)
    assert run_argv(["summary", "--no-such-thing"]) == 3
    assert capfd.readouterr().err.startswith("error: this is a bug in modelscope: StopIteration")


def test_debug_shows_where_an_error_came_from(capfd):
    assert run_argv(["summary", "resnet3", "--debug"]) == 2
    err = capfd.readouterr().err
    assert err.startswith("Traceback")
    assert err.endswith("\n\nhint: modelscope summary --list resnet\n")


def test_without_arguments_there_is_help(capfd):
    assert run_argv([]) == 2
    out, err = capfd.readouterr()
    assert "Usage: modelscope" in out
    assert err == ""
