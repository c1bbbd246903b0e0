"""The names of classes, from a file of the user's. Standard library only, so that a bad file is told at once."""

import json
import shlex
from pathlib import Path
from typing import Any

from modelscope_cli.errors import CannotRunError
from modelscope_cli.paths import refuse_endless
from modelscope_cli.records.naming import with_article


def read_labels(path: Path) -> tuple[str, ...]:
    """Return the labels in a file, in the order of the classes.

    A text file has one label a line. JSON is a list of labels, or an object from each index to its label, also in
    the form of ImageNet's class index, `{"0": ["n01440764", "tench"], ...}`.

    Raises:
        CannotRunError: not there, no text, broken JSON, or not such a list (exit 4).
    """
    refuse_endless(path, "labels file ")
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except OSError as error:
        where = shlex.quote(str(path.parent))
        raise CannotRunError(
            f"labels file '{path}' cannot be read: {error.strerror}", f"ls {where}"
        ) from error
    except UnicodeDecodeError as error:
        raise _misread(path, "it is not text") from error
    if not text:
        raise _misread(path, "it is empty")
    if path.suffix.lower() != ".json" and text[0] not in "[{":
        return tuple(line.strip() for line in text.splitlines())
    try:
        return _in_order(json.loads(text))
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).partition("; use sys.")[0].split())
        raise _misread(path, reason) from error


def _in_order(content: Any) -> tuple[str, ...]:
    if isinstance(content, dict):
        by_index = {int(key): value for key, value in content.items() if key.isdecimal()}
        missing = next((index for index in range(len(content)) if index not in by_index), None)
        if missing is not None:
            raise ValueError(f"none of the {len(content)} labels has the index {missing}")
        content = [by_index[index] for index in range(len(by_index))]
    if not isinstance(content, list):
        raise ValueError(f"it holds {with_article(type(content).__name__)}, not a list of labels")
    return tuple(_label(item) for item in content)


def _label(item: Any) -> str:
    name = item[-1] if isinstance(item, list) and item else item
    if not isinstance(name, str):
        raise ValueError(f"'{item}' is not a label")
    return name


def _misread(path: Path, reason: str) -> CannotRunError:
    return CannotRunError(
        f"labels file '{path}' cannot be understood: {reason}", "one label per line, or a JSON list of labels"
    )
