"""Read labels and ground truth: a file, the folders of the images, a mapping or a list. Standard library."""

import csv
import io
import json
import math
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.inputs.files import FileList
from modelscope_cli.paths import look_for, refuse_endless
from modelscope_cli.records.naming import some, with_article

_LABELS_HINT = "one label per line, or a JSON list of labels"


class LabelsError(CannotRunError):
    """The given labels are not one for each class."""


def named_labels(labels: str | PathLike[str] | Sequence[str] | None) -> tuple[tuple[str, ...] | None, str]:
    """Return the names of the classes, and what to call them in a message."""
    if labels is None:
        return None, ""
    if isinstance(labels, str | PathLike) and "," in fspath(labels) and not Path(labels).exists():
        return tuple(name.strip() for name in fspath(labels).split(",")), "the list of labels"
    if isinstance(labels, str | PathLike):
        return read_labels(Path(labels)), f"labels file '{fspath(labels)}'"
    return tuple(labels), "the list of labels"


def read_labels(path: Path) -> tuple[str, ...]:
    """Return the labels in a file, in the order of the classes.

    A text file has one label a line. JSON is a list of labels, or an object from each index to its label, also in
    the form of ImageNet's class index, `{"0": ["n01440764", "tench"], ...}`.
    """
    text = _text_of(path, "labels file", _LABELS_HINT).strip()
    if not text:
        raise _misread(path, "it is empty", "labels file", _LABELS_HINT)
    if path.suffix.lower() != ".json" and text[0] not in "[{":
        return tuple(line.strip() for line in text.splitlines())
    try:
        return _in_order(json.loads(text))
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).partition("; use sys.")[0].split())
        raise _misread(path, reason, "labels file", _LABELS_HINT) from error


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


AUTO, FOLDERS, NONE = "auto", "folders", "none"
NUMBERS_HINT = "--truth none --output-kind embedding   prints the numbers; -o numbers.csv writes them"
_HINT = "lines of 'image,class' or 'image,class|class', or JSON {image: class}"
# Names of the column of the image, in small letters without "_"
_IMAGES = ("image", "file", "filename", "filepath", "imagename", "imagepath", "path", "imageid", "id", "name")
_FLAGS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
Word = str | int
"""A class, by its label or index."""
Words = tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class GivenTruth:
    """The ground truth of every image."""

    name: str  # its name in messages
    images: Sequence[str] | None = None  # the names of the images; None if these are given in their order
    # The classes of each; None if these are the folders
    words: Sequence[Words] | None = None
    root: Path = Path()  # the folder that names in a file are relative to
    is_auto: bool = False  # whether it applies only if every folder has the label of one class
    columns: Words = ()  # the classes above columns of 0 and 1, in their order

    def taken_apart(self, labels: Sequence[str] | None) -> "GivenTruth":
        """Return the same with words such as `red|round` as classes of their own; `labels`: of the model.

        Raises:
            CannotRunError: it is not classes but numbers, such as the truth of a regression.
        """
        known = frozenset(label.casefold() for label in labels or ())
        apart = cache(lambda words: tuple(one for word in words for one in _parts(word, known)))
        words = self.words and [*map(apart, self.words)]
        unknown = {word for own in words or () for word in own if str(word).casefold() not in known}
        kinds = {*map(_is_fraction, unknown)}
        if True in kinds and None not in kinds:
            message = f"{self.name} has numbers, not classes; predict compares classes"
            raise CannotRunError(message, NUMBERS_HINT)
        return replace(self, words=words)

    @property
    def has_several(self) -> bool:
        """Whether at least a tenth of the images have several classes; fewer may do so by mistake."""
        given = self.words or ()
        return 10 * sum(len(words) > 1 for words in given) >= max(len(given), 1)

    def may_hold(self, files: FileList, categories: Sequence[str] | None, activation: str) -> bool:
        """Tell whether to compare: always, but with `auto` only two folders or more of images of one class each."""
        if not self.is_auto:
            return True
        labels = Counter(label.casefold() for label in categories or ())
        if activation != "softmax" or not labels or files.has_given:
            return False
        folders = class_folders(files)
        return len(folders) > 1 and all(labels[folder.casefold()] == 1 for folder in folders)

    def of_images(self, names: Sequence[str], files: FileList) -> list[Words]:
        if self.words is None:
            shared: dict[str, Words] = {}  # one tuple per class, not per image
            folders = map(files.class_of, names)
            return [shared.setdefault(folder, (folder,)) for folder in folders]
        return [self.words[n] for n in self._rows_of(names)]

    def _rows_of(self, names: Sequence[str]) -> Sequence[int]:
        """Look images up by name as given, by path relative to `root`, or by file name."""
        if self.images is None:
            n = len(self.words or ())
            if n != len(names):
                message = f"{self.name} has {n} entries, but there are {len(names)} images"
                raise CannotRunError(message, "give the truth of each image, in the same order")
            return range(n)
        by_name = {name: n for n, name in enumerate(self.images)}
        by_path = {os.path.abspath(self.root / name): n for name, n in by_name.items()}
        times = Counter(os.path.basename(name) for name in dict.fromkeys(names))
        rows, unknown, unclear = [], [], []
        for name in names:
            alone = os.path.basename(name)
            row = by_name.get(name, by_path.get(os.path.abspath(name)))
            if row is None and alone in by_name:
                row = by_name[alone]
                unclear += [name] * (times[alone] > 1)
            if row is None:
                unknown.append(f"'{name}'")
            else:
                rows.append(row)
        if unknown:
            message = f"{self.name} has no entry for {some(unknown)}"
            raise CannotRunError(message, f"give only images that it lists, or add {_HINT}")
        if unclear:
            alone = os.path.basename(unclear[0])
            message = f"{self.name} names '{alone}', but {times[alone]} images have that name"
            raise CannotRunError(message, f"use their paths, such as '{unclear[0]}'")
        return rows


