"""Programs and configurations that a loader runs and that are not pickles: of Keras, torch.export, GGUF, systems.

What Keras makes of a configuration: `keras/src/saving/serialization_lib.py`, `deserialize_keras_object`. What
torch.export makes of an expression: `torch/_export/serde/serialize.py`, `_parse_sym_expr`, by `sympy.sympify`.
Standard library.
"""

import builtins
import json
import re
import struct
from collections.abc import Iterator
from typing import IO, Any

from modelscope_cli.checkpoints.pickle_machine import Global
from modelscope_cli.checkpoints.safety.rank import is_class_like, rank
from modelscope_cli.plain_text import plain
from modelscope_cli.records.weights import DANGEROUS, UNKNOWN, Suspect

_MAX_BYTES = 32 << 20
_NATIVE = (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"#!")
# The classes of these modules that hold no function, no path and no bytes.
_KERAS = re.compile(
    r"keras(?:\.(?:layers|initializers|regularizers|constraints|optimizers|optimizers\.schedules|losses|metrics|models"
    r"|dtype_policies|quantizers|random|src\.models\.(?:functional|sequential|model)))?"
)
_RUNS = {
    "Lambda": "holds a function of Python",
    "__lambda__": "holds the bytecode of a function of Python",
    "TorchModuleWrapper": "holds a pickle",
    "TFSMLayer": "loads a program of TensorFlow from a path",
    "JaxLayer": "holds a function of Python",
    "FlaxLayer": "holds a function of Python",
    "__typespec__": "looks up a name of TensorFlow",
}
# `Symbol('s0', positive=True)`, `Max(1, s0)`, `floor(s0/2)`; functions of Python have small letters.
_EXPRESSION = re.compile(r"(?:[A-Za-z0-9_ +*/()%,<>=&|~-]|(?<=[0-9])\.(?=[0-9])|'[A-Za-z][A-Za-z0-9_]*')*")
_CALLED = re.compile(r"\b(?!(?:floor|ceiling|log|sqrt|exp|sin|cos|tan)\b)[a-z_]\w*\s*\(|__")
_REACHING = re.compile(
    rb"__(?:class|globals|subclasses|builtins|import|mro|bases?|init|dict|getattribute|self)__"
    rb"|\|\s*attr\b|\\x5f|\\u005f|\blipsum\b"
)
_GGUF_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_GGUF_TEXT, _GGUF_LIST = 8, 9


def suspects_of(file: IO[bytes], head: bytes, place: str) -> Iterator[Suspect]:
    """Yield what loading a file could run that is not a pickle."""
    where = place or "the file itself"
    if place and head.startswith(_NATIVE):
        yield Suspect(plain(place), UNKNOWN, "is a program, which its loader runs", None, where, is_call=True)
    elif head.startswith(b"\x89HDF"):
        found = re.search(rb'"class_name": ?"Lambda"|__lambda__', _read(file))
        if found:
            yield Suspect("Lambda", DANGEROUS, _RUNS["Lambda"], None, f"{where}, byte {found.start()}")
    elif head.startswith(b"GGUF"):
        yield from _of_templates(file, where)
    elif not head.strip() or head.lstrip().removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        yield from _of_json(_read(file), where)


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read(_MAX_BYTES)


def _of_json(data: bytes, place: str) -> Iterator[Suspect]:
    # To parse JSON takes up to 25 times the memory of its text.
    if not (re.search(rb"class_name|expr_str|\\u00", data)):
        return
    if len(data) == _MAX_BYTES:
        yield Suspect("a configuration", UNKNOWN, f"has more than {_MAX_BYTES >> 20} MiB", None, place)
        return
    try:
        waiting = [json.loads(data)]
    except ValueError:  # any reader of JSON fails as well
        return
    except RecursionError:
        yield Suspect("a configuration", UNKNOWN, "is nested too deeply to be read", None, place)
        return
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if isinstance(value.get("class_name"), str) and "config" in value:
                yield from _of_keras(value, place)
            if isinstance(value.get("expr_str"), str):
                yield from _of_expression(value["expr_str"], place)
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _of_keras(value: dict[str, Any], place: str) -> Iterator[Suspect]:
    name, module, config = value["class_name"], value.get("module"), value["config"]
    is_function = name == "function" and isinstance(config, str)
    own = config if is_function else name
    full = plain(f"{module}.{own}" if isinstance(module, str) else own)
    if own in _RUNS:
        is_named = own == "Lambda" and isinstance(config, dict) and not _has_bytecode(config)
        is_worst = own in ("Lambda", "__lambda__") and not is_named
        yield Suspect(full, DANGEROUS if is_worst else UNKNOWN, _RUNS[own], None, place, is_call=True)
        return
    if module is None:  # by Keras 2, or out of its registry: its own classes only
        is_plain = own.isidentifier()
    elif is_function and module == "builtins":
        is_plain = own.isidentifier() and not hasattr(builtins, own)
    else:
        is_listed = isinstance(module, str) and _KERAS.fullmatch(module) is not None
        is_plain = is_listed and own.isidentifier() and is_class_like(own)
    if not is_plain:
        worst = rank(Global(full, str(module))).rank
        worst = worst if worst == DANGEROUS else UNKNOWN
        yield Suspect(full, worst, "is what Keras imports and calls", None, place, is_call=True)
    elif ">" in str(value.get("registered_name")):
        yield Suspect(plain(value["registered_name"]), UNKNOWN, "is a class of a program's own", None, place)


def _has_bytecode(config: dict[str, Any]) -> bool:
    function = config.get("function")
    if isinstance(function, dict):
        return function.get("class_name") != "function"
    return not isinstance(function, str)


def _of_expression(text: str, place: str) -> Iterator[Suspect]:
    if not _EXPRESSION.fullmatch(text) or _CALLED.search(text):
        reason = "is evaluated as Python when torch.export loads it"
        yield Suspect(plain(text)[:60], DANGEROUS, reason, None, place)


def _of_templates(file: IO[bytes], place: str) -> Iterator[Suspect]:
    """llama-cpp-python before 0.2.72 gives the template of a chat to Jinja without a sandbox."""
    try:
        for key, text in _texts_of_gguf(file):
            found = _REACHING.search(text) if b"chat_template" in key else None
            if found:
                name = plain(found[0].decode("latin-1"))
                yield Suspect(name, DANGEROUS, "is reached by the template of a chat", None, place)
    except (struct.error, KeyError, ValueError, OverflowError) as error:
        reason = f"has metadata that cannot be read ({type(error).__name__})"
        yield Suspect("GGUF", UNKNOWN, reason, None, place)


def _texts_of_gguf(file: IO[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield names and texts of the metadata: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md."""

    def number(form: str) -> int:
        return int(struct.unpack(form, file.read(struct.calcsize(form)))[0])

    def text() -> bytes:
        nbytes = number("<Q")
        data = file.read(min(nbytes, _MAX_BYTES))
        file.seek(nbytes - len(data), 1)
        return data

    file.seek(4)
    if number("<I") not in (2, 3):
        raise ValueError("another version")
    number("<Q")
    for _ in range(number("<Q")):
        key, kind, n = text(), number("<I"), 1
        if kind == _GGUF_LIST:
            kind, n = number("<I"), number("<Q")
        if kind == _GGUF_TEXT:
            for _ in range(n):
                yield key, text()
        else:
            file.seek(_GGUF_BYTES[kind] * n, 1)
