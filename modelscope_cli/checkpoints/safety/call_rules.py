"""Judge calls of functions that call, look up or construct their arguments. Standard library.

Harmless files contain them, too: a bound method is pickled as `getattr(object, 'name')`, `int | str` as
`reduce(or_, (int, str))`, and fastai exports contain functions taken apart by cloudpickle.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from modelscope_cli.checkpoints.pickle_machine import Global, Opaque
from modelscope_cli.checkpoints.safety.known_names import ENUMS, HASHES, KNOWN_NAMES, LISTS, READS
from modelscope_cli.checkpoints.safety.rank import Rating, is_class_like, is_reaching, rank
from modelscope_cli.records.weights import DANGEROUS, KNOWN, UNKNOWN

_CLOUDPICKLE = "cloudpickle.cloudpickle."
GETATTR = "builtins.getattr"
PARTIALS = ("functools.partial", "_functools.partial")
LOADS_BYTES = "torch.storage._load_from_bytes"
_BUILTIN_TYPE = f"{_CLOUDPICKLE}_builtin_type"
_MAKE_FUNCTION = f"{_CLOUDPICKLE}_make_function"
_MAKERS = (_BUILTIN_TYPE, _MAKE_FUNCTION, f"{_CLOUDPICKLE}subimport")
_CELLS = [f"{_CLOUDPICKLE}{name}" for name in ("_make_empty_cell", "_make_cell", "_cell_set")]
_TYPES = (
    *("CodeType", "MethodType", "CellType", "MappingProxyType"),
    *("ellipsis", "NotImplementedType", "NoneType"),
)
_REBUILDERS = ("torch._utils._rebuild_", "torch.nested._internal.nested_tensor._rebuild_njt")
_COMPUTED = Rating(DANGEROUS, "uses an object that cannot be determined")


@dataclass(frozen=True, slots=True)
class ForwardedCall:
    """A call that a function makes with its arguments."""

    how: str
    callee: Any
    args: Any
    keywords: Any = None
    state: Any = None  # the state set on its result


# None if known with these arguments, or a section of known names for what else is done with them.
Verdict = Rating | ForwardedCall | str | None


def is_reached(value: Opaque) -> bool:
    """Tell whether a value was looked up, unpickled from bytes, or derived from such: it may be anything."""
    return value.name.endswith("()") or value.name in (GETATTR, *_MAKERS) or value.name.startswith("computed")


def is_handed_code(value: Any) -> bool:
    """Tell whether a function is harmful only when called, and not dangerous by its name."""
    if isinstance(value, Global):
        return value.name in HARMFUL
    return isinstance(value, Opaque) and (value.name in _MAKERS or value.name == f"{_BUILTIN_TYPE}()")


def may_call(owner: Opaque) -> bool:
    """Tell whether the result of a call may be called: one of cloudpickle's types, named by a plain word."""
    args = owner.args if isinstance(owner.args, tuple) else ()
    return owner.name == _BUILTIN_TYPE and len(args) == 1 and args[0] in ("CodeType", "MethodType")


def resolved(name: str, args: Any) -> Global | Opaque | None:
    """Return the known function found by `getattr`, or the object made by `copyreg`; None for anything else."""
    match name, args:
        case "copyreg._reconstructor" | "copyreg.__newobj__" | "copyreg.__newobj_ex__", (
            Global(name=kind),
            *rest,
        ):
            return Opaque(kind, tuple(rest))
        case "builtins.getattr", (Global() as owner, str(attribute)):
            dotted = f"{owner.name}.{attribute}"
            return Global(dotted, owner.module) if dotted in KNOWN_NAMES else None
    return None


def _getattr(values: tuple[Any, ...]) -> Verdict:
    """Judge `getattr`: bound methods and enum members are pickled as a plainly named attribute of a class."""
    match values:
        case (Global() | Opaque() as owner, str(attribute), *_):
            is_member = owner.name in ENUMS and attribute.isidentifier() and not attribute.startswith("_")
            if isinstance(owner, Global) and (is_member or resolved(GETATTR, values[:2])):
                return None
            reason = is_reaching(attribute)
            if reason is not None:
                return Rating(DANGEROUS, reason)
            is_plain = attribute.isidentifier() and is_class_like(owner.name)
            is_fine = rank(owner).rank != DANGEROUS if isinstance(owner, Global) else not is_reached(owner)
            if is_plain and is_fine:
                return Rating(UNKNOWN, f"takes '{attribute}' of '{owner.name}'")
            return Rating(DANGEROUS, f"takes '{attribute[:40]}' of a possible module")
    return _COMPUTED


def _partial(values: tuple[Any, ...]) -> Verdict:
    """Judge `partial`, which only keeps its arguments; the function is ranked by its own name."""
    match values:
        case (Global(name=name), *_) if name not in HARMFUL:
            return None
        case (Opaque() as owner, *_) if not owner.name.endswith("()") and not owner.name.startswith(
            "computed"
        ):
            return Rating(UNKNOWN, f"will call the result of '{owner.name}'")
    return Rating(DANGEROUS, "will call an object that cannot be determined")


