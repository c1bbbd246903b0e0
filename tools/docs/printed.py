"""Commands that are shown with what they print: found on a page, run on a terminal, renewed."""

import fcntl
import os
import pty
import re
import shlex
import struct
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import modelscope_cli as ms
from modelscope_cli.shell.app import run
from tools.docs.steps import Step, steps

WIDTH = 84  # columns of the terminal
# `$ ` and a command, which may go on behind a backslash, and below it what it prints.
BLOCK = re.compile(r"```console\n\$ ((?:.*\\\n)*.*)\n([^`]*)```")
_SETTINGS = {"NO_COLOR": "1", "MSCOPE_OFFLINE": "1", "TERM": "xterm", "COLUMNS": str(WIDTH)}


def arguments(line: str) -> list[str]:
    """Return what is typed behind `modelscope`."""
    return shlex.split(line.replace("\\\n", " "))[1:]


def renew_outputs(page: str) -> str:
    """Return the page with what its commands print now; its steps are done in order, in one folder.

    Commands alone and programs are left to the tests.
    """
    if not BLOCK.search(page):
        return page
    with fresh_folder() as folder, settings(folder):
        printed = [_done(step, folder) for step in steps(page)]
    texts = iter([text for text in printed if text is not None])
    return BLOCK.sub(lambda block: f"```console\n$ {block[1]}\n{next(texts)}```", page)


def _done(step: Step, folder: Path) -> str | None:
    """Write the file of a step, or return what its command prints."""
    write_file(step, folder)
    return on_terminal(arguments(step.what)) if step.kind == "shown" else None


def write_file(step: Step, folder: Path) -> None:
    """Write the file of a step, if it is one."""
    if step.kind == "file":
        target = folder / step.what
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(step.text, encoding="utf-8")


@contextmanager
def fresh_folder() -> Iterator[Path]:
    """Give a folder in which `modelscope demo` was typed, and make it the current one for that time."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        os.chdir(folder)
        ms.demo()
        try:
            yield folder
        finally:
            os.chdir(before)


@contextmanager
def settings(folder: Path) -> Iterator[None]:
    """Set the environment of a plain terminal, without network and without weights that happen to be there."""
    kept = dict(os.environ)
    clock, time.process_time = time.process_time, lambda: 0.0  # `watch` records as many steps on any machine
    os.environ.update(_SETTINGS, TORCH_HOME=str(folder))
    try:
        yield
    finally:
        time.process_time = clock
        os.environ.clear()
        os.environ.update(kept)


def on_terminal(typed: list[str]) -> str:
    """Return what a command prints on a terminal.

    Raises:
        RuntimeError: it ended with neither 0 nor 1, which says that something was found.
    """
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 50, WIDTH, 0, 0))
    parts: list[bytes] = []
    listener = threading.Thread(target=lambda: parts.extend(_read(reader)))
    listener.start()
    with open(writer, "w", encoding="utf-8") as terminal, redirect_stdout(terminal):
        code = run(typed)
    listener.join()
    os.close(reader)
    if code > 1:
        raise RuntimeError(f"modelscope {shlex.join(typed)} ended with {code}")
    text = b"".join(parts).decode().replace("\r\n", "\n")
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def _read(reader: int) -> Iterator[bytes]:
    while True:
        try:
            part = os.read(reader, 1 << 16)
        except OSError:  # the other end of the terminal is closed
            return
        if not part:
            return
        yield part
