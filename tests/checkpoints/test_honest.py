"""Files of honest writers are never called dangerous, and what is said of `weights_only` is what torch does."""

import argparse
import array
import collections
import contextlib
import datetime
import decimal
import functools
import http
import importlib
import inspect
import io
import ipaddress
import operator
import pickle
import platform
import random
import re
import sys
import types
import uuid
import zoneinfo
from pathlib import Path

import hostile
import numpy as np
import pytest
import torch
import torchvision
from torch import nn
from torch.nn.utils.rnn import pack_sequence as packed
from torchvision.transforms import InterpolationMode

from modelscope_cli.checkpoints.safety.known_names import WEIGHTS_ONLY
from modelscope_cli.checkpoints.safety.scan import scan_file
from modelscope_cli.records.weights import CALL, DANGEROUS, KNOWN, UNKNOWN

pytestmark = pytest.mark.filterwarnings("ignore")

# What Lightning, timm, transformers, accelerate, fastai and others put into their files, and whether it is a class.
STAND_INS = {
    "pytorch_lightning.utilities.parsing": "AttributeDict",
    "omegaconf.dictconfig": "DictConfig",
    "transformers.training_args": "TrainingArguments",
    "accelerate.state": "PartialState",
    "deepspeed.runtime.fp16.loss_scaler": "LossScaler",
    "timm.models.vision_transformer": "VisionTransformer",
    "fastai.vision.augment": "Flip",
    "fastcore.foundation": "L",
    "ultralytics.nn.tasks": "DetectionModel",
    "models.yolo": "Model",
    "mmengine.logging.history_buffer": "HistoryBuffer",
    "sklearn.tree._classes": "DecisionTreeClassifier",
}


def stand_in(module: str, name: str) -> type:
    return type(name, (), {"__module__": module, "__qualname__": name})


@pytest.fixture
def stand_ins(monkeypatch) -> dict[str, type]:
    """Modules with those classes, as if their packages were here."""
    found = {}
    for module, name in STAND_INS.items():
        parts = module.split(".")
        for n in range(1, len(parts) + 1):
            part = ".".join(parts[:n])
            if part not in sys.modules:
                monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
        found[f"{module}.{name}"] = stand_in(module, name)
        monkeypatch.setattr(sys.modules[module], name, found[f"{module}.{name}"], raising=False)
    return found


def module() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(2, 2))


def with_attributes() -> torch.Tensor:
    tensor = nn.Parameter(torch.ones(2))
    tensor.tag = "x"
    return tensor


def training_state() -> dict[str, object]:
    optimizer = torch.optim.Adam(module().parameters())
    return {
        "model": module().state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 10).state_dict(),
        "rng": [
            torch.get_rng_state(),
            np.random.default_rng(0).bit_generator.state,
            random.Random(0).getstate(),
        ],
        "args": argparse.Namespace(lr=0.1, out=Path("runs")),
        "best": np.float64(0.5),
        "when": datetime.datetime(2024, 1, 1),
        "names": np.array(["a", None], dtype=object),
        "counts": collections.Counter("ab"),
    }


CONTENTS = {
    "state": lambda: module().state_dict(),
    "module": module,
    "training": training_state,
    "resnet": lambda: torchvision.models.resnet18(num_classes=2),
    "transforms": lambda: torchvision.transforms.Compose(
        [torchvision.transforms.Resize(3), torchvision.transforms.ToTensor()]
    ),
    "transformer": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 1),
    "parameter": with_attributes,
    "sparse": lambda: {"a": torch.eye(3).to_sparse(), "b": torch.eye(3).to_sparse_csr()},
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(3, 2)], layout=torch.jagged),
    "views": lambda: {"c": torch.tensor([1 + 2j]).conj(), "n": torch.tensor([1 + 2j]).conj().imag},
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "meta": lambda: torch.empty(2, device="meta"),
    "partial": lambda: {"w": torch.ones(1), "norm": functools.partial(nn.LayerNorm, eps=1e-6)},
    "defaults": lambda: collections.defaultdict(list, a=[torch.ones(1)]),
}
WAYS = {"zip": {}, "old": {"_use_new_zipfile_serialization": False}, "protocol 4": {"pickle_protocol": 4}}


def resolved(name: str) -> object:
    parts = name.split(".")
    for n in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:n]))
        except ImportError:
            continue
        return functools.reduce(getattr, parts[n:], found)
    raise ImportError(name)


def assert_is_torchs_verdict(path: Path) -> None:
    """The verdict is what torch does: at once, once the names are allowed, or not even then."""
    verdict = scan_file(path).weights_only
    allowed = torch.serialization.safe_globals([(resolved(name), name) for name in verdict.names])
    outcome = contextlib.nullcontext() if verdict.loads != "no" else pytest.raises(Exception, match=r".")
    with allowed, outcome:
        torch.load(path, weights_only=True)
    if verdict.loads == "with names":
        # torch registers names of its own when it makes a nested tensor
        registered = torch.serialization.get_safe_globals()
        torch.serialization.clear_safe_globals()
        try:
            with pytest.raises(pickle.UnpicklingError):
                torch.load(path, weights_only=True)
        finally:
            torch.serialization.add_safe_globals(registered)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("content", CONTENTS)
