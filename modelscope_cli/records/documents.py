"""Restore records from JSON documents, and make their JSON Schemas.

A document is untrusted: msgspec checks every value against the type of its field, so that a restored record is as
valid as a fresh one. Keys that this version does not know are ignored, missing ones take their default. NaN and
infinite numbers, which JSON lacks, are null in the document and NaN in the record.

The schemas are of draft 2020-12. Objects are open: within one version of a document keys are only ever added.
"""

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from modelscope_cli.records.display import Shown
from modelscope_cli.records.keywords import with_words
from modelscope_cli.records.refusals import unknown
from modelscope_cli.records.run import Run, key_of

# The module and the class of each document. They are imported one by one, as all of them take 0.1 s.
_RECORDS = {
    "ablate": ("modelscope_cli.records.ablate", "AblateRecord"),
    "check": ("modelscope_cli.records.check", "CheckRecord"),
    "diff": ("modelscope_cli.records.diff", "DiffRecord"),
    "explain": ("modelscope_cli.records.explain", "ExplainRecord"),
    "featuremaps": ("modelscope_cli.records.featuremaps", "FeatureMapsRecord"),
    "grads": ("modelscope_cli.records.grads", "GradsRecord"),
    "lrfind": ("modelscope_cli.records.train", "LrfindRecord"),
    "models": ("modelscope_cli.records.listings", "Catalogue"),
    "predict": ("modelscope_cli.records.predict", "PredictRecord"),
    "predict-doctor": ("modelscope_cli.records.predict", "DoctorRecord"),
    "report": ("modelscope_cli.records.listings", "ReportRecord"),
    "rules": ("modelscope_cli.records.findings", "RuleList"),
    "stats": ("modelscope_cli.records.stats", "StatsRecord"),
    "summary": ("modelscope_cli.records.summary", "SummaryRecord"),
    "train": ("modelscope_cli.records.train", "TrainRecord"),
    "watch": ("modelscope_cli.records.watch", "WatchRecord"),
    "weights": ("modelscope_cli.records.weights", "WeightsRecord"),
    "weights-scan": ("modelscope_cli.records.weights", "ScanRecord"),
}
DOCUMENTS = tuple(_RECORDS)
RECORDS = tuple(name for name in DOCUMENTS if name != "report")  # a list of pages is not read back


class NotADocumentError(ValueError):
    """Not a document of modelscope; the message names the first mismatch."""


def restore(document: Any) -> Shown:
    """Return the record of a document of any command.

    Raises:
        NotADocumentError: its schema is unknown, a key is missing, or a value does not have the type of its field.
    """
    import msgspec

    if not isinstance(document, dict):
        raise NotADocumentError("it is not an object")
    kind = _kind(document.get("schema"))
    header = {"command": kind.document, "versions": document.get("tool"), "seed": document.get("seed")}
    fields = {**document, **header, "run": {**document, **header}}
    if kind.document == "train":  # the keys of the training are beside those of the record
        fields["training"] = document
    try:
        return cast(Shown, msgspec.convert(_prepared(kind, fields), kind))
    except msgspec.ValidationError as error:
        message = str(error).replace("$.run.", "$.").replace("class_name", "class")
        message = message[0].lower() + message[1:].replace("$.training", "$")
        raise NotADocumentError(message) from error


def _kind(schema: Any) -> type[Any]:
    family, _, rest = str(schema).partition("/")
    name, _, version = rest.partition("/")
    if family != "modelscope" or name not in RECORDS:
        raise NotADocumentError(f"its schema is {schema!r}")
    if version != "1":
        raise NotADocumentError(f"its schema is {schema!r}, but this version reads modelscope/{name}/1")
    return _record_of(name)


def _record_of(document: str) -> type[Any]:
    module, name = _RECORDS[document]
    return cast(type[Any], getattr(import_module(module), name))


@cache
def _fields(kind: Any) -> tuple[tuple[str, str, Any], ...]:
    """Return the fields of a record: name, key in a document, and type."""
    hints = get_type_hints(kind)
    return tuple((one.name, key_of(one.name), hints[one.name]) for one in dataclasses.fields(kind))


# Long series of these are left as they are.
_AS_IN_JSON = (int, str, bool, float | None, tuple[int, ...])


def _prepared(kind: Any, value: Any) -> Any:
    """Return a value with the names of fields for keys, and NaN for null where the type is a number."""
    if not isinstance(value, dict | list):
        return math.nan if value is None and kind is float else value
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        fields = _fields(cast(Any, kind))
        return {name: _prepared(one, value[key]) for name, key, one in fields if key in value}
    origin, inside = get_origin(kind), get_args(kind)
    if origin is tuple and isinstance(value, list) and inside[0] not in _AS_IN_JSON:
        kinds = inside[:1] * len(value) if inside[-1] is Ellipsis else inside
        return [*map(_prepared, kinds, value)] if len(kinds) == len(value) else value
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {key: _prepared(inside[1], item) for key, item in value.items()}
    if origin in (Union, UnionType):
        for one in inside:
            value = _prepared(one, value)
    return value


Schema = dict[str, Any]
Parts = dict[str, Schema]  # the schemas of the records inside a document
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
_RUN = ("model", "input", "device", "dtype", "seed", "warnings", "elapsed_ms")


