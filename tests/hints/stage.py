"""The folder in which lines fail: one of everything that a model, an image or a file can be, all of it tiny."""

import json
import os
import shutil
import struct
import tarfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from modelscope_cli.watching.log import VERSION

SAMPLES = Path(__file__).parents[2] / "samples"

MODELS = '''
"""Models of a few numbers each, and what is wrong with some."""
import torch
from torch import nn
from torch.nn import functional as F

class Tiny(nn.Module):
    pretrained_cfg = {"input_size": (3, 32, 32)}  # so that nothing takes long
    def __init__(self, num_classes: int = 10, width: int = 4):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, stride=4, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.head = nn.Linear(4 * width, num_classes)
    def forward(self, x):
        return self.head(self.pool(self.relu(self.bn(self.conv(x)))).flatten(1))

class Raw(Tiny):
    """Says what happens in forward only by raising."""
    def forward(self, x):
        raise ValueError("no luck today")

class Trainers(nn.Module):
    """Its own train() trains."""
    def __init__(self):
        super().__init__()
        self.student, self.teacher = Tiny(), Tiny()
    def train(self, epochs=1):
        raise RuntimeError("a training")

class AroundTrainers(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Trainers()

def hollow():
    with torch.device("meta"):
        return Tiny()

def downloads(pretrained=True):
    if pretrained:
        import urllib.request
        urllib.request.urlopen("http://localhost:1")
    return Tiny()

class Misfit(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Linear(7, 2)
    def forward(self, x):
        return self.b(self.a(x))

class Maps(nn.Conv2d):
    """(N, 4, H, W): an image's features, or the scores of four classes in each pixel."""
    pretrained_cfg = {"input_size": (3, 32, 32)}
    def __init__(self):
        super().__init__(3, 4, 3, padding=1)

class Dark(Maps):
    """The same class everywhere."""
    def forward(self, x):
        return super().forward(x) * 0 + torch.tensor([1.0, 0, 0, 0])[:, None, None]

class Still(Tiny):
    """Says the same of every image, so that no gradient comes back."""
    def forward(self, x):
        return super().forward(x) * 0

class Sigmoid(Tiny):
    def forward(self, x):
        return self.head(self.pool(torch.sigmoid(self.conv(x))).flatten(1))

class Unused(Tiny):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(2, 2)

class Sized(Maps):
    """As many values as the image is wide."""
    pretrained_cfg = None
    def forward(self, x):
        return {"embedding": super().forward(x).mean((1, 2))}

class Elsewhere(nn.Module):
    """No layer is called as one of Tiny."""
    pretrained_cfg = {"input_size": (3, 32, 32)}
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
    def forward(self, x):
        return self.stem(x).mean((2, 3))

class Silent(Tiny):
    def forward(self, x):
        return {"words": "none"}

class One(Tiny):
    """One value an image."""
    def __init__(self):
        super().__init__(num_classes=1)
    def forward(self, x):
        return super().forward(x)[:, 0]

class Tokens(Maps):
    def forward(self, x):
        return super().forward(x)[:, :, 0, :5].transpose(1, 2).flatten(0, 1)

class Vectors(Tiny):
    """As many values as the image is high."""
    def forward(self, x):
        return {"embedding": x.mean((1, 3))}

class Lone(nn.Module):
    """One value a channel."""
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(3)
    def forward(self, x):
        return self.bn(x.mean((2, 3), keepdim=True))

class Flat(nn.Module):
    """No image, but sixteen numbers."""
    pretrained_cfg = {"input_size": (16,)}
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 4)
    def forward(self, x):
        return self.head(x)

class Dict(Tiny):
    def forward(self, batch):
        return super().forward(batch if isinstance(batch, torch.Tensor) else batch["image"])

class Uncopied(Tiny):
    def __deepcopy__(self, memo):
        raise TypeError("cannot be copied")

class Whole(Tiny):
    """Integers."""
    def forward(self, x):
        return super().forward(x).argmax(1)

class Square(Tiny):
    """One number in all."""
    def forward(self, x):
        return super().forward(x).square().mean()

class InPlace(Tiny):
    def forward(self, x):
        return self.head(self.pool(self.bn(self.conv(x)).mul_(2)).flatten(1))

class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("no way back")

class NoBackward(Tiny):
    def forward(self, x):
        return Broken.apply(super().forward(x))

class Halves(Tiny):
    """Sends gradients from one of its outputs."""
    def forward(self, x):
        scores = super().forward(x)
        return {"a": scores, "b": scores.detach()}

class Quantized(nn.Sequential):
    pretrained_cfg = {"input_size": (3, 8, 8)}
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(192, 4), torch.ao.nn.quantized.Quantize(1.0, 0, torch.quint8))

class Steep(Tiny):
    """Its gradient is infinite."""
    def forward(self, x):
        return super().forward(x) + (x - x.detach()).abs().sqrt().mean()

class Infinite(Tiny):
    """Its scores become infinite once the image is changed."""
    n = 0
    def forward(self, x):
        Infinite.n += 1
        return super().forward(x) * (1.0 if Infinite.n < 2 else float("inf"))

class Headless(Tiny):
    """A row of features, which are not scores."""
    def forward(self, x):
        return self.pool(self.relu(self.bn(self.conv(x))))

class Boxes(Maps):
    """Finds nothing."""
    def forward(self, x):
        empty = super().forward(x)[0, 0, 0, :0]
        return [{"boxes": empty.reshape(0, 4), "scores": empty, "labels": empty.long()}]

class OneBox(Maps):
    """Finds one box."""
    def forward(self, x):
        corner = super().forward(x)[0, 0, 0, :4]
        box = corner[None] * 0 + torch.tensor([0.0, 0, 4, 4])
        return [{"boxes": box, "scores": corner[:1].sigmoid(), "labels": torch.tensor([1])}]

class Detached(Tiny):
    def forward(self, x):
        return super().forward(x).detach()

class Lines(nn.Sequential):
    """Nothing but a matrix: no layer has positions."""
    pretrained_cfg = {"input_size": (3, 32, 32)}
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(3 * 32 * 32, 4))

class Bare(nn.ReLU):
    """No parameters at all."""

class Frozen(Tiny):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)

class Few(nn.Sequential):
    def __init__(self):
        super().__init__(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 4))

class Five(Tiny):
    """Takes five channels."""
    pretrained_cfg = None
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(5, 4, 3, stride=4)

class Two(Tiny):
    """Takes two images by name."""
    def forward(self, left, right):
        return super().forward(left - right)

class Text(nn.Module):
    """Takes tokens."""
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 8)
        self.head = nn.Linear(8, 10)
    def forward(self, input_ids):
        return self.head(self.embedding(input_ids).mean(1))

class Unbuildable(nn.Module):
    def __init__(self):
        raise KeyError("init")

class Needy(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3)
    def forward(self, x):
        return self.conv(x)

class Lazy(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.LazyLinear(4))

class Restless(Tiny):
    """Calls other layers each time."""
    n = 0
    def forward(self, x):
        Restless.n += 1
        x = self.bn(self.conv(x))
        if Restless.n % 2:
            x = self.relu(x)
        return self.head(self.pool(x).flatten(1))

def tiny(width: int = 4):
    return Tiny(width=width)

class Config:
    pass

class Configured(nn.Module):
    """Needs what no command line can give."""
    def __init__(self, config: Config):
        super().__init__()
    def forward(self, x):
        return x

def number_of(x):
    return 3

class Plain(nn.Sequential):
    """Neither a ReLU nor batch norm."""
    def __init__(self):
        super().__init__(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 10))

class Fixed(nn.Module):
    pretrained_cfg = {"input_size": (3, 32, 32)}
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
    def forward(self, x):
        return self.conv(x).mean((2, 3))

def nothing():
    return None

number = 3
made = Tiny()

def shared():
    return made
'''

