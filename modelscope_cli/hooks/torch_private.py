"""Call the private functions of torch, each in one place that does without where torch has dropped it."""

import contextlib
import copy
import inspect
import sys
import zlib
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn, overrides
from torch.overrides import TorchFunctionMode

with contextlib.suppress(ImportError):
    import torch.utils._pytree
with contextlib.suppress(ImportError):
    import torch.utils._python_dispatch

Function = TypeVar("Function", bound=Any)

# One level of a container: its children by name, and what makes a container of the same kind of others.
Children = tuple[list[tuple[str, Any]], Callable[[list[Any]], Any]]


def left_alone_by_compiler(function: Function, *, with_callees: bool = True) -> Function:
    """Keep torch.compile from compiling a function that runs beside what it compiles, as behind a graph break.

    What is compiled is not another graph by that: where the function is called inside of one, nothing changes.

    Args:
        with_callees: nor what the function calls; False where that is code of others.
    """
    doors = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    with contextlib.suppress(AttributeError):  # a torch without these doors compiles what it comes across
        skip, default = doors._FrameAction.SKIP, doors._FrameAction.DEFAULT  # type: ignore[union-attr]
        strategy = doors._FrameExecStrategy(skip, skip if with_callees else default)  # type: ignore[union-attr]
        doors.set_code_exec_strategy(function.__code__, strategy)  # type: ignore[union-attr]
    return function


@left_alone_by_compiler
def in_backward() -> bool:
    """Tell whether a backward pass is running around the caller, as when checkpointing runs a layer once more."""
    current = getattr(torch._C, "_current_graph_task_id", None)
    return current() != -1 if current is not None else _is_called_by_autograd()


def _is_called_by_autograd() -> bool:
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        module, function = frame.f_globals.get("__name__"), frame.f_code.co_name
        if module in ("torch.autograd", "torch.autograd.graph"):
            return True
        if module == "torch.utils.checkpoint" and function in ("backward", "unpack_hook"):
            return True  # on an accelerator the backward pass has a thread of its own, which begins here
        frame = frame.f_back
    return False


def is_transformed() -> bool:
    """Tell whether the caller runs inside a transform of `torch.func`, or is traced by `torch.jit`."""
    is_tracing = getattr(torch.jit, "is_tracing", None)
    peek = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)
    return (is_tracing is not None and is_tracing()) or (peek is not None and peek() is not None)


def has_compiled() -> bool:
    """Tell whether anything in this process was given to `torch.compile`; True where that cannot be known."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None:
        return False
    backends = getattr(dynamo, "cached_backends", None)
    # What is kept from being compiled stands there as well, with None.
    return backends is None or any(backend is not None for backend in backends.values())


def run_uncompiled() -> AbstractContextManager[Any]:
    """While open, what was given to `torch.compile` runs as it was written."""
    stance = getattr(torch.compiler, "set_stance", None)
    if stance is None or "torch._dynamo.eval_frame" not in sys.modules:
        return nullcontext()
    return stance("force_eager")


@contextlib.contextmanager
def without_checkpointing() -> Iterator[None]:
    """While open, `torch.utils.checkpoint` keeps all activations: what it runs once more in a backward pass cannot
    be followed, and `torch.autograd.grad` refuses its reentrant kind."""
    from torch.utils import checkpoint

    class _Direct:
        @staticmethod
        def apply(function: Any, preserve: bool, *args: Any) -> Any:
            return function(*args)

    def once(*args: Any, **kwargs: Any) -> Iterator[None]:
        yield  # around the call of the function

    name = "_checkpoint_without_reentrant_generator"
    doors = {"CheckpointFunction": _Direct, name: once, f"{name}_impl": once}
    before = {door: getattr(checkpoint, door) for door in doors if hasattr(checkpoint, door)}
    for door in before:
        setattr(checkpoint, door, doors[door])
    try:
        yield
    finally:
        for door, original in before.items():
            setattr(checkpoint, door, original)


def is_compiled(module: nn.Module) -> bool:
    """Tell what `torch.compile(module)` made, and what `module.compile()` was called on."""
    has_inner = any(name == "_orig_mod" for name, _ in module.named_children())
    return has_inner or getattr(module, "_compiled_call_impl", None) is not None


def unseen_by_modes() -> AbstractContextManager[Any]:
    """While open, no function mode of anybody's sees what is computed in this thread."""
    return getattr(torch._C, "DisableTorchFunction", nullcontext)()


def can_move_modes() -> bool:
    """Tell whether `insert_mode` and `remove_mode` work."""
    return hasattr(overrides, "_push_mode") and hasattr(overrides, "_pop_mode")


def insert_mode(mode: TorchFunctionMode, n_above: int) -> None:
    """Switch a function mode on in this thread, below the `n_above` that were entered last."""
    above = [overrides._pop_mode() for _ in range(n_above)]
    for one in (mode, *reversed(above)):
        overrides._push_mode(one)