def schema(document: str) -> Schema:
    """Return the JSON Schema of the document of a command.

    Args:
        document: name of the document: {DOCUMENTS}.

    Raises:
        UsageError: there is no such document (exit 2 on the command line).
    """
    if document not in _RECORDS:
        raise unknown("a document", document, DOCUMENTS)
    kind = _record_of(document)
    parts: Parts = {}
    own = _object(kind, parts)["properties"]
    run = _object(Run, parts)["properties"] if own.pop("run", None) else {}
    own.pop("versions", None)
    versions = {"type": "object", "additionalProperties": {"type": "string"}}
    properties = {
        "schema": {"const": f"modelscope/{document}/1"},
        "tool": {"description": "versions of modelscope, Python, torch and torchvision", **versions},
        "argv": {"description": "what was typed", "type": "array", "items": {"type": "string"}},
        **{key: run[key] for key in _RUN if run},
        **own,
    }
    result: Schema = {"type": "object", "properties": properties, "required": list(properties)}
    if document in _EXCEPTIONS:
        _EXCEPTIONS[document](result, parts)
    return {
        "$schema": DIALECT,
        "$id": f"modelscope/{document}/1",
        "title": f"modelscope {document}",
        "description": _about(kind),
        **result,
        "$defs": dict(sorted(parts.items())),
    }


schema.__doc__ = with_words(schema.__doc__ or "", globals().__getitem__)


def _object(kind: Any, parts: Parts) -> Schema:
    """Return the schema of a record, with descriptions from its docstring."""
    about, properties = _attributes(kind), {}
    for name, key, hint in _fields(kind):
        description = {"description": about[name]} if name in about else {}
        properties[key] = {**description, **_schema_of(hint, parts)}
    return {
        "type": "object",
        "description": _about(kind),
        "properties": properties,
        "required": list(properties),
    }


def _schema_of(hint: Any, parts: Parts) -> Schema:
    """Return the schema of a value; those of the records inside it are added to `parts`."""
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    if dataclasses.is_dataclass(hint):
        name = str(cast(Any, hint).__name__)
        if name not in parts:
            parts[name] = {}  # it may hold itself
            parts[name] = _object(hint, parts)
        return {"$ref": f"#/$defs/{name}"}
    origin = get_origin(hint)
    inside = [_schema_of(one, parts) for one in get_args(hint) if one is not Ellipsis]
    if origin in (Union, UnionType):
        return _any_of(inside)
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": inside[1]}
    if Ellipsis in get_args(hint):
        return {"type": "array", "items": inside[0]}
    return {"type": "array", "prefixItems": inside, "minItems": len(inside), "maxItems": len(inside)}


def _any_of(choices: list[Schema]) -> Schema:
    """Return a schema for any of these, as a list of types if possible."""
    if not all(set(choice) == {"type"} for choice in choices):
        return {"anyOf": choices}
    names: list[str] = []
    for one in choices:
        names += [one["type"]] if isinstance(one["type"], str) else one["type"]
    return {"type": [name for name in dict.fromkeys(names) if name != "integer" or "number" not in names]}


def _about(kind: type[Any]) -> str:
    """Return the summary in a record's docstring."""
    return " ".join((inspect.getdoc(kind) or "").partition("\nAttributes:")[0].split())


def _attributes(kind: type[Any]) -> dict[str, str]:
    """Return the descriptions of the fields in a record's docstring."""
    descriptions: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        entries = re.split(r"\n    (?=\S)", (inspect.getdoc(base) or "").partition("Attributes:")[2])
        for entry in entries:
            names, _, meaning = " ".join(entry.split()).partition(": ")
            descriptions |= {name: meaning for name in names.split(", ") if meaning and name.isidentifier()}
    return descriptions


def _one_kind_of_rows(schema: Schema, parts: Parts) -> None:
    """Require exactly one list of `diff`: layers, tensors or figures."""
    lists = ("layers", "tensors", "figures")
    schema["required"] = [key for key in schema["required"] if key not in (*lists, "compared", "settings")]
    schema["oneOf"] = [{"required": [key]} for key in lists]


def _one_training(schema: Schema, parts: Parts) -> None:
    """Put the keys of the training beside the others."""
    training = parts.pop("Training")
    del schema["properties"]["training"]
    schema["properties"] |= training["properties"]
    schema["required"] = [*(key for key in schema["required"] if key != "training"), *training["required"]]


def _rules_alone(schema: Schema, parts: Parts) -> None:
    """Remove from a listed rule whether it was judged."""
    rule = parts["RuleInfo"]
    for key in ("judged", "reason", "measured"):
        del rule["properties"][key]
        rule["required"].remove(key)


def _worst_file(schema: Schema, parts: Parts) -> None:
    """Add the totals of `weights --scan` over all files."""
    schema["properties"] |= {"rank": {"type": "string"}, "passed": {"type": "boolean"}}
    schema["required"] += ["rank", "passed"]


_EXCEPTIONS: dict[str, Callable[[Schema, Parts], None]] = {
    "diff": _one_kind_of_rows,
    "rules": _rules_alone,
    "train": _one_training,
    "weights-scan": _worst_file,
}
