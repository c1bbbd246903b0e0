"""The way back: from a document to the record it was written from. Standard library only.

A document is somebody's file: every value is held against the type of its field, so that what comes out of here is
a record like any other, and a table may be made of it without another look. Keys that this version does not know
are left out, those that it has and the document lacks take their default. What JSON has no word for, NaN and
infinite numbers, is null there and NaN in the record.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Hashable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from modelscope_cli.records.run import Record, Run, key_of
from modelscope_cli.records.shown import Shown

# The record of each schema, by its module and its name.
RECORDS = {
    "ablate": ("ablate", "AblateRecord"),
    "attack": ("attack", "AttackRecord"),
    "check": ("check", "CheckRecord"),
    "diff": ("diff", "DiffRecord"),
    "explain": ("explain", "ExplainRecord"),
    "featuremaps": ("featuremaps", "FeatureMapsRecord"),
    "grads": ("grads", "GradsRecord"),
    "lrfind": ("lrfind", "LrfindRecord"),
    "models": ("models", "Catalogue"),
    "predict": ("predict", "PredictRecord"),
    "predict-doctor": ("doctor", "DoctorRecord"),
    "prune": ("prune", "PruneRecord"),
    "rules": ("check", "RuleList"),
    "stats": ("stats", "StatsRecord"),
    "summary": ("summary", "SummaryRecord"),
    "train": ("train", "TrainRecord"),
    "verify": ("verify", "VerifyRecord"),
    "watch": ("watch", "WatchRecord"),
    "weights": ("weights", "WeightsRecord"),
    "weights-scan": ("safety", "ScanRecord"),
}


class NotADocumentError(ValueError):
    """What was read is not a document of ours; the message says where it is not."""


def restore(document: Any) -> Shown:
    """Return the record that a document was made of, of any command.

    Raises:
        NotADocumentError: it is of no schema that is known here, or a value is not what its key stands for.
    """
    if not isinstance(document, dict):
        raise NotADocumentError("it is not an object")
    kind = _kind(document.get("schema"))
    values = _training(document) if kind.__name__ == "TrainRecord" else document
    if issubclass(kind, Record):
        fields = {**_read(kind, values, leaving=("run",)), "run": _run(document)}
    else:
        tool = _value(dict[str, str], document.get("tool"), "tool")
        fields = {**_read(kind, {**values, "versions": tool}), "versions": tool}
    return typing.cast(Shown, kind(**fields))


def _kind(schema: Any) -> type[Any]:
    family, _, rest = str(schema).partition("/")
    name, _, version = rest.partition("/")
    if family != "modelscope" or name not in RECORDS:
        raise NotADocumentError(f"its schema is {schema!r}")
    if version != "1":
        raise NotADocumentError(f"its schema is {schema!r}, and this version reads modelscope/{name}/1")
    module, record = RECORDS[name]
    return typing.cast("type[Any]", getattr(import_module(f"modelscope_cli.records.{module}"), record))


def _training(document: dict[str, Any]) -> dict[str, Any]:
    """Of one training the keys stand in the document itself, of several under `variants`."""
    variants = document.get("variants")
    return {**document, "trainings": [{**document, "name": ""}] if variants is None else variants}


def _run(document: dict[str, Any]) -> Run:
    command = str(document["schema"]).split("/")[1]
    seed = document.get("seed")
    header = {**document, "command": command, "versions": document.get("tool"), "seed": seed or 0}
    return Run(**_read(Run, header))


def _read(kind: type[Any], values: Any, path: str = "", leaving: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the fields of a dataclass as they stand in a document."""
    if not isinstance(values, Mapping):
        raise NotADocumentError(f"{path or 'it'} is not an object")
    read = {}
    for name, hint, has_default in _fields(typing.cast("Hashable", kind)):
        key = key_of(name)
        if name in leaving or (key not in values and has_default):
            continue
        if key not in values:
            raise NotADocumentError(f"it has no {path + key}")
        read[name] = _value(hint, values[key], path + key)
    return read


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    hints = typing.get_type_hints(kind)
    return tuple(
        (field.name, hints[field.name], _has_default(field))
        for field in dataclasses.fields(kind)
        if field.init and field.repr
    )


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _value(hint: Any, value: Any, path: str) -> Any:
    """Return a value of a document as its field holds it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if hint is float:
        return _number(value, path)
    if origin in (typing.Union, types.UnionType):
        return _one_of(arguments, value, path)
    if origin is tuple:
        return _sequence(arguments, value, path)
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise NotADocumentError(f"{path} is not an object")
        return {key: _value(arguments[1], item, f"{path}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        kind = typing.cast("type[Any]", hint)
        return kind(**_read(kind, value, f"{path}."))
    # True is a whole number to Python, and a choice of a few words is a text.
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise NotADocumentError(f"{path} is not {_WORDS.get(hint, 'what it stands for')}")
    return value


_WORDS = {int: "a whole number", str: "a text", bool: "true or false"}


def _number(value: Any, path: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotADocumentError(f"{path} is not a number")
    return value


def _one_of(kinds: tuple[Any, ...], value: Any, path: str) -> Any:
    """Return what fits the first of several types; null only where a type says so."""
    if value is None and types.NoneType in kinds:
        return None
    *others, last = (kind for kind in kinds if kind is not types.NoneType)
    for kind in others:
        try:
            return _value(kind, value, path)
        except NotADocumentError:
            continue
    return _value(last, value, path)


def _sequence(kinds: tuple[Any, ...], values: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(values, list | tuple):
        raise NotADocumentError(f"{path} is not a list")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        # Series hold very many numbers: one look at all of them instead of a call for each.
        plain = _plain(kinds[0])
        if plain and {type(item) for item in values} <= plain:
            return tuple(values)
        return tuple(_value(kinds[0], item, f"{path}[{n}]") for n, item in enumerate(values))
    if len(kinds) != len(values):
        raise NotADocumentError(f"{path} is not a list of {len(kinds)}")
    pairs = zip(kinds, values, strict=True)
    return tuple(_value(kind, item, f"{path}[{n}]") for n, (kind, item) in enumerate(pairs))


def _plain(kind: Any) -> set[type]:
    """Return the types of values that need no change; empty where every one has to be looked at."""
    if kind in (int, str, bool):
        return {kind}
    if kind == float | None:
        return {float, int, types.NoneType}
    return {float, int} if kind is float else set()
