"""One line about an exception out of the user's own code: what, and where in their files."""

import shlex
import sys
import sysconfig
import traceback
from pathlib import Path

from modelscope_cli.errors import CannotRunError
from modelscope_cli.plain_text import in_one_line

_OURS = Path(__file__).parents[1]


def user_code_failed(doing: str, error: BaseException) -> CannotRunError:
    """Describe `error`, raised while `doing`, by its type, message and the innermost line of their code."""
    message = in_one_line(error, 300)
    what = f"{type(error).__name__}: {message}" if message else type(error).__name__
    where = _innermost_line(error)
    at = f" at {where[0]}:{where[1]}" if where else ""
    hint = f"python {shlex.quote(where[0])}" if where else "--debug   shows the traceback"
    return CannotRunError(f"{doing} raised {what}{at}", hint)


def _innermost_line(error: BaseException) -> tuple[str, int] | None:
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return error.filename, error.lineno
    frames = [
        (frame.filename, frame.lineno or 0)
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and not Path(frame.filename).is_relative_to(_OURS)
    ]
    theirs = [frame for frame in frames if not _is_library(frame[0])]
    found = theirs or frames
    return found[-1] if found else None


def _is_library(filename: str) -> bool:
    paths = sysconfig.get_paths()
    libraries = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")} | {sys.prefix}
    return any(Path(filename).is_relative_to(library) for library in libraries)
