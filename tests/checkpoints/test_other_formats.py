"""What is not a checkpoint is named by its content, and a sound file is never called damaged."""

import bz2
import gzip
import io
import lzma
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from modelscope_cli.checkpoints.reading import read_contents
from modelscope_cli.checkpoints.tensors import read_checkpoint
from modelscope_cli.errors import CannotRunError

SUFFIXES = ("", ".pt", ".bin")


def gguf() -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 1, 2) + bytes(200)


def tar() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("storages"))
    return packed.getvalue()


def zipped(*names: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in names:
            archive.writestr(name, b"{}")
    return packed.getvalue()


def npy() -> bytes:
    packed = io.BytesIO()
    np.save(packed, np.ones(3))
    return packed.getvalue()


FORMATS: dict[str, tuple[Callable[[], bytes], str]] = {
    "gguf": (gguf, "a llama.cpp GGUF file"),
    "hdf5": (lambda: b"\x89HDF\r\n\x1a\n" + bytes(90), "an HDF5 file"),
    "gzip": (lambda: gzip.compress(b"x" * 300), "compressed by gzip"),
    "bzip2": (lambda: bz2.compress(b"x" * 300), "compressed by bzip2"),
    "xz": (lambda: lzma.compress(b"x" * 300), "compressed by xz"),
    "tar": (tar, "a tar archive"),
    "npy": (npy, "a NumPy array (.npy)"),
    "onnx": (lambda: b"\x08\x08\x12\x07pytorch\x1a\x052.4.0:\x80\x01", "an ONNX model"),
    "tflite": (lambda: b"\x1c\0\0\0TFL3" + bytes(40), "a TensorFlow Lite model"),
}


def refusal(path: Path) -> CannotRunError:
    """Return what both doors say, which is the same."""
    with pytest.raises(CannotRunError) as caught:
        read_contents(path)
    with pytest.raises(CannotRunError) as again:
        read_checkpoint(path)
    assert caught.value.message == again.value.message
    assert "damaged" not in caught.value.message
    assert "get the file again" not in (caught.value.hint or "")
    return caught.value


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", FORMATS)
def test_files_of_other_programs(tmp_path: Path, kind: str, suffix: str) -> None:
    make, words = FORMATS[kind]
    (tmp_path / f"a{suffix}").write_bytes(make())
    assert f"is not a checkpoint: it is {words}" in refusal(tmp_path / f"a{suffix}").message


@pytest.mark.parametrize(("names", "words"), [
    (["[Content_Types].xml", "word/document.xml"], "an Office document"),
    (["META-INF/MANIFEST.MF"], "a Java archive"),
    (["metadata.json", "config.json", "model.weights.h5"], "a model of Keras"),
    (["notes/a.txt"], "a zip archive without weights ('notes/a.txt')"),
])  # fmt: skip
def test_zip_archives_of_other_programs(tmp_path: Path, names: list[str], words: str) -> None:
    (tmp_path / "a.pt").write_bytes(zipped(*names))
    assert f"cannot be read: it is {words}" in refusal(tmp_path / "a.pt").message


def test_joblib(tmp_path: Path) -> None:
    joblib = pytest.importorskip("joblib")
    joblib.dump({"coef": np.ones((3, 4))}, tmp_path / "b.joblib", compress=3)
    assert "compressed by zlib, as joblib does" in refusal(tmp_path / "b.joblib").message


def test_arrays_are_no_checkpoint(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", w=np.ones(3))
    assert "it is an archive of NumPy arrays" in refusal(tmp_path / "a.npz").message
    (tmp_path / "b.pkl").write_bytes(pickle.dumps({"w": np.ones(3)}))
    assert "it is a pickle that torch.save did not write" in refusal(tmp_path / "b.pkl").message