def test_files_of_torch(tmp_path, content, way):
    path = tmp_path / "a.pt"
    torch.save(CONTENTS[content](), path, **WAYS[way])
    safety = scan_file(path)
    assert safety.rank != DANGEROUS, safety.dangerous
    assert safety.errors == ()
    assert safety.unread == ()
    if content in ("state", "module", "training", "parameter", "sparse", "views", "transformer", "defaults"):
        assert safety.rank == KNOWN, safety.suspects
    assert_is_torchs_verdict(path)


@pytest.mark.parametrize("call", [b"float32\n(", b"FloatStorage\n(", b"device\n(X\x03\0\0\0cpu"])
def test_calls_of_names_that_may_be_named(tmp_path, call):
    path = tmp_path / "a.pt"
    path.write_bytes(hostile.in_zip(pickle.PROTO + b"\x02ctorch\n" + call + b"tR."))
    assert (scan_file(path).weights_only.loads == "no") == (b"device" not in call)
    assert_is_torchs_verdict(path)


@pytest.mark.parametrize("protocol", [2, 4])
def test_files_of_other_writers(tmp_path, stand_ins, protocol):
    for number, (name, kind) in enumerate(stand_ins.items()):
        thing = kind()
        thing.value = [kind, torch.ones(1)]
        path = tmp_path / f"{number}.pt"
        torch.save({"state_dict": {"w": torch.ones(2)}, "extra": thing}, path, pickle_protocol=protocol)
        safety = scan_file(path)
        assert safety.rank != DANGEROUS, safety.dangerous
        assert name in safety.foreign
        assert_is_torchs_verdict(path)


VALUES = {
    **({"zone": lambda: zoneinfo.ZoneInfo("UTC")} if zoneinfo.available_timezones() else {}),
    "status": lambda: http.HTTPStatus.OK,
    "address": lambda: ipaddress.ip_address("::1"),
    "uname": platform.uname,
    "getter": lambda: operator.itemgetter("a", 1),
    "hint": lambda: list[int],
    "context": decimal.getcontext,
    "pattern": lambda: re.compile("a", re.I),
    "id": uuid.uuid4,
    "iterator": lambda: iter([1]),
    "array": lambda: array.array("f", [1.0]),
    "random": random.Random,
    "partial": lambda: functools.partial(nn.LayerNorm, eps=1e-6),
    "signature": lambda: inspect.signature(len),
    "buffer": lambda: io.BytesIO(b"a"),
    "chain": lambda: collections.ChainMap({"a": 1}),
    "end": lambda: KeyError("a"),
    "masked": lambda: np.ma.array([1, 2], mask=[0, 1]),
    "record": lambda: np.rec.array([(1, 2.0)], dtype="i4,f8"),
    "generator": torch.Generator,
    "packed": lambda: packed([torch.ones(2)]),
    "storage": lambda: torch.ones(2).untyped_storage(),
    "mode": lambda: InterpolationMode.BICUBIC,
}


@pytest.mark.parametrize("value", VALUES)
def test_values_beside_weights_are_known(tmp_path, value):
    for protocol in (2, 4):
        torch.save(
            {"w": torch.ones(1), "beside": VALUES[value]()}, tmp_path / "a.pt", pickle_protocol=protocol
        )
        safety = scan_file(tmp_path / "a.pt")
        assert (safety.rank, safety.errors) == (KNOWN, ()), safety.suspects


def test_a_whole_model_is_an_object_and_no_call(tmp_path):
    for build in ("mobilenet_v3_small", "swin_t"):
        with torch.device("meta"):
            model = torchvision.models.get_model(build)
        torch.save(model, tmp_path / "a.pt")
        safety = scan_file(tmp_path / "a.pt")
        assert (safety.rank, safety.calls, safety.fails(CALL)) == (UNKNOWN, (), False), safety.suspects


def test_plain_pickles_and_numpy(tmp_path):
    state = {"w": torch.ones(3), "n": np.ones(2)}
    for protocol in range(2, 6):
        (tmp_path / "a.pkl").write_bytes(pickle.dumps(state, protocol))
        safety = scan_file(tmp_path / "a.pkl")
        assert (safety.rank, safety.errors, safety.unread) == (KNOWN, (), ()), safety
    np.savez(tmp_path / "a.npz", a=np.ones(2), o=np.array([None, "a"], dtype=object))
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object))
    for name in ("a.npz", "a.npy"):
        assert (scan_file(tmp_path / name).rank, len(scan_file(tmp_path / name).pickles)) == (KNOWN, 1)


def test_torchscript_is_named(tmp_path):
    torch.jit.script(nn.Sequential(nn.Linear(2, 2))).save(tmp_path / "a.pt")
    safety = scan_file(tmp_path / "a.pt")
    assert safety.rank != DANGEROUS
    assert "TorchScript" in safety.weights_only.reason
    assert_is_torchs_verdict(tmp_path / "a.pt")


def test_the_list_of_names_is_torchs_own():
    allowed = torch._weights_only_unpickler._get_allowed_globals()
    missing = {name for name in allowed if not name.startswith("torch.distributed.")} - WEIGHTS_ONLY
    assert missing == set()
