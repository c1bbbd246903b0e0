"""Which outputs `featuremaps` draws of a deep network without --layer: what its blocks return."""

import copy
import sys

import pytest
import torch
from safetensors.torch import load_file
from tolerance import A_NETWORK, assert_close
from torch import nn

import modelscope_cli as ms
from modelscope_cli.records.progress import SILENT

NETS = """
import torch
from torch import nn
import torch.nn.functional as F
from torchvision.models import VisionTransformer

def vit(layers=6):
    torch.manual_seed(0)
    return VisionTransformer(32, 8, layers, 2, 16, 32, num_classes=5)

class Mix(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.left, self.right = nn.Conv2d(channels, 4, 1), nn.Conv2d(channels, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
    def forward(self, x):
        return torch.cat([self.left(x), F.relu(self.norm(self.right(x)))], 1)

class Concatenating(nn.Module):
    def __init__(self):
        super().__init__()
        for n in range(9):
            setattr(self, f"mix{n}", Mix(3 if n == 0 else 8))
    def forward(self, x):
        for n in range(9):
            x = getattr(self, f"mix{n}")(x)
            x = F.max_pool2d(x, 2) if n % 3 == 2 else x
        return x

class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)) for _ in range(2))
        self.sums = nn.ModuleList(Sum() for _ in range(12))
    def forward(self, x):
        for one in self.sums:
            x = one(x)
        return x

class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
    def forward(self, x):
        y = self.norm(self.conv(x))
        y += x
        return y
"""


@pytest.fixture
def nets(cwd, monkeypatch):
    (cwd / "nets_of_blocks.py").write_text(NETS)
    monkeypatch.syspath_prepend(str(cwd))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "nets_of_blocks", raising=False)
    import nets_of_blocks

    return nets_of_blocks


@pytest.mark.parametrize(("make", "kind", "names"), [
    ("vit", "EncoderBlock", [f"encoder.layers.encoder_layer_{n}" for n in range(6)]),
    ("Concatenating", "Mix", ["mix2", "mix5", "mix8"]),
    ("InPlace", "Sum", [f"sums.{n}" for n in range(12)]),
])  # fmt: skip
def test_the_outputs_of_blocks_are_drawn(nets, cwd, make, kind, names):
    torch.manual_seed(0)
    module = getattr(nets, make)().eval()
    image, seen = torch.rand(1, 3, 32, 32), {}
    copied = copy.deepcopy(module)
    for name in names:
        copied.get_submodule(name).register_forward_hook(
            lambda _, __, output, name=name: seen.update({name: output.clone()})
        )
    copied(image)
    record = ms.featuremaps(module, image)
    assert [(row.name, row.type) for row in record.maps] == [(name, kind) for name in names]
    record.save("maps.safetensors")
    for name, tensor in load_file(cwd / "maps.safetensors").items():
        wanted = seen[name][0]
        if wanted.ndim == 2:  # tokens, the first of which is no position
            wanted = wanted[1:].T.reshape(-1, 4, 4)
        assert_close(tensor, wanted, A_NETWORK)


def test_a_block_that_returns_its_last_layer_is_drawn_once():
    record = ms.featuremaps(nn.Sequential(*(nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU()) for _ in range(3))))
    assert [row.name for row in record.maps] == [f"{n}.{layer}" for n in range(3) for layer in range(2)]


def test_old_grids_go_and_files_of_others_stay(run, cwd):
    run("featuremaps {star} {healthy} -l block1.* --out maps")
    old = {path.name for path in (cwd / "maps").iterdir()}
    (cwd / "maps" / "mine.png").write_text("mine")
    (cwd / "maps" / "000_mine.png").write_text("mine")
    record = run("featuremaps {star} {healthy} -l head --out maps --force --json").json
    (row,) = record["maps"]
    assert row["file"] not in old
    present = {path.name for path in (cwd / "maps").iterdir()}
    assert present == {
        row["file"],
        "contact_sheet.png",
        "report.json",
        "report.html",
        "mine.png",
        "000_mine.png",
    }


class Positions(nn.Module):
    """Blocks that compute a bias from a table, which has no place in the image."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(24))
        self.stem, self.table = nn.Conv2d(3, 4, 1), nn.Linear(1, 1)

    def forward(self, x):
        bias = self.table(torch.linspace(-1, 1, 15)[:, None]).mean()
        x = self.stem(x)
        for one in self.blocks:
            x = one(x) + bias
        return x


def test_rows_are_no_stages_beside_maps():
    module, x = Positions(), torch.rand(1, 3, 8, 8)
    assert "table" not in [row.name for row in ms.featuremaps(module, x).maps]
    (row,) = ms.featuremaps(module, x, layer="table").maps
    assert (row.channels, row.shown, row.problem) == (1, (0,), None)


@pytest.mark.parametrize(
    "name", ["resnet34", *(pytest.param(name, marks=pytest.mark.slow) for name in ("vit_b_16", "swin_t"))]
)
def test_the_suggested_pattern_matches_more_than_one_layer(name, capsys):
    from modelscope_cli.shell.console import PROGRESS

    ms.featuremaps(name, weights="none", device="cpu", progress=PROGRESS)
    pattern = capsys.readouterr().err.partition("for others: --layer ")[2].split()[0]
    assert len(ms.summary(name, weights="none", device="cpu", layer=pattern).layers) > 1


class Dropouts(nn.Module):
    """Dropouts of several kinds, one of which stays in train mode if `is_kept`."""

    def __init__(self, is_kept):
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)
        self.plain, self.maps, self.alpha = nn.Dropout(0.5), nn.Dropout2d(0.5), nn.AlphaDropout(0.5)
        self.kept = nn.Dropout(0.9)
        self.is_kept = is_kept

    def train(self, mode=True):
        super().train(mode)
        self.kept.train(mode or self.is_kept)
        return self

    def forward(self, x):
        x = self.kept(self.maps(self.plain(self.conv(x))))
        return self.last(self.alpha(x.mean((2, 3))))


@pytest.mark.parametrize("is_kept", [False, True])
def test_dropouts_that_return_their_input_are_left_out_with_a_note(is_kept):
    told = []
    model, x = Dropouts(is_kept), torch.randn(1, 3, 8, 8)

    class Notes(type(SILENT)):
        def note(self, text):
            told.append(text)

    record = ms.featuremaps(model, x, progress=Notes())
    assert [row.name for row in record.maps] == ["conv", *["kept"] * is_kept, "last"]
    assert record.not_called == ()
    assert f"without {4 - is_kept} dropout layers: in eval mode they do nothing" in told
    named = ms.featuremaps(model, x, layer="plain")
    assert [row.name for row in named.maps] == ["plain"]
