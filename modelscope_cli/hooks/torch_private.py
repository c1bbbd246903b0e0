"""Wrappers of private torch functions."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn, overrides
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.hooks import RemovableHandle

from modelscope_cli.records.run import Args, Kwargs

Function = TypeVar("Function", bound=Any)

without_modes = _disable_current_modes  # a context in which no mode sees operators
# One level of a container: its children by name, and a function that rebuilds it from other children.
Children = tuple[list[tuple[str, Any]], Callable[[list[Any]], Any]]


def left_alone_by_compiler(function: Function, *, with_callees: bool = True) -> Function:
    """Keep torch.compile from compiling a function called outside compiled code, as after a graph break.

    Compiled graphs do not change: inside one, the function is unaffected.

    Args:
        with_callees: also exclude the functions it calls; False if these are not ours.
    """
    doors = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    with contextlib.suppress(AttributeError):  # versions of torch without these functions compile it
        skip, default = doors._FrameAction.SKIP, doors._FrameAction.DEFAULT  # type: ignore[union-attr]
        strategy = doors._FrameExecStrategy(skip, skip if with_callees else default)  # type: ignore[union-attr]
        doors.set_code_exec_strategy(function.__code__, strategy)  # type: ignore[union-attr]
    return function


@left_alone_by_compiler
def in_backward() -> bool:
    """Tell whether a backward pass is running, as when checkpointing runs a layer again."""
    return torch._C._current_graph_task_id() != -1


@contextlib.contextmanager
def as_in_backward() -> Iterator[None]:
    """Say that a backward pass is running while open, so that checkpointing runs a layer again once for all its
    tensors, not for each."""
    original = torch._C._current_graph_task_id
    torch._C._current_graph_task_id = lambda: 0
    try:
        yield
    finally:
        torch._C._current_graph_task_id = original


def forward_sequence() -> int:
    """Return the number that the next node of the graph of autograd gets in this thread."""
    return int(torch._C._autograd._get_sequence_nr())


def backward_sequence() -> int | None:
    """Return the number of the node that a backward pass is computing; None outside one, and for a gradient that is
    only added up."""
    node = torch._C._current_autograd_node()
    read = getattr(node, "_sequence_nr", None)
    number = read() if read is not None else _OF_LEAVES
    return None if number >= _OF_LEAVES else int(number)


_OF_LEAVES = 2**63  # nodes that accumulate a gradient have the largest number of 64 bits


def remove_global_hook(handle: RemovableHandle) -> None:
    """Remove a hook of all modules, which torch leaves in the list of those that take keyword arguments."""
    handle.remove()
    nn.modules.module._global_forward_hooks_with_kwargs.pop(handle.id, None)


def is_transformed() -> bool:
    """Tell whether the caller runs inside a transform of `torch.func`, or is traced by `torch.jit`."""
    is_traced = torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    return is_traced or torch._C._functorch.peek_interpreter_stack() is not None


def has_compiled() -> bool:
    """Tell whether `torch.compile` was used in this process; True if unknown."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None:
        return False
    backends = getattr(dynamo, "cached_backends", None)
    # Functions excluded from compilation are listed there, too, with None.
    return backends is None or any(backend is not None for backend in backends.values())


def run_uncompiled() -> AbstractContextManager[Any]:
    """Run `torch.compile`d code eagerly while open."""
    if "torch._dynamo.eval_frame" not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


@contextlib.contextmanager
def without_checkpointing() -> Iterator[None]:
    """Make `torch.utils.checkpoint` keep all activations while open: recomputation in a backward pass cannot be
    followed, and `torch.autograd.grad` refuses the reentrant kind."""
    from torch.utils import checkpoint

    class _Direct:
        @staticmethod
        def apply(function: Any, preserve: bool, *args: Any) -> Any:
            return function(*args)

    def once(*args: Any, **kwargs: Any) -> Iterator[None]:
        yield  # while the function runs

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
    """Tell whether a module was made by `torch.compile(module)` or compiled by `module.compile()`."""
    has_inner = any(name == "_orig_mod" for name, _ in module.named_children())
    return has_inner or getattr(module, "_compiled_call_impl", None) is not None


def unseen_by_modes() -> AbstractContextManager[Any]:
    """Hide this thread's computations from all function modes while open."""
    return torch._C.DisableTorchFunction()


def insert_mode(mode: TorchFunctionMode, n_above: int | None) -> None:
    """Enable a function mode in this thread, below the last `n_above` that were entered; below all if None."""
    if n_above is None:
        n_above = overrides._len_torch_function_stack()  # type: ignore[attr-defined]
    above = [overrides._pop_mode() for _ in range(n_above)]
    for entered in (mode, *reversed(above)):
        overrides._push_mode(entered)


def remove_mode(mode: TorchFunctionMode) -> int:
    """Disable a function mode anywhere on the stack, and return how many were entered after it."""
    above: list[TorchFunctionMode] = []
    with contextlib.suppress(RuntimeError):  # the stack is empty: other code removed it
        while (top := overrides._pop_mode()) is not mode:
            above.append(top)
    for entered in reversed(above):
        overrides._push_mode(entered)
    return len(above)