def class_folders(files: FileList) -> list[str]:
    """Return the names of the folders of the images, sorted."""
    return sorted({files.class_of(file.name) for file in files})


def folders_of_classes(files: FileList, n_classes: int) -> list[str]:
    """Return the folders of the images, or all beside the first, if they are as many as the classes; else none."""
    folders = class_folders(files)
    parents = (Path(file.name).absolute().parent.parent for file in files)
    above = next(chain(map(Path, files.roots), parents), Path())
    beside = sorted(one.name for one in above.glob("*/"))
    return next(
        (names for names in (folders, beside) if len(names) == n_classes > 1 and {*folders} <= {*names}), []
    )


def labels_beside(files: FileList, n_classes: int) -> str | None:
    """Return a file of that many labels, the folders of the images among them, beside these or one folder above."""
    first = next((Path(file.name).parent for file in files), Path())
    for file in (above / name for above in [*first.parents][:2] for name in ("classes.txt", "labels.txt")):
        with suppress(CannotRunError):  # it is not there, or holds something else
            labels = read_labels(file)
            if len(labels) == n_classes and {*class_folders(files)} <= {*labels}:
                return str(file)
    return None


def read_truth(truth: Any) -> GivenTruth:
    """Read `folders`, `auto`, a file, `{image: class}`, or a list of classes in the order of the images. A class is
    a label or an index, or a list of these for several labels."""
    if isinstance(truth, str | PathLike):
        if truth in (AUTO, FOLDERS):
            return GivenTruth("the names of the folders", is_auto=truth == AUTO)
        return _read_file(Path(truth))
    images, values = None, _plain(truth)
    if isinstance(values, Mapping):
        images, values = [*map(fspath, values)], values.values()
    if isinstance(values, Iterable):
        return GivenTruth("the truth", images, _classes_of(values))
    message = f"truth cannot be of type {type(truth).__name__}"
    raise UsageError(message, "truth='folders', a file, {image: class}, or a list of classes")


