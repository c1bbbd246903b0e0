"""`modelscope diff NET FILE` of ONNX files that are not an export of the net, or not a sound one: a result or a
sentence with a hint each, never a traceback."""

import numpy as np
import pytest
import torch

from modelscope_cli.shell.app import run

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
faults = pytest.importorskip("onnx_faults")

SOURCE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.fc = nn.Conv2d(3, 4, 3, stride=2), nn.Linear(4, classes)

    def forward(self, x):
        return self.fc(self.conv(x).relu().mean((2, 3)))


class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 6, 1), nn.Linear(6, 7)

    def forward(self, x):
        return self.last(self.first(x).amax((2, 3)))


class Two(Net):
    def forward(self, x, y):
        return super().forward(x) + y


class Detector(Net):
    def forward(self, x):
        scores = super().forward(x).flatten().sigmoid()
        order = scores.argsort(descending=True)
        return {"boxes": scores[order][:, None] * torch.arange(4.0), "labels": order, "scores": scores[order]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bad") / "inside"
    path.mkdir()
    (path / "nets.py").write_text(SOURCE)
    namespace: dict = {}
    exec(SOURCE, namespace)
    x, y = torch.randn(1, 3, 16, 16), torch.randn(1, 5)
    with torch.random.fork_rng():
        nets = {name: namespace[name]().eval() for name in ("Net", "Other", "Two", "Detector")}
    for name, net in nets.items():
        faults.export(net, (x, y) if name == "Two" else x, path / f"{name}.onnx", dynamo=False)
    dynamic = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}
    faults.export(nets["Net"], x, path / "dynamic.onnx", dynamo=False, **dynamic)
    faults.export(nets["Net"].half(), x.half(), path / "half.onnx", dynamo=False)
    for change in (classes, opset, beside, outside):
        file = onnx.load(path / "Net.onnx")
        change(file)
        onnx.save(file, path / f"{change.__name__}.onnx")
    (path / "weights.bin").write_bytes(bytes(8))
    whole = (path / "Net.onnx").read_bytes()
    for n, size in enumerate((0, 50, len(whole) // 2, len(whole) - 1)):
        (path / f"cut{n}.onnx").write_bytes(whole[:size])
    (path / "text.onnx").write_text("not a model " * 9)
    return path


def classes(file):
    for name in ("fc.weight", "fc.bias"):
        faults.put(file, name, np.roll(faults.values(file, name), 2, 0))


def opset(file):
    file.opset_import[0].version = 999


def beside(file, location="weights.bin"):
    tensor = faults.stored(file, "conv.weight")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)


def outside(file):
    beside(file, "../weights.bin")


@pytest.mark.parametrize(("line", "code", "words"), [
    ("Net Net.onnx", 0, "first divergence: none"),
    ("Net Other.onnx", 1, "none of the 2 layers of A is in B"),
    ("Two Net.onnx --input x=1,3,16,16 --input y=1,5", 4, "takes the inputs"),
    ("Net Two.onnx", 4, "takes the inputs"),
    ("Net classes.onnx", 1, "classes in another order"),
    ("Net half.onnx", 1, "float16"),
    ("Net dynamic.onnx --input-shape 3,3,16,16", 0, "first divergence: none"),
    ("Net Net.onnx --input-shape 3,3,16,16", 0, "first divergence: none"),
    ("Net Net.onnx --input-shape 1,3,20,20", 4, "takes 1x3x16x16"),
    ("Net opset.onnx", 4, "999"),
    ("Net beside.onnx", 4, "is cut short"),
    ("Net outside.onnx", 4, "is outside its folder"),
    ("Detector Detector.onnx", 0, "first divergence: none"),
    ("Net Detector.onnx", 1, "2 same, 1 not tested"),
    ("Net nowhere.onnx", 4, "no ONNX file"),
    ("Net text.onnx", 4, "is not an ONNX file"),
    ("Net cut0.onnx", 4, "is empty"),
    *((f"Net cut{n}.onnx", 4, "cut short") for n in (1, 2, 3)),
])  # fmt: skip
def test_each_has_a_result_or_a_sentence(line, code, words, folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    shape = [] if "--input" in line else ["--input-shape", "1,3,16,16"]
    net, *rest = line.split()
    assert run(["diff", f"nets.py:{net}", *rest, *shape]) == code
    out, errors = capfd.readouterr()
    assert words in " ".join((out + errors).split())
    assert "Traceback" not in errors
    assert ("hint: " in errors) == (code == 4)
