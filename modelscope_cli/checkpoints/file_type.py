"""Identify a file by its first bytes and its name. Standard library."""

import codecs
import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from modelscope_cli.checkpoints.entries import UnsupportedError
from modelscope_cli.errors import CannotRunError, quoted
from modelscope_cli.paths import look_for, refuse_endless
from modelscope_cli.plain_text import plain

CHECKPOINT_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
INDEX = ".index.json"  # of the shards of a checkpoint
_N_HEAD = 512
_LFS = b"version https://git-lfs"
# Magic bytes of other formats: offset, bytes, description.
_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"GGUF", "a llama.cpp GGUF file"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file, as written by Keras"),
    (0, b"\x93NUMPY", "a NumPy array (.npy)"),
    (4, b"TFL3", "a TensorFlow Lite model"),
    (0, b"\x1f\x8b", "compressed by gzip"),
    (0, b"BZh", "compressed by bzip2"),
    (0, b"\xfd7zXZ\x00", "compressed by xz"),
    (0, b"\x28\xb5\x2f\xfd", "compressed by zstd"),
    (257, b"ustar", "a tar archive"),
    (0, b"\x7fELF", "a program or library"),
    (0, b"%PDF", "a PDF document"),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"GIF8", "a GIF image"),
    (0, b"PK\x03\x04", "a zip archive"),
)
# Other model formats by suffix, including those without magic bytes.
MODEL_SUFFIXES = {
    **dict.fromkeys((".onnx", ".ort"), "an ONNX model"),
    **dict.fromkeys((".h5", ".hdf5", ".keras"), "a Keras model"),
    **dict.fromkeys((".tflite", ".lite"), "a TensorFlow Lite model"),
    **dict.fromkeys((".pb", ".pbtxt"), "a TensorFlow graph"),
    **dict.fromkeys((".gguf", ".ggml"), "a llama.cpp model"),
    **dict.fromkeys((".engine", ".plan", ".trt"), "a TensorRT engine"),
    **dict.fromkeys((".mlmodel", ".mlpackage", ".mlmodelc"), "a Core ML model"),
    **dict.fromkeys((".pkl", ".pickle", ".joblib"), "a pickle"),
    **dict.fromkeys((".pdmodel", ".pdparams", ".pdiparams"), "a PaddlePaddle model"),
    **dict.fromkeys((".caffemodel", ".prototxt"), "a Caffe model"),
    **{".pt2": "a torch.export program", ".pte": "an ExecuTorch program", ".ptl": "a TorchScript program"},
    **{".torchscript": "a TorchScript program", ".msgpack": "a Flax checkpoint"},
}
_OF_MODELS = ("llama.cpp", "Keras", "TensorFlow", "ONNX")
_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


def read_head(path: Path, what: str = "checkpoint") -> bytes:
    """Return the first 512 bytes."""
    if path.is_dir():
        raise CannotRunError(
            f"{what} '{path}' is a folder", _checkpoints_in(path) or f"ls {shlex.quote(str(path))}"
        )
    refuse_endless(path, f"{what} ")
    try:
        with path.open("rb") as file:
            head = file.read(_N_HEAD)
    except FileNotFoundError as error:
        raise CannotRunError(f"no {what.removesuffix(' file')} file '{path}'", look_for(path)) from error
    except OSError as error:
        message = f"{what} '{path}' cannot be read: {error.strerror}"
        raise CannotRunError(message, f"ls -l {shlex.quote(str(path))}") from error
    if not head:
        raise CannotRunError(f"{what} '{path}' is empty (0 bytes)", remedy(path, head))
    return head


def _checkpoints_in(folder: Path) -> str:
    """Return a hint with the first checkpoints in a folder; empty without any."""
    inside = sorted(file for file in folder.iterdir() if file.suffix.lower() in CHECKPOINT_SUFFIXES)
    return f"did you mean {quoted(map(str, inside[:5]))}" if inside else ""


def is_safetensors(head: bytes) -> bool:
    """Tell whether a file begins like safetensors: a length, then JSON."""
    is_spaced = head[8:].lstrip(b" \t\r\n").startswith(b"{") and head[5:8] == b"\0\0\0"
    return head[8:9] == b"{" or is_spaced


def foreign_model(path: Path) -> str | None:
    """Return the kind of non-PyTorch model in a file, by content or name; None for any other file."""
    head = b""
    with suppress(OSError):
        if (path / "saved_model.pb").is_file():
            return "a SavedModel of TensorFlow"
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(_N_HEAD)
    kind = _known(head, path) or ""
    is_of_model = any(word in kind for word in _OF_MODELS)
    return kind if is_of_model else MODEL_SUFFIXES.get(path.suffix.lower())