def _plain(value: Any) -> Any:
    """Return an array or tensor as a number or lists of them; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _parts(word: Word, labels: frozenset[str]) -> Words:
    """Return the classes that a word names, joined by `|`, `;`, `,` or spaces; the word itself if it is a label, or
    its parts are not. `labels`: without case."""
    if not isinstance(word, str) or word.casefold() in labels:
        return (word,)
    for sign in ("|", ";", ",", None):
        parts = (part.strip(" '\"") for part in word.strip("[]").split(sign))
        classes = tuple(filter(None, parts))
        if all(one.casefold() in labels or one.isdecimal() for one in classes):
            return classes
    return (word,)


def _is_fraction(word: Word) -> bool | None:
    """Tell whether a number is a fraction; None of a word that is not a number. `NA` is an unknown one."""
    try:
        number = float("nan" if word == "NA" else word)
    except ValueError:
        return None
    return math.isfinite(number) and not number.is_integer()


def _classes_of(values: Iterable[Any]) -> list[Words]:
    """Return the classes of each image. Raises: UsageError: as `_words`, or an image has a class twice."""
    rows = [_words(_plain(value)) for value in values]
    if any(len({*words}) < len(words) for words in rows) and not _have_fractions(rows):
        # A multi-hot row would be read as classes 0 and 1
        raise UsageError("a list names a class twice", "list the classes that are true, not a row of 0 and 1")
    return rows


def _have_fractions(rows: Iterable[Words]) -> bool:
    return any(_is_fraction(word) for words in rows for word in words)


def _words(value: Any) -> Words:
    """Raises: UsageError, ValueError: neither a class nor a list of classes."""
    if isinstance(value, list | tuple | set | frozenset):
        return tuple(word for item in value for word in _words(item))
    is_whole = isinstance(value, float) and value.is_integer()
    if (hasattr(value, "__index__") or is_whole) and not isinstance(value, bool):
        return (int(value),)
    if isinstance(value, str | PathLike | float):
        return (str(value) if isinstance(value, float) else fspath(value),)
    raise UsageError(f"{value!r} is not a class", "give a label, an index, or a list of them")


def _read_file(path: Path) -> GivenTruth:
    text, name = _text_of(path), f"truth file '{path}'"
    is_json = path.suffix.lower() == ".json" or text.lstrip().startswith("{")
    try:
        truth = _from_json(text, name) if is_json else _from_lines(text, name)
    except (ValueError, RecursionError, csv.Error) as error:
        raise _misread(path, " ".join(str(error).split())) from error
    except UsageError as error:
        raise _misread(path, error.message) from error
    if not truth.images:
        raise _misread(path, "it lists no images")
    return replace(truth, root=path.parent)


def _from_json(text: str, name: str) -> GivenTruth:
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError(f"it holds {with_article(type(content).__name__)}, not {{image: class}}")
    wrong = next((image for image, value in content.items() if isinstance(value, dict)), None)
    if wrong is not None:
        raise ValueError(f"'{wrong}' holds an object, not a class")
    return GivenTruth(name, [*content], _classes_of(content.values()))


def _from_lines(text: str, name: str) -> GivenTruth:
    """Read lines of an image and its classes, or of 0 and 1 below the names of classes; lines of one image
    are combined."""
    first = text.partition("\n")[0].strip()
    sign = next((sign for sign in "\t,; " if sign in first), ",")
    rows = csv.reader(io.StringIO(text), delimiter=sign, skipinitialspace=True)
    by_name, names, columns, twice = dict[str, Words](), list[str](), Words(), ""
    for number, row in enumerate(rows):
        cells = [cell.strip() for cell in row]
        if number == 0 and cells and cells[0].replace("_", "").lower() in _IMAGES:
            names = cells[1:]
            continue
        if not any(cells):
            continue
        if len(cells) < 2 or not cells[0]:
            raise ValueError(f"line {rows.line_num} is not 'image,class'")
        words = tuple(cell for cell in cells[1:] if cell)
        if len(names) > 1 and {word.lower() for word in words} <= _FLAGS.keys():
            columns = tuple(names)
            flags = zip(names, cells[1:], strict=False)
            words = tuple(name for name, cell in flags if _FLAGS.get(cell.lower()))
        elif len({*words}) < len(words):
            twice = twice or f"line {rows.line_num} names a class twice"
        by_name[cells[0]] = tuple(dict.fromkeys((*by_name.get(cells[0], ()), *words)))
    if twice and not _have_fractions(by_name.values()):
        raise ValueError(f"{twice}; columns of 0 and 1 need the names of classes above, and no others")
    return GivenTruth(name, [*by_name], [*by_name.values()], columns=columns)


def _text_of(path: Path, kind: str = "truth file", hint: str = _HINT) -> str:
    refuse_endless(path, f"{kind} ")
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        message = f"{kind} '{path}' cannot be read: {error.strerror}"
        if kind == "truth file" and path.is_dir():
            reason = "truth is a file of classes; masks as truth are not supported"
            message = f"'{path}' is a folder, but {reason}"
        look = f"ls -l {shlex.quote(str(path))}" if path.is_file() else look_for(path)
        if look.startswith("ls ") and not path.is_file():
            option = f"--{kind.partition(' ')[0]} {shlex.quote(str(path))}"
            look = f"leave out {option}   or give a file: {hint}"
        raise CannotRunError(message, look) from error
    except UnicodeDecodeError as error:
        raise _misread(path, "it is not text", kind, hint) from error


def _misread(path: Path, reason: str, kind: str = "truth file", hint: str = _HINT) -> CannotRunError:
    return CannotRunError(f"{kind} '{path}' cannot be understood: {reason}", hint)
