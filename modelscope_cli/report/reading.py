"""Read saved results: a page, a JSON file, or the folder of a command."""

import json
import math
import shlex
from os import PathLike
from pathlib import Path
from typing import Any

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.output_files import write_text
from modelscope_cli.paths import look_for, refuse_endless
from modelscope_cli.plain_text import in_one_line
from modelscope_cli.records import page_data
from modelscope_cli.records.display import Shown
from modelscope_cli.records.documents import NotADocumentError, restore
from modelscope_cli.records.page_data import NotAPageError, extract
from modelscope_cli.records.stats import N_OF_WEIGHTS, N_PROJECTIONS, StatsRecord
from modelscope_cli.report.formats import DOCUMENT

_MOST_BYTES = 64 << 20  # of a fingerprint

PAGE = "report.html"
"""The name of a page in the folder of a result."""

RESULT_FILES = (DOCUMENT, PAGE)
"""What every folder of a result holds, in addition to its images and tables."""


def read(path: str | PathLike[str]) -> Shown:
    """Return the record that was kept in a page, in a file of JSON, or in the folder of a command.

    It is the record that the command returned: it has rows, `to_dict()`, `plot()`, `to_html()`. Numbers that are
    not finite come back as NaN, which is all that JSON keeps of them.

    Raises:
        UsageError: a page that compares two results (exit 2 on the command line).
        CannotRunError: there is no such file, it cannot be read, or it is not a result of modelscope (exit 4).
    """
    records = read_all(path)
    if len(records) > 1:
        names = " and ".join(_typed(one) for one in records)
        raise UsageError(
            f"'{path}' compares two results: {names}", "read one of the pages or folders it was made from"
        )
    return records[0]


def read_all(path: str | PathLike[str]) -> list[Shown]:
    """Return the records in a file: two for a page that compares, else one."""
    file = result_file(Path(path))
    try:
        return [restore(document) for document in _documents(file)]
    except NotAPageError as error:
        raise CannotRunError(f"'{file}' is not a page of modelscope: {error}", _look(file)) from error
    except NotADocumentError as error:
        raise CannotRunError(f"'{file}' is not a result of modelscope: {error}", _look(file)) from error
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
        raise CannotRunError(f"folder '{path}' holds no {DOCUMENT} and no {PAGE}", _look(path))
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


def _documents(file: Path) -> list[dict[str, Any]]:
    data = file.read_bytes()
    if data.lstrip()[:1] == b"<":
        return extract(data)
    document = json.loads(data.decode("utf-8"))
    return [document]


def _typed(record: Any) -> str:
    run = getattr(record, "run", None)
    return f"{record.command} of {run.model.name}" if run else record.command


def _look(path: Path) -> str:
    return f"ls -l {shlex.quote(str(path))}"


def is_fingerprint(path: object) -> bool:
    """Tell whether a file holds a fingerprint, by its beginning."""
    if not isinstance(path, str | PathLike) or not Path(path).is_file():
        return False
    with Path(path).open("rb") as file:
        head = file.read(200)
    return b'"modelscope/stats/' in head and b'"fingerprint"' in head


def write_fingerprint(record: StatsRecord, path: Path) -> None:
    """Write the record with its fingerprint in front, by which the file is known."""
    document = record.to_dict()
    first = {key: document[key] for key in ("schema", "fingerprint")}
    write_text(path, json.dumps({**first, **document}, allow_nan=False) + "\n")


def read_fingerprint(path: str | PathLike[str]) -> StatsRecord:
    """Return the record in a file of a fingerprint."""
    file, again = Path(path), "modelscope stats MODEL IMAGE --fingerprint FILE   makes one"
    if file.stat().st_size > _MOST_BYTES:
        raise CannotRunError(f"'{path}' is larger than any fingerprint, {_MOST_BYTES:,} bytes", again)
    try:
        record = restore(json.loads(file.read_bytes()))
    except (ValueError, RecursionError) as error:
        raise CannotRunError(
            f"the fingerprint '{path}' is damaged: {in_one_line(error, 200)}", again
        ) from error
    printed = record.fingerprint if isinstance(record, StatsRecord) else None
    if not isinstance(record, StatsRecord) or printed is None:
        raise CannotRunError(f"'{path}' contains no fingerprint", again)
    outputs = (*printed.inputs, *printed.layers)
    prints = [(N_PROJECTIONS, one.norm, one.projections) for one in outputs]
    prints += [(N_OF_WEIGHTS, one.norm, one.projections) for one in printed.weights.values()]
    if any(len(few) != n or not all(map(math.isfinite, (norm, *few))) for n, norm, few in prints):
        raise CannotRunError(f"the fingerprint '{path}' is damaged: projections that are not numbers", again)
    return record