def operators_shown_to(
    see: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None],
) -> AbstractContextManager[Any]:
    """Call `see(operator, args, kwargs, result)` for every operator that runs in this thread while open, below
    autograd, where only basic operators remain, except those run by `see`."""

    class _Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, operator: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
        ) -> Any:
            if torch.is_inference_mode_enabled():  # composite functions are not decomposed there
                with self:
                    result = operator.decompose(*args, **(kwargs or {}))
                if result is not NotImplemented:
                    return result
            result = operator(*args, **(kwargs or {}))
            see(operator, args, kwargs or {}, result)
            return result

    return _Mode()  # type: ignore[no-untyped-call]


def arguments_of(operator: Any, args: Args, kwargs: Kwargs) -> dict[str, Any]:
    """Return the arguments of an operator by name; empty if unknown."""
    parameters = getattr(getattr(operator, "_schema", None), "arguments", ())
    return {**{parameter.name: value for parameter, value in zip(parameters, args, strict=False)}, **kwargs}


def base_of(tensor: Tensor) -> Tensor | None:
    """Return the tensor that this one is a view of; None if it is not a view."""
    return tensor._base


def norms_at_once(tensors: list[Tensor]) -> list[Tensor]:
    """Return the norm of each floating-point tensor."""
    return list(torch._foreach_norm(tensors)) if tensors else []


def has_foreach(device: str) -> bool:
    """Tell whether optimizers step all tensors at once on this type of device, unless told otherwise."""
    return device in torch.utils._foreach_utils._get_foreach_kernels_supported_devices()


def version_of(tensor: Tensor) -> int:
    """Return a number that changes when the tensor is written to in place; 0 in inference mode.

    It is torch's version counter, which ignores writes by batch norm.
    """
    return 0 if tensor.is_inference() else tensor._version


def output_shape_of(node: Any) -> tuple[int, ...] | None:
    """Return the output shape of a graph node; None if unknown."""
    metadata = getattr(node, "_input_metadata", None)
    if not metadata:
        return None
    shape = getattr(metadata[0], "shape", None)
    return tuple(int(size) for size in shape) if shape is not None else None


def factor_of(node: Any) -> float | None:
    """Return the scalar that a graph node multiplies or divides by; None if it is not a constant scalar."""
    factor = getattr(node, "_saved_other", None)
    if isinstance(factor, Tensor):
        return float(factor) if factor.numel() == 1 and not factor.requires_grad else None
    return float(factor) if isinstance(factor, int | float) else None


def saved_in(node: Any, name: str) -> Tensor | None:
    """Return the tensor that a graph node keeps as `name` for its derivative; None if it is changed or unknown."""
    try:
        tensor = getattr(node, f"_saved_{name}", None)
    except RuntimeError:
        return None
    return tensor if isinstance(tensor, Tensor) else None


# What is not looked into: most values, as looking through the kinds of containers takes as long as a small layer.
PLAIN = type(None), int, float, str, slice, torch.dtype, torch.device


def children_of(value: Any) -> Children | None:
    """Return the children of a tuple, list, dict or other registered container; None for anything else."""
    if isinstance(value, (torch.Tensor, *PLAIN)):
        return None

    kind: Any = type(value)
    if kind in (tuple, list) and not any(child is value for child in value):  # in a tenth of the time
        return [(str(n), child) for n, child in enumerate(value)], kind
    if kind is dict and not any(child is value for child in value.values()):
        return [*zip(map(str, value), value.values(), strict=True)], lambda own: dict(
            zip(value, own, strict=True)
        )

    def is_inside(node: Any) -> bool:
        return node is not value

    try:
        with_paths, tree = pytree.tree_flatten_with_path(value, is_leaf=is_inside)
        children = [(".".join(map(_key, keys)), child) for keys, child in with_paths]
    except ValueError:  # a container type registered without names for its children
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


def leaves_of(value: Any) -> list[Any]:
    """Return the leaves of nested containers, in order."""
    children = children_of(value)
    return [value] if children is None else [leaf for _, child in children[0] for leaf in leaves_of(child)]


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested containers with every leaf replaced by `change(leaf)`, called in order."""
    children = children_of(value)
    if children is None:
        return change(value)
    return children[1]([map_leaves(child, change) for _, child in children[0]])


_MOST_NODES = 4096  # searched for leaves


def graph_leaves(loss: Any) -> list[Tensor]:
    """Return the leaves of a loss, in the order of the graph; only some of a huge graph."""
    nodes = [loss.grad_fn] if isinstance(loss, Tensor) and loss.grad_fn is not None else []
    visited: set[Any] = set()
    leaves: dict[int, Tensor] = {}
    while nodes and len(visited) < _MOST_NODES:
        node = nodes.pop()
        if node in visited:
            continue
        visited.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            leaves[id(leaf)] = leaf
        nodes += [other for other, _ in node.next_functions if other is not None]
    return list(leaves.values())
