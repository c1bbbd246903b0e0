"""The first bytes of a file, and what it is when it is no checkpoint. Standard library."""

import shlex
from pathlib import Path

from modelscope_cli.checkpoints.entries import printable
from modelscope_cli.errors import CannotRunError
from modelscope_cli.paths import refuse_endless

CHECKPOINT_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")


def read_head(path: Path) -> bytes:
    """Return the first 512 bytes.

    Raises:
        CannotRunError: a folder, not there, not readable, empty (exit 4).
    """
    if path.is_dir():
        inside = sorted(file for file in path.iterdir() if file.suffix.lower() in CHECKPOINT_SUFFIXES)
        hint = f"--checkpoint {inside[0] if inside else path / 'model.safetensors'}"
        raise CannotRunError(f"checkpoint '{path}' is a folder", hint)
    refuse_endless(path, "checkpoint ")
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except FileNotFoundError as error:
        raise CannotRunError(f"no checkpoint file '{path}'", f"ls {shlex.quote(str(path.parent))}") from error
    except OSError as error:
        message = f"checkpoint '{path}' cannot be read: {error.strerror}"
        raise CannotRunError(message, f"ls -l {path}") from error
    if not head:
        raise CannotRunError(f"checkpoint '{path}' is empty (0 bytes)", remedy(path, head))
    return head


def guess(head: bytes) -> str:
    """Say what a file is that begins so and is no checkpoint."""
    start = head.lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        return "it is a git-lfs pointer to the file"
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page"
    text = head.decode("utf-8", errors="replace").strip()
    line = text.splitlines()[0][:40] if text else ""
    is_text = line.isprintable() and "�" not in line
    return f"it is text, '{line}'" if is_text else "its first bytes are of no known format"


def remedy(path: Path, head: bytes) -> str:
    """Say how to get the real file."""
    if head.lstrip().startswith(b"version https://git-lfs"):
        return f"git lfs pull --include {path.name}"
    return "get the file again, as binary; supported are " + " ".join(CHECKPOINT_SUFFIXES)


def damaged(path: Path, reason: object) -> CannotRunError:
    """Return the error for a file whose content contradicts itself."""
    message = f"checkpoint '{path}' is damaged or cut short: {printable(str(reason))[:200]}"
    return CannotRunError(message, f"get the file again; this one has {path.stat().st_size} bytes")