MINE = """
import torch

class Fails:
    def after_loss(self, run):
        raise ValueError("not now")

number = 3
words = ["once", "upon"]
empty = []
def fails():
    raise ValueError("no data")
def pairs():
    return [(torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 2, 3]))] * 2
def once():
    return iter(pairs())
class Quiet:
    pass
def wide():
    return [(torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 2, 30]))] * 2
def mean(output):
    return output.mean()
def not_scalar(output):
    return output
def without_graph(output):
    return torch.tensor(3.0)
def with_target(output, target):
    return output.mean()
def in_place(module, args, output):
    output.mul_(2)
    return output.clone().sigmoid_().exp_()
def look(module, args, output):
    return "words"
def three(module, args, output):
    return None
def wrong(module, args, output):
    return 3
"""


WATCHED = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(net(torch.randn(4, 3)), torch.tensor([0, 1, 0, 1])).backward()
    optimizer.step()
"""


class Evil:
    """Leaves a mark when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("mark"),)


def make_stage(folder: Path) -> None:
    """Fill an empty folder."""
    for name in (
        "tiny_resnet.py",
        "tiny_resnet.safetensors",
        "sick.safetensors",
        "star.png",
        "train.py",
        "dataset.py",
    ):
        shutil.copy(SAMPLES / name, folder)
    shutil.copytree(SAMPLES / "shapes", folder / "shapes")
    (folder / "models.py").write_text(MODELS)
    (folder / "mine.py").write_text(MINE)
    (folder / "watched.py").write_text(WATCHED)
    for name, log in (("old_log", 1), ("new_log", 999)):
        (folder / name).mkdir()
        (folder / name / "log.jsonl").write_text(json.dumps({"begin": {"version": log}}) + "\n")
    (folder / "bad_log").mkdir()
    (folder / "bad_log" / "log.jsonl").write_text(
        json.dumps({"begin": {"version": VERSION}}) + '\n{"layer": {}}\n'
    )
    (folder / "raises.py").write_text("1 / 0\n")
    (folder / "alien.py").write_text("number = 3\ndef function():\n    return 3\n")
    for package in ("a", "b"):
        (folder / package / "pkg").mkdir(parents=True)
        (folder / package / "pkg" / "__init__.py").touch()
        (folder / package / "pkg" / "other.py").touch()
        (folder / package / "pkg" / "net.py").write_text(
            "from .other import *\nfrom torch import nn\nclass Net(nn.ReLU):\n    pass\n"
        )
    (folder / "syntax.py").write_text("def (\n")
    for name in (
        "folder",
        "folder.csv",
        "two",
        "full",
        "alone/cat",
        "classes/cat",
        "classes/dog",
        "few/cat",
        "few/dog",
    ):
        (folder / name).mkdir(parents=True)
    draw = np.random.default_rng(0)
    for name in (
        "dot.png",
        "two/a.png",
        "two/b.png",
        "alone/cat/1.png",
        *(f"few/{k}/{i}.png" for k in ("cat", "dog") for i in range(6)),
    ):
        Image.fromarray(draw.integers(0, 255, (16, 16, 3), np.uint8)).save(folder / name)
    Image.new("RGB", (16, 24), "teal").save(folder / "tall.png")
    (folder / "full" / "note.txt").write_text("mine\n")
    (folder / "empty.jpg").touch()
    (folder / "empty.pt").touch()
    (folder / "text.jpg").write_text("once upon a time\n")
    (folder / "cut.png").write_bytes((SAMPLES / "star.png").read_bytes()[:300])
    (folder / "page.pth").write_text("<!DOCTYPE html><html><title>404</title></html>")
    (folder / "pointer.pth").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    (folder / "bomb.png").write_bytes(_bomb())
    _make_lists(folder)
    _make_weights(folder)
    _make_tensors(folder)