def guess(head: bytes, *, quoted: bool = True, path: Path | None = None) -> str:
    """Describe a file that is not a checkpoint by its beginning, quoting its first words if it is text."""
    head = head.removeprefix(codecs.BOM_UTF8)
    start = head.lstrip().lower()
    if is_lfs_pointer(head):
        return "it is a git-lfs pointer to the file"
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page (a failed download?)"
    if not head.strip(b"\0"):
        return "it is empty (0 bytes)" if not head else "it is filled with zeros from its first byte"
    kind = _known(head, path)
    named = path and MODEL_SUFFIXES.get(path.suffix.lower())
    if kind or named:
        return f"it is {kind}" if kind else f"its name suggests {named}"
    text = head.decode("utf-8", errors="replace").strip()
    line = text.splitlines()[0][:40] if text else ""
    if not line.isprintable() or "�" in line:
        return "its first bytes do not match any known format"
    return f"it is text, '{line}'" if quoted else "it is text"


def remedy(path: Path, head: bytes) -> str:
    """Return a hint on how to get the real file."""
    if is_lfs_pointer(head):
        return f"git lfs pull --include {shlex.quote(path.name)}"
    if foreign_model(path) is not None:
        return "modelscope summary FILE.py:NAME   a function there that returns the PyTorch model it was made from"
    supported = "supported are " + " ".join(CHECKPOINT_SUFFIXES)
    return supported if _known(head) else f"download the file again, in binary mode; {supported}"


def damaged(path: Path, reason: object, kind: str = "checkpoint") -> CannotRunError:
    """Return the error for an inconsistent file, or for valid content that is not supported."""
    what = plain(_words(reason))[:200]
    if isinstance(reason, UnsupportedError):
        named = MODEL_SUFFIXES.get(path.suffix.lower())
        if kind == "checkpoint" and named not in (None, "a pickle") and path.suffix.lower() != ".pt2":
            return CannotRunError(
                f"'{path}' is not a checkpoint: its name suggests {named}", remedy(path, b"")
            )
        hint = ask_for_tensors(path) if kind == "checkpoint" else f"ls -l {shlex.quote(str(path))}"
        return CannotRunError(f"{kind} '{path}' cannot be read: {what}", hint)
    hint = f"download or save the file again; this one has {path.stat().st_size} bytes"
    return CannotRunError(f"{kind} '{path}' is damaged or truncated: {what}", hint)


def _words(reason: object) -> str:
    """Return the reason, without Python's advice on numbers of thousands of digits."""
    text = str(reason)
    return "a number with thousands of digits" if "set_int_max_str_digits" in text else text


def ask_for_tensors(path: Path) -> str:
    """Return a hint about a file without named tensors, for its author and for anyone else."""
    scan = f"modelscope weights --scan {shlex.quote(str(path))}   says what loading it would run"
    return f"{scan}; torch.save(model.state_dict(), 'model.pt') writes a checkpoint"


def no_tensors(path: Path, keys: Iterable[object] = ()) -> CannotRunError:
    """Return the error for a file without named tensors, with the keys of what is there instead."""
    named = ", ".join(map(repr, [*keys][:5]))
    message = f"checkpoint '{path}' contains no named tensors" + f", but the keys {named}" * bool(named)
    return CannotRunError(message, ask_for_tensors(path))


def _known(head: bytes, path: Path | None = None) -> str | None:
    for at, magic, name in _MAGIC:
        if head[at:].startswith(magic):
            return name
    if head.startswith(_ZLIB):
        return "compressed by zlib, as joblib does"
    named = path and MODEL_SUFFIXES.get(path.suffix.lower())  # other protocol buffers look alike
    return "an ONNX model" if is_onnx(head) and named in (None, "an ONNX model") else None


def is_onnx(head: bytes) -> bool:
    """Tell whether a file begins like a `ModelProto`: version (field 1), then its producer's name or its graph.

    The fields: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
    """
    return (
        len(head) > 3 and head[0] == 0x08 and 1 <= head[1] < 32 and head[2] in (0x12, 0x1A, 0x22, 0x3A, 0x42)
    )


def is_onnx_file(path: Path) -> bool:
    """Tell whether a file is named like an ONNX model."""
    return path.suffix.lower() == ".onnx"


def is_lfs_pointer(head: bytes) -> bool:
    """Tell whether a file is what Git LFS leaves where its content was not fetched."""
    return head.lstrip().startswith(_LFS)


def is_model_name(path: Path) -> bool:
    """Tell whether a name is that of a checkpoint or a model in a binary format."""
    suffix = path.suffix.lower()
    is_binary = suffix in MODEL_SUFFIXES and suffix not in (".pbtxt", ".prototxt")
    return is_binary or suffix in (".npy", ".npz") or is_checkpoint_name(path.name)


def is_checkpoint_name(name: str) -> bool:
    return name.endswith(INDEX) or name.lower().endswith((*CHECKPOINT_SUFFIXES, ".pth.tar"))