def _reduce(values: tuple[Any, ...]) -> Verdict:
    match values:
        case (Global(name="_operator.or_" | "operator.or_"), tuple(kinds)) if all(
            isinstance(kind, Global) for kind in kinds
        ):
            return Rating(UNKNOWN, "joins types")
    return Rating(DANGEROUS, "calls a function repeatedly")


def _getitem(values: tuple[Any, ...]) -> Verdict:
    match values:
        case (Global() as owner, _) if owner.name.startswith("typing.") and owner.name in KNOWN_NAMES:
            return HASHES
    return Rating(DANGEROUS, "takes an item of an object that is not a type hint")


def _codec(values: tuple[Any, ...]) -> Verdict:
    is_usual = len(values) < 2 or values[1] in ("latin1", "latin-1", "utf-8", "utf8", "ascii")
    return READS if is_usual else Rating(DANGEROUS, "uses an encoding that no checkpoint has")


def _builtin_type(values: tuple[Any, ...]) -> Verdict:
    return Rating(UNKNOWN, "names a type") if len(values) == 1 and values[0] in _TYPES else _COMPUTED


def _function_state(values: tuple[Any, ...]) -> Verdict:
    is_own = bool(values) and isinstance(values[0], Opaque) and values[0].name == _MAKE_FUNCTION
    return Rating(UNKNOWN, "fills a function") if is_own else Rating(DANGEROUS, "changes its argument")


def _subimport(values: tuple[Any, ...]) -> Verdict:
    """Judge the import of a module for a function: lookups in it are judged separately."""
    is_named = len(values) == 1 and isinstance(values[0], str) and values[0] != "antigravity"
    return Rating(UNKNOWN, f"imports '{values[0][:40]}'", is_call=True) if is_named else _COMPUTED


def _reconstructor(values: tuple[Any, ...]) -> Verdict:
    """Judge `object.__new__(cls)`, or `base.__new__(cls, state)` and `base.__init__`."""
    match values:
        case (kind, Global(name="builtins.object"), None):
            return ForwardedCall("NEWOBJ", kind, ())
        case (kind, Global() as base, state):
            return (
                ForwardedCall("REDUCE", base, (state,))
                if rank(base).rank == KNOWN
                else ForwardedCall("NEWOBJ", kind, (state,))
            )
    return _COMPUTED


def _from_type(values: tuple[Any, ...]) -> Verdict:
    match values:
        case (Global() as function, Global(), args, state):
            if function.name.startswith(_REBUILDERS):
                return ForwardedCall("REDUCE", function, args, state=state)
            if rank(function).rank == KNOWN:
                return Rating(DANGEROUS, f"receives '{function.name}' to call, which torch never does")
            return ForwardedCall("REDUCE", function, args)
    return _COMPUTED


def _parameter(values: tuple[Any, ...]) -> Verdict:
    if len(values) != 4:
        return _COMPUTED
    return ForwardedCall(
        "REDUCE", Global("torch._utils._rebuild_parameter", "torch._utils"), values[:3], state=values[3]
    )


CALL_RULES: dict[str, Callable[[tuple[Any, ...]], Verdict]] = {
    GETATTR: _getattr,
    **dict.fromkeys(PARTIALS, _partial),
    **dict.fromkeys(("functools.reduce", "_functools.reduce"), _reduce),
    **dict.fromkeys(("operator.getitem", "_operator.getitem"), _getitem),
    **dict.fromkeys(("_codecs.encode", "codecs.encode"), _codec),
    "builtins.type": lambda values: None if len(values) == 1 else Rating(DANGEROUS, "makes a class"),
    "builtins.iter": lambda values: LISTS if len(values) == 1 else Rating(DANGEROUS, "calls its argument"),
    _BUILTIN_TYPE: _builtin_type,
    f"{_CLOUDPICKLE}_function_setstate": _function_state,
    f"{_CLOUDPICKLE}subimport": _subimport,
    **dict.fromkeys(
        (_MAKE_FUNCTION, *_CELLS),
        lambda _: Rating(UNKNOWN, "makes a function out of bytes, which nothing here calls", is_call=True),
    ),
    "copyreg._reconstructor": _reconstructor,
    "copyreg.__newobj__": lambda v: ForwardedCall("NEWOBJ", v[0], v[1:]) if v else _COMPUTED,
    "copyreg.__newobj_ex__": lambda v: ForwardedCall("NEWOBJ_EX", *v) if len(v) == 3 else _COMPUTED,
    "torch._tensor._rebuild_from_type_v2": _from_type,
    "torch._utils._rebuild_parameter_with_state": _parameter,
}
# Functions that are harmful when called by something else.
HARMFUL = {LOADS_BYTES, *CALL_RULES} - {"_codecs.encode", "codecs.encode"}
