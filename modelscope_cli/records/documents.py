"""Restore records from JSON documents, and make their JSON Schemas. Standard library only.

A document is untrusted: every value is checked against the type of its field, so that a restored record is as valid
as a fresh one. Keys that this version does not know are ignored, missing ones take their default. NaN and
infinite numbers, which JSON lacks, are null in the document and NaN in the record.

The schemas are of draft 2020-12. Objects are open: within one version of a document keys are only ever added.
"""

import dataclasses
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from modelscope_cli.records.display import Shown
from modelscope_cli.records.keywords import with_words
from modelscope_cli.records.refusals import unknown
from modelscope_cli.records.run import Record, Run, key_of

# The file of each document, whose record names it; read from the sources, as importing all files takes 0.1 s.
_FILES = {
    name: file.stem
    for file in sorted(Path(__file__).parent.glob("*.py"))
    for name in re.findall(r'^    document: ClassVar\[str\] = "(.+)"$', file.read_text("utf-8"), re.MULTILINE)
}
DOCUMENTS = tuple(sorted(_FILES))
RECORDS = tuple(name for name in DOCUMENTS if name != "report")  # a list of pages is not read back


class NotADocumentError(ValueError):
    """Not a document of modelscope; the message names the first mismatch."""


def restore(document: Any) -> Shown:
    """Return the record of a document of any command."""
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
    return _record_of(name)


def _record_of(document: str) -> type[Any]:
    module = import_module(f"modelscope_cli.records.{_FILES[document]}")
    return next(one for one in vars(module).values() if getattr(one, "document", None) == document)


def _training(document: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `TrainRecord`: one training is at the top level, several are under `variants`."""
    variants = document.get("variants")
    return {**document, "trainings": [{**document, "name": ""}] if variants is None else variants}


def _run(document: dict[str, Any]) -> Run:
    command = str(document["schema"]).split("/")[1]
    seed = document.get("seed")
    header = {**document, "command": command, "versions": document.get("tool"), "seed": seed or 0}
    return Run(**_read(Run, header))


def _read(kind: type[Any], values: Any, path: str = "", leaving: tuple[str, ...] = ()) -> dict[str, Any]:
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
    """Convert a value of a document to the type of its field."""
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
    # bool is a subclass of int, and a Literal is a str.
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise NotADocumentError(f"{path} is not {_WORDS.get(hint, 'a valid value')}")
    return value


_WORDS = {int: "a whole number", str: "a text", bool: "true or false"}


def _number(value: Any, path: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotADocumentError(f"{path} is not a number")
    return value


def _one_of(kinds: tuple[Any, ...], value: Any, path: str) -> Any:
    """Convert a value to the first of several types that fits; null only for None."""
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
        # Series hold very many numbers: one check of all instead of a call for each.
        plain = _plain(kinds[0])
        if plain and {type(item) for item in values} <= plain:
            return tuple(values)
        return tuple(_value(kinds[0], item, f"{path}[{n}]") for n, item in enumerate(values))
    if len(kinds) != len(values):
        raise NotADocumentError(f"{path} is not a list of {len(kinds)}")
    pairs = zip(kinds, values, strict=True)
    return tuple(_value(kind, item, f"{path}[{n}]") for n, (kind, item) in enumerate(pairs))


def _plain(kind: Any) -> set[type]:
    """Return the types that need no conversion; empty if each value has to be converted."""
    if kind in (int, str, bool):
        return {kind}
    if kind == float | None:
        return {float, int, types.NoneType}
    return {float, int} if kind is float else set()


Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Non-finite numbers are null.
_PLAIN: Mapping[Any, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": ["number", "null"]},
    type(None): {"type": "null"},
    Any: {},
}


def schema(document: str) -> Schema:
    """Return the JSON Schema of the document of a command.

    Args:
        document: what the document is of: {DOCUMENTS}.

    Raises:
        UsageError: there is no such document (exit 2 on the command line).
    """
    if document not in _FILES:
        raise unknown("a document", document, DOCUMENTS)
    return _Document(document, _record_of(document)).schema()


schema.__doc__ = with_words(schema.__doc__ or "", globals().__getitem__)


class _Document:
    """The schema of one document in the making; `kinds` are the records inside it."""

    def __init__(self, name: str, kind: type[Any]) -> None:
        self.name, self.kind = name, kind
        self.kinds: dict[str, Schema] = {}

    def schema(self) -> Schema:
        fields = self.record(self.kind)["properties"]
        properties = {**self.header(fields.pop("run", None)), **fields}
        properties.pop("versions", None)
        result: Schema = {"type": "object", "properties": properties, "required": list(properties)}
        if self.name in _EXCEPTIONS:
            _EXCEPTIONS[self.name](self, result)
        return {
            "$schema": DIALECT,
            "$id": f"modelscope/{self.name}/1",
            "title": f"modelscope {self.name}",
            "description": _about(self.kind),
            **result,
            "$defs": dict(sorted(self.kinds.items())),
        }

    def header(self, has_run: Schema | None) -> dict[str, Schema]:
        """Return the first keys of a document, including those of a run if there is one."""
        strings = {"type": "object", "additionalProperties": {"type": "string"}}
        first: dict[str, Schema] = {
            "schema": {"const": f"modelscope/{self.name}/1"},
            "tool": {"description": "versions of modelscope, Python, torch and torchvision", **strings},
            "argv": {"description": "what was typed", "type": "array", "items": {"type": "string"}},
        }
        if has_run is None:
            return first
        run = self.record(Run)["properties"]
        return first | {
            key: run[key] for key in ("model", "input", "device", "dtype", "seed", "warnings", "elapsed_ms")
        }

    def record(self, kind: type[Any]) -> Schema:
        """Return the schema of a record's fields, with descriptions from its docstring."""
        hints, about = get_type_hints(kind), _attributes(kind)
        properties = {}
        for field in dataclasses.fields(kind):
            if field.repr:
                description = {"description": about[field.name]} if field.name in about else {}
                properties[key_of(field.name)] = {**description, **self.value(hints[field.name])}
        return {
            "type": "object",
            "description": _about(kind),
            "properties": properties,
            "required": list(properties),
        }

    def value(self, hint: Any) -> Schema:
        if hint in _PLAIN:
            return dict(_PLAIN[hint])
        if dataclasses.is_dataclass(hint):
            return self.reference(hint)  # type: ignore[arg-type]
        origin, inside = get_origin(hint), get_args(hint)
        if origin in (Union, types.UnionType):
            return _any_of([self.value(one) for one in inside])
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.value(inside[1])}
        if origin is tuple and inside[-1] is not Ellipsis:
            items = [self.value(one) for one in inside]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        if origin is tuple:
            return {"type": "array", "items": self.value(inside[0])}
        raise TypeError(f"a document cannot hold {hint}")

    def reference(self, kind: type[Any]) -> Schema:
        name = kind.__name__
        if name not in self.kinds:
            self.kinds[name] = {}  # it may hold itself
            self.kinds[name] = self.record(kind)
        return {"$ref": f"#/$defs/{name}"}