def _make_lists(folder: Path) -> None:
    shutil.copytree(folder / "two", folder / "again")
    (folder / "empty.txt").touch()
    (folder / "there.csv").touch()
    for name in ("csv", "json"):
        os.mkfifo(folder / f"pipe.{name}")
    (folder / "page.html").write_text("<!DOCTYPE html><html><title>404</title></html>")
    (folder / "wrong.json").write_text('{"schema": "else"}')
    (folder / "future.json").write_text('{"schema": "modelscope/baseline/99", "findings": []}')
    rows = '"findings": [{"code": "MS202", "layer": "relu", "value": NaN}]}'
    (folder / "old.json").write_text('{"schema": "modelscope/baseline/1", "findings": []}')
    (folder / "strange.json").write_text('{"schema": "modelscope/baseline/2", ' + rows)
    other = '{"schema": "modelscope/baseline/2", "model": "Other", "findings": []}'
    (folder / "of_another.json").write_text(other)
    (folder / "of_stats.json").write_text('{"schema": "modelscope/stats/1"}')
    (folder / "many_images").mkdir()
    for number in range(17):
        shutil.copy(folder / "dot.png", folder / "many_images" / f"{number}.png")
    (folder / "half_images").mkdir()
    shutil.copy(folder / "dot.png", folder / "half_images" / "dot.png")
    for name in ("a.png", "b.png"):
        (folder / "half_images" / name).touch()
    (folder / "list.txt").write_text("dot.png\n")
    (folder / "folders.txt").write_text("two\n")
    (folder / "wrong.txt").write_text("dott.png\n")
    (folder / "elsewhere.txt").write_text("zzzzzzzzzz/q.jpg\n")
    (folder / "ten.txt").write_text(
        "".join(f"{number}\n" for number in ("two", "cat", "dog", "a", "b", "c", "d", "e", "f", "f"))
    )
    (folder / "truth.csv").write_text("a.png,1\nb.png,2\n")
    (folder / "text.tar").write_text("once upon a time\n" * 99)
    (folder / "named.tar.gz").write_text("once upon a time\n" * 99)
    with tarfile.open(folder / "packed.tar.gz", "w:gz") as shard:
        shard.add(folder / "dot.png", "dot.png")
    Image.new("L", (9000, 1)).save(folder / "line.png")
    for name, size, value in (
        ("mask", 16, 0),
        ("large", 32, 0),
        ("high", 16, 9),
        ("void", 16, 255),
        ("marked", 16, 200),
    ):
        Image.new("L", (size, size), value).save(folder / f"{name}.png")
    (folder / "masks_two.csv").write_text("dot.png,mask.png,high.png\n")
    (folder / "unclear.csv").write_text("dot.png,f\n")
    (folder / "several.csv").write_text("dot.png,a,b\n")
    (folder / "several2.csv").write_text("dot.png,8\n")
    (folder / "truth2.csv").write_text("dot.png,8\n")
    (folder / "masks_tall.csv").write_text("tall.png,tall_mask.png\n")
    Image.new("L", (16, 24)).save(folder / "tall_mask.png")
    (folder / "cats.txt").write_text("cat\ndog\n")
    (folder / "fifos").mkdir()
    os.mkfifo(folder / "fifos" / "pipe.png")
    (folder / "broken").mkdir()
    for name in ("cat", "dog"):
        (folder / "unreadable" / name).mkdir(parents=True)
        for number in range(6):
            (folder / "unreadable" / name / f"{number}.png").write_text("once upon a time\n")
    for name in ("a.png", "b.png"):
        (folder / "broken" / name).write_text("once upon a time\n")
    for name, mask in (
        ("masks", "mask.png"),
        ("masks_large", "large.png"),
        ("masks_high", "high.png"),
        ("masks_void", "void.png"),
        ("masks_lost", "lost.png"),
        ("masks_cut", "cut.png"),
        ("masks_colour", "dot.png"),
    ):
        (folder / f"{name}.csv").write_text(f"dot.png,{mask}\n")


