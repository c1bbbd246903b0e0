"""What the tests of a suite do to the modules that they run, for `pytest --modelscope`."""

import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.torch_private import (
    has_dispatch_modes,
    hooks_of,
    in_backward,
    is_transformed,
    left_alone_by_compiler,
    unseen_by_modes,
)

_MOST_RUNS = 20  # of a class whose graph is followed: more tell nothing new
_LIBRARIES = ("torch.", "torchvision.")  # whose classes are not the user's


class _Running(threading.local):
    """The open calls of this thread, and the modules called in the outermost."""

    def __init__(self) -> None:
        self.stack: list[nn.Module] = []
        self.called: set[int] = set()


class ModuleWatch:
    """Global hooks that are in place while a test runs.

    Attributes:
        marks: test, and what it did.
        facts: by class of the outermost modules, sets of names; see `conclude` of the plug-in.
        tests: those that ran a module.
    """

    def __init__(self) -> None:
        self.marks: list[tuple[str, str]] = []
        self.facts: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.tests: set[str] = set()
        self._n_runs: defaultdict[str, int] = defaultdict(int)
        self._running = _Running()
        self._known: dict[int, weakref.ref[nn.Module]] = {}  # outermost modules so far
        self._left: dict[int, list[tuple[str, str, Any]]] = {}  # by a test, of a module that may live on
        self._handles: list[RemovableHandle] = []

    def begin(self, test: str) -> None:
        """Attach the hooks before the set-up of a test."""
        self._test, self._first_hook = test, _next_hook()
        self._roots: dict[int, weakref.ref[nn.Module]] = {}
        self._known = {key: ref for key, ref in self._known.items() if ref() is not None}
        self._modes = {key: _modes(ref()) for key, ref in self._known.items()}

        @left_alone_by_compiler
        def enter(module: nn.Module, args: Any) -> None:
            self._enter(module)

        @left_alone_by_compiler
        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self._leave(module, args, output)

        self._handles = [
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave, always_call=True),
            register_optimizer_step_pre_hook(lambda *_: self._read_gradients()),
        ]

    def call_begins(self) -> None:
        """Tell the hooks of the test itself from those of its fixtures."""
        self._first_hook = _next_hook()

    def end(self) -> None:
        """Remove the hooks after the tear-down of a test, and look at what it leaves."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._running = _Running()
        self._read_gradients()
        for key, root in self._alive():
            left: list[tuple[str, str, Any]] = []
            for name, module in root.named_modules():
                for hook_id in hooks_of(module):
                    if hook_id >= self._first_hook:
                        where = f"{name} of {type(root).__name__}" if name else type(root).__name__
                        left.append((self._test, f"leaves a hook on {where}", (module, hook_id)))
            self._left.setdefault(key, []).extend((test, text, _weak(what)) for test, text, what in left)
        for key, modes in self._modes.items():
            root_now = self._known[key]()
            if root_now is not None and (now := _modes(root_now)) != modes:
                mode = "train" if root_now.training else "eval"
                text = f"leaves {type(root_now).__name__} in {mode} mode, as it was not before"
                if now[1:] != modes[1:] and now[:1] == modes[:1]:
                    text = f"leaves layers of {type(root_now).__name__} in another mode than before"
                self._left.setdefault(key, []).append((self._test, text, now))
        self._known |= self._roots

    def _alive(self) -> Iterator[tuple[int, nn.Module]]:
        for key, ref in self._roots.items():
            if (root := ref()) is not None:
                yield key, root

    def _enter(self, module: nn.Module) -> None:
        running = self._running
        if not running.stack:
            if in_backward() or is_transformed():
                return  # recomputed by checkpointing, or traced
            self.tests.add(self._test)
            self._roots.setdefault(id(module), weakref.ref(module))
            running.called = set()
            self._promote(module)
        running.stack.append(module)
        running.called.add(id(module))

    def _promote(self, root: nn.Module) -> None:
        """Mark earlier tests for what this one finds on the module that it runs."""
        ref = self._known.get(id(root))
        waiting = self._left.pop(id(root), []) if ref is not None and ref() is root else []
        for test, text, what in waiting:
            if test == self._test:
                continue
            if isinstance(what, tuple) and callable(what[0]):
                module = what[0]()
                is_there = module is not None and what[1] in hooks_of(module)
            else:
                is_there = what == _modes(root)
            if is_there:
                self._mark(f"{text}; {self._test.rpartition('::')[2]} ran it so", test)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        stack = self._running.stack
        if not any(one is module for one in stack):
            return
        while stack.pop() is not module:
            pass  # a call that ended without its hook
        if not stack and output is not None:
            with torch.no_grad(), unseen_by_modes():
                self._look_at(module, args, output)

    def _look_at(self, root: nn.Module, args: Any, output: Any) -> None:
        kind, tensors = type(root), [tensor for _, tensor in tensors_in(output)]
        if not has_dispatch_modes() and not torch.compiler.is_compiling():
            bad = _not_finite(tensors)
            if bad and not _not_finite([tensor for _, tensor in tensors_in(args)]):
                cause = _not_finite([*root.parameters(), *root.buffers()])
                cause = f"its parameters hold {cause}" if cause else "its inputs and parameters are finite"
                self._mark(f"{bad} in the output of {kind.__name__}; {cause}")
        if f"{kind.__module__}.".startswith(_LIBRARIES):
            return
        name = f"{kind.__module__}.{kind.__qualname__}"
        self._n_runs[name] += 1
        nodes = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
        if self._n_runs[name] > _MOST_RUNS or not nodes:
            return  # without a graph, a layer whose weights are only read looks idle
        facts, variables = self.facts[name], _variables(nodes)
        facts["runs"].add(self._test)
        facts["used"] |= {label for label, value in root.named_parameters() if id(value) in variables}
        for label, module, is_judged in _modules(root):
            if id(module) in self._running.called:
                facts["called"].add(label)
            elif is_judged:
                facts["modules"].add(label)

    def _read_gradients(self) -> None:
        """Note which parameters have a gradient, before an optimizer steps and at the end of a test."""
        for _, root in self._alive():
            name = f"{type(root).__module__}.{type(root).__qualname__}"
            parameters = [(label, value) for label, value in root.named_parameters() if value.requires_grad]
            got = {label for label, value in parameters if value.grad is not None}
            if got and "runs" in self.facts.get(name, ()):
                self.facts[name]["backward"].add(self._test)
                self.facts[name]["asked"] |= {label for label, _ in parameters}
                self.facts[name]["got"] |= got

    def _mark(self, text: str, test: str | None = None) -> None:
        if (mark := (test or self._test, text)) not in self.marks:
            self.marks.append(mark)


def _next_hook() -> int:
    """Return the number that the next hook gets."""
    return RemovableHandle.next_id


def _weak(what: tuple[nn.Module, int]) -> Any:
    return weakref.ref(what[0]), what[1]


def _modes(root: nn.Module | None) -> tuple[bool, ...]:
    return () if root is None else tuple(module.training for module in root.modules())


def _modules(root: nn.Module) -> Iterator[tuple[str, nn.Module, bool]]:
    """Yield the name of every module, and whether it should be called: it has parameters of its own, its parent is
    not torch's, and it is not one of several in a list of which some are called, as experts are."""
    parents = {id(child): module for module in root.modules() for child in module.children()}
    for name, module in root.named_modules():
        parent = parents.get(id(module))
        has_own = next(module.parameters(recurse=False), None) is not None
        is_free = parent is not None and type(parent).__module__.startswith("torch.")
        yield name, module, bool(name) and has_own and not is_free


def _variables(nodes: list[Any]) -> set[int]:
    """Return the ids of the tensors at the ends of a graph."""
    visited, ids = set(nodes), set()
    while nodes:
        node = nodes.pop()
        if (variable := getattr(node, "variable", None)) is not None:
            ids.add(id(variable))
        for other, _ in node.next_functions:
            if other is not None and other not in visited:
                visited.add(other)
                nodes.append(other)
    return ids


def _not_finite(tensors: list[Tensor]) -> str:
    """Return `NaN` or `inf`, whichever plain tensors hold; empty for neither. Minus infinity is what masks hold."""
    for tensor in tensors:
        is_plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
        if (
            is_plain
            and tensor.is_floating_point()
            and not tensor.is_meta
            and not torch.isfinite(tensor).all()
        ):
            if torch.isnan(tensor).any():
                return "NaN"
            if torch.isposinf(tensor).any():
                return "inf"
    return ""
