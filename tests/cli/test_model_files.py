"""A file or folder of a model, of whatever format, is never an image of the default model."""

import re
from pathlib import Path

import pytest
import torch
from PIL import Image

HEADS = {
    "model.onnx": b"\x08\x07\x12\x07pytorch\x1a\x032.0",
    "no_suffix": b"\x08\x08\x12\x07pytorch\x1a\x032.0",
    "model.h5": b"\x89HDF\r\n\x1a\n" + b"\0" * 64,
    "model.gguf": b"GGUF\x03\0\0\0",
    "model.mindir": b"\x0a\x07\x99\x01",
    "model.ckpt": b"not a checkpoint",
    "model.yaml": b"backbone: resnet",
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (32, 32), "red").save("cat.jpg")
    for name, head in HEADS.items():
        Path(name).write_bytes(head)
    for name in ("saved", "core.mlpackage", "weights"):
        Path(name).mkdir()
    Path("saved/saved_model.pb").write_bytes(b"\x08\x01")
    torch.save({"fc.weight": torch.ones(2, 2)}, "weights/model.pt")
    return tmp_path


FOLDERS = ("saved", "core.mlpackage", "weights")
UNKNOWN = ("model.mindir", "model.ckpt", "model.yaml")  # behind an image they may be anything
LINES = ("predict {} cat.jpg", "stats {} cat.jpg", "explain cat.jpg {}", "summary {}")


@pytest.mark.parametrize("word", [*HEADS, *FOLDERS])
def test_a_model_of_another_format_is_refused_for_what_it_is(files, refused, word):
    for line in (line for line in LINES if word not in UNKNOWN or "jpg {}" not in line):
        message, _ = refused(line.format(word), 4)
        assert f"'{word}" in message
        assert "resnet34" not in message


@pytest.mark.parametrize("word", ["model.onnx", "model.gguf", "model.h5"])
def test_beside_a_model_it_is_not_an_image_either(files, refused, word):
    message, hint = refused(f"predict resnet18 cat.jpg {word}", 2)
    assert message == f"error: '{word}' contains a model, not an image"
    assert hint == "hint: modelscope predict resnet18 cat.jpg"
    damaged = "ONNX file 'model.onnx' is damaged"  # the others are not read at all
    assert (damaged if word == "model.onnx" else "is not a checkpoint") in refused(
        f"diff resnet18 {word} --weights none", 4
    )[0]


@pytest.mark.parametrize("suffix", ["", ".onnx", ".weights"])
def test_an_image_by_any_name_is_an_image(files, run, suffix):
    Path("cat.jpg").rename(f"cat{suffix}")
    assert run(f"stats cat{suffix} {{tiny}} --size 32").rows


@pytest.mark.parametrize("command", ["summary", "stats", "check", "predict {samples}/star.png", "train"])
def test_a_checkpoint_without_a_model_names_none_that_was_not_typed(run, cwd, command):
    torch.save(torch.nn.Linear(2, 2).state_dict(), "own.pt")
    told = run(f"{command} -c own.pt", expect=None)
    assert told.code in (2, 4)
    assert "resnet" not in told.err
    assert re.search(r"--model FILE.py:NAME --checkpoint own.pt( +#.*)?$", told.err, re.M)