def remove_mode(mode: TorchFunctionMode) -> int:
    """Switch a function mode off, wherever it stands, and return how many were entered after it."""
    above: list[TorchFunctionMode] = []
    with contextlib.suppress(RuntimeError):  # nothing is left to take off: somebody else did
        while (top := overrides._pop_mode()) is not mode:
            above.append(top)
    for one in reversed(above):
        overrides._push_mode(one)
    return len(above)


def operators_shown_to(
    see: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None],
) -> AbstractContextManager[Any]:
    """While open, every operator that runs in this thread is shown to `see(operator, args, kwargs, result)`, below
    autograd, where functions and modules have become the few kinds of operators they are made of. What `see`
    computes itself is not shown. Where torch has no such door, nothing is."""
    dispatch = getattr(torch.utils, "_python_dispatch", None)
    if dispatch is None:
        return nullcontext()

    class _Mode(dispatch.TorchDispatchMode):  # type: ignore[name-defined,misc]
        def __torch_dispatch__(
            self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            if torch.is_inference_mode_enabled():  # where functions come as they are
                with self:
                    result = operator.decompose(*args, **(kwargs or {}))
                if result is not NotImplemented:
                    return result
            result = operator(*args, **(kwargs or {}))
            see(operator, args, kwargs or {}, result)
            return result

    return _Mode()


def arguments_of(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of an operator by name; empty where it does not tell."""
    known = getattr(getattr(operator, "_schema", None), "arguments", ())
    return {**{one.name: value for one, value in zip(known, args, strict=False)}, **kwargs}


def base_of(tensor: Tensor) -> Tensor | None:
    """Return the tensor that this one is a view of; None where it is not one, or torch does not tell."""
    base = getattr(tensor, "_base", None)
    return base if isinstance(base, Tensor) else None


def norms_at_once(tensors: list[Tensor]) -> list[Tensor]:
    """Return the norm of each of some tensors of a floating-point type."""
    together = getattr(torch, "_foreach_norm", None) if tensors else None
    return list(together(tensors)) if together else [torch.linalg.vector_norm(x) for x in tensors]


def version_of(tensor: Tensor) -> int:
    """Return a number that is another one after the tensor was written to in place; 0 in inference mode.

    It is torch's own count, which leaves out what batch norm writes; without it, a checksum of the values.
    """
    if tensor.is_inference():
        return 0
    try:
        return tensor._version
    except AttributeError:
        return _checksum(tensor)


def _checksum(tensor: Tensor) -> int:
    if tensor.is_meta or tensor.layout is not torch.strided or not tensor.numel():
        return 0
    values = tensor.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(values.view(torch.uint8).numpy().tobytes())


def output_shape_of(node: Any) -> tuple[int, ...] | None:
    """Return the shape of what a node of the graph gave; None where it does not tell."""
    known = getattr(node, "_input_metadata", None)
    if not known:
        return None
    shape = getattr(known[0], "shape", None)
    return tuple(int(size) for size in shape) if shape is not None else None


def factor_of(node: Any) -> float | None:
    """Return the number that a node of the graph multiplies or divides by; None where that is not a lone number."""
    factor = getattr(node, "_saved_other", None)
    if isinstance(factor, Tensor):
        return float(factor) if factor.numel() == 1 else None
    return float(factor) if isinstance(factor, int | float) else None


def children_of(value: Any) -> Children | None:
    """Return what a tuple, list, dict or other known container holds, one level deep; None for anything else."""
    pytree = getattr(torch.utils, "_pytree", None)
    if pytree is None:
        return _plain_children(value)

    def is_inside(node: Any) -> bool:
        return node is not value

    try:
        with_paths, tree = pytree.tree_flatten_with_path(value, is_leaf=is_inside)
        children = [(".".join(map(_key, keys)), child) for keys, child in with_paths]
    except ValueError:  # a kind of container that was registered without names for what it holds
        leaves, tree = pytree.tree_flatten(value, is_leaf=is_inside)
        children = [(str(n), child) for n, child in enumerate(leaves)]
    if any(child is value for _, child in children):
        return None
    return children, lambda others: pytree.tree_unflatten(others, tree)


def _key(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _plain_children(value: Any) -> Children | None:
    kind = type(value)
    if kind in (dict, OrderedDict, defaultdict):

        def refilled(others: list[Any]) -> Any:
            made = copy.copy(value)
            made.update(zip(value, others, strict=True))
            return made

        return [(str(key), child) for key, child in value.items()], refilled
    if kind in (tuple, list, deque):
        children = [(str(n), child) for n, child in enumerate(value)]
        return children, lambda others: deque(others, value.maxlen) if kind is deque else kind(others)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True)), lambda others: kind(*others)
    return None


def leaves_of(value: Any) -> list[Any]:
    """Return everything in nested containers that is not one itself, in order."""
    children = children_of(value)
    return [value] if children is None else [leaf for _, child in children[0] for leaf in leaves_of(child)]


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested containers with `change(leaf)` in the place of every leaf, called in order."""
    children = children_of(value)
    if children is None:
        return change(value)
    return children[1]([map_leaves(child, change) for _, child in children[0]])
