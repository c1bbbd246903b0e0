"""Functions that are dangerous or not by what they are called with. Standard library.

Honest files hold them too: a bound method is pickled as `getattr(object, 'name')`, `int | str` as
`reduce(or_, (int, str))`, and what fastai exports holds functions that cloudpickle has taken apart.
"""

from collections.abc import Callable
from typing import Any

from modelscope_cli.checkpoints.pickle_machine import Global, Opaque
from modelscope_cli.checkpoints.safety.known import KNOWN_NAMES
from modelscope_cli.checkpoints.safety.rank import Ranked, is_class_like, is_reaching, rank
from modelscope_cli.records.safety import DANGEROUS, UNKNOWN

_CLOUDPICKLE = "cloudpickle.cloudpickle."
_GETATTR = "builtins.getattr"
_PARTIALS = ("functools.partial", "_functools.partial")
_BUILTIN_TYPE = f"{_CLOUDPICKLE}_builtin_type"
_MAKE_FUNCTION = f"{_CLOUDPICKLE}_make_function"
_MAKERS = (_BUILTIN_TYPE, _MAKE_FUNCTION, f"{_CLOUDPICKLE}subimport")
_CELLS = [f"{_CLOUDPICKLE}{name}" for name in ("_make_empty_cell", "_make_cell", "_cell_set")]
_TYPES = (
    "CodeType",
    "MethodType",
    "CellType",
    "MappingProxyType",
    "ellipsis",
    "NotImplementedType",
    "NoneType",
)
_COMPUTED = Ranked(DANGEROUS, "uses what cannot be determined")


def is_reached(value: Opaque) -> bool:
    """Tell what was taken from elsewhere, was made out of bytes, or came out of either: it may be anything."""
    return (
        value.name.endswith("()") or value.name in (_GETATTR, *_MAKERS) or value.name.startswith("computed")
    )


def is_handed_code(value: Any) -> bool:
    """Tell a function that only does harm once somebody calls it, and that is not dangerous by its name."""
    if isinstance(value, Global):
        return value.name in JUDGED and value.name not in KNOWN_NAMES
    return isinstance(value, Opaque) and (value.name in _MAKERS or value.name == f"{_BUILTIN_TYPE}()")


def may_call(owner: Opaque) -> bool:
    """Tell what a call gave that may itself be called: one of cloudpickle's types, named by a plain word."""
    args = owner.args if isinstance(owner.args, tuple) else ()
    return owner.name == _BUILTIN_TYPE and len(args) == 1 and args[0] in ("CodeType", "MethodType")


def _getattr(values: tuple[Any, ...]) -> Ranked:
    """A bound method or a member of an enumeration is pickled so: an attribute with a plain name, of a class."""
    match values:
        case (Global() | Opaque() as owner, str(attribute), *_):
            reason = is_reaching(attribute)
            if reason is not None:
                return Ranked(DANGEROUS, reason)
            is_plain = attribute.isidentifier() and is_class_like(owner.name)
            is_fine = rank(owner).rank != DANGEROUS if isinstance(owner, Global) else not is_reached(owner)
            if is_plain and is_fine:
                return Ranked(UNKNOWN, f"takes '{attribute}' of '{owner.name}'")
            return Ranked(DANGEROUS, f"takes '{attribute[:40]}' of what may be a module")
    return _COMPUTED


def _partial(values: tuple[Any, ...]) -> Ranked:
    if values and isinstance(values[0], Global) and not is_handed_code(values[0]):
        return Ranked(UNKNOWN, f"will call '{values[0].name}'")
    return Ranked(DANGEROUS, "will call what cannot be determined")


def _reduce(values: tuple[Any, ...]) -> Ranked:
    match values:
        case (Global(name="_operator.or_" | "operator.or_"), tuple(kinds)) if all(
            isinstance(kind, Global) for kind in kinds
        ):
            return Ranked(UNKNOWN, "joins types")
    return Ranked(DANGEROUS, "calls a function repeatedly")


def _codec(values: tuple[Any, ...]) -> Ranked | None:
    is_usual = len(values) < 2 or values[1] in ("latin1", "latin-1", "utf-8", "utf8", "ascii")
    return None if is_usual else Ranked(DANGEROUS, "uses an encoding that no checkpoint has")


def _type(values: tuple[Any, ...]) -> Ranked | None:
    return None if len(values) == 1 else Ranked(DANGEROUS, "makes a class")


def _builtin_type(values: tuple[Any, ...]) -> Ranked:
    return Ranked(UNKNOWN, "names a type") if len(values) == 1 and values[0] in _TYPES else _COMPUTED


def _function_state(values: tuple[Any, ...]) -> Ranked:
    is_own = bool(values) and isinstance(values[0], Opaque) and values[0].name == _MAKE_FUNCTION
    return Ranked(UNKNOWN, "fills a function") if is_own else Ranked(DANGEROUS, "changes what it is given")


def _subimport(values: tuple[Any, ...]) -> Ranked:
    """A module that a function refers to: what is reached through it is judged where it is reached."""
    is_named = len(values) == 1 and isinstance(values[0], str) and values[0] != "antigravity"
    return Ranked(UNKNOWN, f"imports '{values[0][:40]}'") if is_named else _COMPUTED


def _made(values: tuple[Any, ...]) -> Ranked:
    return Ranked(UNKNOWN, "makes a function out of bytes, which nothing here calls")


# What is None is ranked by its name.
JUDGED: dict[str, Callable[[tuple[Any, ...]], Ranked | None]] = {
    _GETATTR: _getattr,
    **dict.fromkeys(_PARTIALS, _partial),
    **dict.fromkeys(("functools.reduce", "_functools.reduce"), _reduce),
    **dict.fromkeys(("_codecs.encode", "codecs.encode"), _codec),
    "builtins.type": _type,
    _BUILTIN_TYPE: _builtin_type,
    f"{_CLOUDPICKLE}_function_setstate": _function_state,
    f"{_CLOUDPICKLE}subimport": _subimport,
    **dict.fromkeys((_MAKE_FUNCTION, *_CELLS), _made),
}
