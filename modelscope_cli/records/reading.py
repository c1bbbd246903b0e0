"""Read saved results: a page, a JSON file, or the folder of a command."""

import json
import shlex
from os import PathLike
from pathlib import Path

from modelscope_cli.errors import CannotRunError
from modelscope_cli.paths import look_for, refuse_endless
from modelscope_cli.records import page_data
from modelscope_cli.records.display import Shown
from modelscope_cli.records.documents import NotADocumentError, restore
from modelscope_cli.records.page_data import NotAPageError, extract

DOCUMENT, PAGE = RESULT_FILES = ("report.json", "report.html")
"""What every folder of a result holds, in addition to its images and tables."""

RUN = "run.json"
"""What the blocks in a folder were computed from; see `analysis.blocks`."""


def read(path: str | PathLike[str]) -> Shown:
    """Return the record stored in a page, a JSON file, or the folder of a command.

    It is the record that the command returned: it has rows, `to_dict()`, `plot()`, `to_html()`. Numbers that are
    not finite come back as NaN, which is all that JSON keeps of them.

    Raises:
        CannotRunError: there is no such file, it cannot be read, or it is not a modelscope result (exit 4).
    """
    file = result_file(Path(path))
    try:
        data = file.read_bytes()
        is_of_page = data.lstrip()[:1] == b"<"
        return restore(extract(data)[0] if is_of_page else json.loads(data.decode("utf-8")))
    except NotAPageError as error:
        raise CannotRunError(f"'{file}' is not a modelscope page: {error}", _look(file)) from error
    except NotADocumentError as error:
        raise CannotRunError(f"'{file}' is not a modelscope result: {error}", _look(file)) from error
    except ValueError as error:
        raise CannotRunError(f"'{file}' is neither a page nor JSON", _look(file)) from error
    except OSError as error:
        raise CannotRunError(f"cannot read '{file}': {error.strerror}", _look(file)) from error


def result_file(path: Path) -> Path:
    """Return the file of a result, given as a file or a folder."""
    refuse_endless(path)
    if not path.is_dir():
        if not path.exists():
            raise CannotRunError(f"there is no '{path}'", look_for(path))
        return path
    result = in_folder(path)
    if result is None:
        raise CannotRunError(f"folder '{path}' contains neither {DOCUMENT} nor {PAGE}", _look(path))
    return result


def in_folder(folder: Path) -> Path | None:
    """Return the file of the result in a folder; None if there is none."""
    files = (folder / name for name in RESULT_FILES)
    return next((file for file in files if file.is_file()), None)


def is_page(path: str | PathLike[str]) -> bool:
    """Tell whether a file is a page of modelscope, by its content."""
    file = Path(path)
    if file.suffix.lower() not in (".html", ".htm") or not file.is_file():
        return False
    try:
        return page_data.is_page(file.read_bytes())
    except OSError:
        return False


def n_results(path: str | PathLike[str]) -> int:
    """Return how many results a page has; 0 for any other file."""
    try:
        return len(extract(Path(path).read_bytes())) if is_page(path) else 0
    except NotAPageError:  # a page without a result
        return 0


def is_result(path: str | PathLike[str]) -> bool:
    """Tell whether a file is a saved result, not weights or the like, without reading all of it."""
    file = Path(path)
    if file.is_dir():
        return in_folder(file) is not None
    if file.suffix.lower() in (".html", ".htm"):
        return file.is_file()
    if file.suffix.lower() != ".json" or not file.is_file():
        return False
    try:
        with file.open("rb") as stream:
            return b'"modelscope/' in stream.read(200)
    except OSError:
        return False


def _look(path: Path) -> str:
    return f"ls -l {shlex.quote(str(path))}"
