"""JSON Schema of the documents that `--json` prints and `report.json` holds, made from the records.

Draft 2020-12. Objects are open: within one version of a document keys are added, never renamed or removed.
"""

import dataclasses
import inspect
import re
import types
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Union, get_args, get_origin, get_type_hints

from modelscope_cli.records.refusals import unknown
from modelscope_cli.records.restore import RECORDS
from modelscope_cli.records.run import Run, key_of

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
# A report is a list of pages, and nothing to read back.
_RECORDS = RECORDS | {"report": ("report", "ReportRecord")}
DOCUMENTS = tuple(sorted(_RECORDS))
# Numbers that are not finite are null.
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
        document: what the document is of: ablate, attack, check, diff, explain, featuremaps, grads, lrfind, models,
            predict, predict-doctor, prune, report, rules, stats, summary, train, verify, watch, weights,
            weights-scan.

    Raises:
        UsageError: there is no such document (exit 2 on the command line).
    """
    if document not in _RECORDS:
        raise unknown("a document", document, DOCUMENTS)
    module, name = _RECORDS[document]
    kind = getattr(import_module(f"modelscope_cli.records.{module}"), name)
    return _Document(document, kind).schema()


class _Document:
    """One document while its schema is made; `kinds` are the records inside it."""

    def __init__(self, name: str, kind: type[Any]) -> None:
        self.name, self.kind = name, kind
        self.kinds: dict[str, Schema] = {}

    def schema(self) -> Schema:
        own = self.record(self.kind)["properties"]
        properties = {**self.header(own.pop("run", None)), **own}
        properties.pop("versions", None)
        made: Schema = {"type": "object", "properties": properties, "required": list(properties)}
        if self.name in _EXCEPTIONS:
            _EXCEPTIONS[self.name](self, made)
        return {
            "$schema": DIALECT,
            "$id": f"modelscope/{self.name}/1",
            "title": f"modelscope {self.name}",
            "description": _about(self.kind),
            **made,
            "$defs": dict(sorted(self.kinds.items())),
        }

    def header(self, has_run: Schema | None) -> dict[str, Schema]:
        """Return the keys that a document begins with; those of a run where one was made."""
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
        """Return the schema of a record's fields, with what its docstring says of each."""
        hints, about = get_type_hints(kind), _attributes(kind)
        properties = {}
        for field in dataclasses.fields(kind):
            if field.repr:
                said = {"description": about[field.name]} if field.name in about else {}
                properties[key_of(field.name)] = {**said, **self.value(hints[field.name])}
        return {
            "type": "object",
            "description": _about(kind),
            "properties": properties,
            "required": list(properties),
        }

    def value(self, hint: Any) -> Schema:
        """Return the schema of what a field of this type holds."""
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
    """Return a schema for any of these: a list of types where they are no more than that."""
    if not all(set(choice) == {"type"} for choice in choices):
        return {"anyOf": choices}
    names: list[str] = []
    for one in choices:
        names += [one["type"]] if isinstance(one["type"], str) else one["type"]
    unique = list(dict.fromkeys(names))
    return {"type": unique if len(unique) > 1 else unique[0]}


def _about(kind: type[Any]) -> str:
    """Return what a record is, in the words of its docstring."""
    doc = inspect.getdoc(kind) or ""
    return " ".join(doc.partition("\nAttributes:")[0].split())


def _attributes(kind: type[Any]) -> dict[str, str]:
    """Return what the docstring of a record says of its fields."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        entries = re.split(r"\n    (?=\S)", (inspect.getdoc(base) or "").partition("Attributes:")[2])
        for entry in entries:
            names, _, meaning = " ".join(entry.split()).partition(": ")
            found |= {name: meaning for name in names.split(", ") if meaning and name.isidentifier()}
    return found


def _one_kind_of_rows(document: _Document, made: Schema) -> None:
    """Let `diff` have one of its lists: of models that were run, of weights, or of the numbers of two results."""
    lists = ("layers", "tensors", "figures")
    made["required"] = [key for key in made["required"] if key not in (*lists, "compared")]
    made["oneOf"] = [{"required": [key]} for key in lists]


def _no_seed(document: _Document, made: Schema) -> None:
    """Let `watch` have none: the seed is the script's own affair."""
    made["properties"]["seed"] = {"type": "null"}


def _one_training_or_several(document: _Document, made: Schema) -> None:
    """Let `train` have the keys of its one training, or all of them under `variants`."""
    properties = made["properties"]
    variants = properties.pop("trainings")
    alone = {key: value for key, value in document.kinds["Training"]["properties"].items() if key != "name"}
    made["properties"] = {**properties, **alone, "variants": variants}
    made["required"] = [*(key for key in made["required"] if key != "trainings"), "findings"]
    made["oneOf"] = [
        {"required": [key for key in alone if key != "findings"]},
        {"required": ["variants"]},
    ]
    finding = document.kinds["TrainingFinding"]["properties"]
    finding["variant"] = {"description": "only of several trainings", "type": "string"}


def _rules_alone(document: _Document, made: Schema) -> None:
    """Leave out of a rule that is only listed whether it was judged."""
    rule = document.kinds["RuleInfo"]
    for key in ("judged", "reason"):
        del rule["properties"][key]
        rule["required"].remove(key)


def _worst_file(document: _Document, made: Schema) -> None:
    """Add what `weights --scan` says of all files together."""
    made["properties"] |= {"rank": {"type": "string"}, "passed": {"type": "boolean"}}
    made["required"] += ["rank", "passed"]


_EXCEPTIONS: dict[str, Callable[[_Document, Schema], None]] = {
    "diff": _one_kind_of_rows,
    "rules": _rules_alone,
    "train": _one_training_or_several,
    "watch": _no_seed,
    "weights-scan": _worst_file,
}