def _any_of(choices: list[Schema]) -> Schema:
    """Return a schema for any of these, as a list of types if possible."""
    if not all(set(choice) == {"type"} for choice in choices):
        return {"anyOf": choices}
    names: list[str] = []
    for one in choices:
        names += [one["type"]] if isinstance(one["type"], str) else one["type"]
    unique = list(dict.fromkeys(names))
    return {"type": unique if len(unique) > 1 else unique[0]}


def _about(kind: type[Any]) -> str:
    """Return the summary in a record's docstring."""
    doc = inspect.getdoc(kind) or ""
    return " ".join(doc.partition("\nAttributes:")[0].split())


def _attributes(kind: type[Any]) -> dict[str, str]:
    """Return the descriptions of the fields in a record's docstring."""
    descriptions: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        entries = re.split(r"\n    (?=\S)", (inspect.getdoc(base) or "").partition("Attributes:")[2])
        for entry in entries:
            names, _, meaning = " ".join(entry.split()).partition(": ")
            descriptions |= {name: meaning for name in names.split(", ") if meaning and name.isidentifier()}
    return descriptions


def _one_kind_of_rows(document: _Document, schema: Schema) -> None:
    """Require exactly one list of `diff`: layers, tensors or figures."""
    lists = ("layers", "tensors", "figures")
    schema["required"] = [key for key in schema["required"] if key not in (*lists, "compared", "settings")]
    schema["oneOf"] = [{"required": [key]} for key in lists]


def _no_seed(document: _Document, schema: Schema) -> None:
    """Remove the seed from `watch`, where only the script sets one."""
    schema["properties"]["seed"] = {"type": "null"}


def _one_training_or_several(document: _Document, schema: Schema) -> None:
    """Allow in `train` the keys of its one training, or all of them under `variants`."""
    properties = schema["properties"]
    variants = properties.pop("trainings")
    alone = {key: value for key, value in document.kinds["Training"]["properties"].items() if key != "name"}
    schema["properties"] = {**properties, **alone, "variants": variants}
    schema["required"] = [*(key for key in schema["required"] if key != "trainings"), "findings"]
    schema["oneOf"] = [{"required": [key for key in alone if key != "findings"]}, {"required": ["variants"]}]
    finding = document.kinds["TrainingFinding"]["properties"]
    finding["variant"] = {"description": "only of several trainings", "type": "string"}


def _rules_alone(document: _Document, schema: Schema) -> None:
    """Remove from a listed rule whether it was judged."""
    rule = document.kinds["RuleInfo"]
    for key in ("judged", "reason"):
        del rule["properties"][key]
        rule["required"].remove(key)


def _worst_file(document: _Document, schema: Schema) -> None:
    """Add the totals of `weights --scan` over all files."""
    schema["properties"] |= {"rank": {"type": "string"}, "passed": {"type": "boolean"}}
    schema["required"] += ["rank", "passed"]


_EXCEPTIONS: dict[str, Callable[[_Document, Schema], None]] = {
    "diff": _one_kind_of_rows,
    "rules": _rules_alone,
    "train": _one_training_or_several,
    "watch": _no_seed,
    "weights-scan": _worst_file,
}
