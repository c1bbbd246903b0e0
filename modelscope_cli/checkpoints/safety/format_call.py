"""A call in words: `os.system('id')`. Standard library."""

from typing import Any

from modelscope_cli.checkpoints.pickle_machine import Blob, Global, Opaque, Persistent
from modelscope_cli.plain_text import plain

_MAX_TEXT = 60
_MAX_ITEMS = 4
_MAX_DEPTH = 3


def format_call(callee: Any, args: Any) -> str:
    """Return a call as it would be written, cut short where it is long."""
    inside = (
        [format_value(arg, 1) for arg in args[:_MAX_ITEMS]]
        if isinstance(args, tuple)
        else [f"*{format_value(args)}"]
    )
    more = ["…"] if isinstance(args, tuple) and len(args) > _MAX_ITEMS else []
    return f"{format_value(callee, _MAX_DEPTH)}({', '.join(inside + more)})"


def format_value(value: Any, depth: int = 0) -> str:
    """Return a value as it would be written; what is nested or long without end is cut."""
    if isinstance(value, Global):
        return plain(value.name)[:_MAX_TEXT]
    if isinstance(value, Opaque):
        is_inside = depth < _MAX_DEPTH and isinstance(value.args, tuple)
        args = (
            ", ".join(format_value(arg, depth + 1) for arg in value.args[:_MAX_ITEMS]) if is_inside else "…"
        )
        return f"{plain(value.name)[:_MAX_TEXT]}({args})"
    if isinstance(value, str | bytes | bytearray):
        return repr(value if len(value) <= _MAX_TEXT else value[:_MAX_TEXT]) + "…" * (len(value) > _MAX_TEXT)
    if isinstance(value, list | tuple) and depth < _MAX_DEPTH:
        text = ", ".join(format_value(item, depth + 1) for item in value[:_MAX_ITEMS])
        text += ", …" if len(value) > _MAX_ITEMS else ""
        return f"[{text}]" if isinstance(value, list) else f"({text}{',' * (len(value) == 1)})"
    if isinstance(value, int) and value.bit_length() > 64:
        return "a very large number"
    if value is None or isinstance(value, int | float):
        return str(value)
    return {dict: "{…}", list: "[…]", tuple: "(…)", Blob: "many bytes", Persistent: "a storage"}.get(
        type(value), "…"
    )