def _make_weights(folder: Path) -> None:
    space: dict[str, object] = {}
    exec(MODELS, space)
    torch.manual_seed(0)
    state = space["Tiny"]().state_dict()  # type: ignore[operator]
    save_file(state, folder / "tiny.safetensors")
    save_file({**state, "conv.weight": state["conv.weight"] * 2}, folder / "other.safetensors")
    save_file({**state, "conv.weight": state["conv.weight"] * torch.nan}, folder / "nan.safetensors")
    named = {"categories": json.dumps(["a", "b", "b", *"cdefghi"])}
    save_file(state, folder / "alike.safetensors", named)
    save_file(space["Tiny"](width=8).state_dict(), folder / "wide.safetensors")  # type: ignore[operator]
    (folder / "core.mlpackage").mkdir()
    with zipfile.ZipFile(folder / "model.keras", "w") as other:
        other.writestr("config.json", "{}")
    (folder / "model.onnx").write_bytes(b"\x08\x07\x12\x07pytorch")
    save_file({"elsewhere.weight": torch.zeros(3, 3)}, folder / "foreign.safetensors")
    save_file(
        {**state, "head.weight": torch.zeros(2, 16), "head.bias": torch.zeros(2)}, folder / "two.safetensors"
    )
    torch.save(state, folder / "tiny.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(torch.nn.Linear(1, 1), torch.zeros(1, 1)), folder / "program.pt")
    import torchvision

    headless = torchvision.models.squeezenet1_1()
    headless.classifier = torch.nn.Identity()
    save_file(
        {key: value.half() for key, value in headless.state_dict().items()}, folder / "headless.safetensors"
    )
    torch.save({"model": state, "ema": state, "epoch": 3}, folder / "nested.pt")
    torch.save({"state_dict": Evil()}, folder / "evil.pt")
    torch.save({"epoch": 3}, folder / "no_tensors.pt")
    torch.save({"a": torch.zeros(3), "b": [torch.zeros(2), torch.zeros(3)]}, folder / "inside.pt")
    (folder / "text2.safetensors").write_text("once upon a time\n")
    os.mkfifo(folder / "pipe.safetensors")
    os.mkfifo(folder / "pipe.png")
    save_file(
        {**state, "head.weight": torch.zeros(7, 16), "head.bias": torch.zeros(7)},
        folder / "seven.safetensors",
    )
    save_file({key: value for key, value in state.items() if "bn" not in key}, folder / "parts.safetensors")
    save_file({**state, "conv.weight": torch.zeros(4, 3, 5, 5)}, folder / "misshaped.safetensors")
    torch.save({"model": {"a": torch.zeros(2, 2).to_sparse(), "b": torch.zeros(2)}}, folder / "sparse.pt")
    (folder / "many").mkdir()
    (folder / "one").mkdir()
    for name in ("many/a", "many/b", "one/x"):
        shutil.copy(folder / "tiny.safetensors", folder / f"{name}.safetensors")
    (folder / "escape.index.json").write_text('{"weight_map": {"a": "../evil.pt"}}')
    (folder / "lost.index.json").write_text('{"weight_map": {"a": "lost.pt"}}')
    (folder / "broken.index.json").write_text("{}")
    with zipfile.ZipFile(folder / "tiny.pt") as little, zipfile.ZipFile(folder / "big.pt", "w") as big:
        for name in little.namelist():
            big.writestr(name, b"big" if name.endswith("byteorder") else little.read(name))
    whole = (folder / "tiny.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + length])
    header["conv.weight"]["data_offsets"][1] += 10**9
    lie = json.dumps(header).encode()
    (folder / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    (folder / "lying.safetensors").write_bytes(struct.pack("<Q", len(lie)) + lie + whole[8 + length :])


def _make_tensors(folder: Path) -> None:
    torch.save(torch.zeros(1, 5, 64, 64), folder / "five_channels.pt")
    torch.save(torch.zeros(1, 3, 16, 16), folder / "image.pt")
    torch.save(torch.zeros(64), folder / "rank_1.pt")
    torch.save(torch.zeros(1, 16), folder / "numbers.pt")
    torch.save(torch.zeros(()), folder / "scalar.pt")
    torch.save([torch.zeros(2, 3, 16, 16), torch.zeros(1, 3, 16, 16)], folder / "two.pt")
    (folder / "folder.npy").mkdir()
    save_file({"a": torch.zeros(1, 3, 16, 16), "b": torch.ones(1, 3, 16, 16)}, folder / "pair.safetensors")
    np.save(folder / "image.npy", np.zeros((1, 3, 16, 16), np.float32))
    with tarfile.open(folder / "shard.tar", "w") as shard:
        shard.add(folder / "dot.png", "dot.png")
    with tarfile.open(folder / "cut.tar", "w") as shard:
        shard.add(folder / "dot.png", "dot.png")
        shard.add(folder / "dot.png", "again.png")
    (folder / "cut.tar").write_bytes((folder / "cut.tar").read_bytes()[:2400])
    with tarfile.open(folder / "lying.tar", "w") as shard:
        info = tarfile.TarInfo("huge.png")
        info.size = 1 << 40
        shard.addfile(info)
    with tarfile.open(folder / "notes.tar", "w") as shard:
        shard.add(folder / "mine.py", "mine.py")


def _bomb() -> bytes:
    """A PNG that says it is 60,000 pixels wide and high."""
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
