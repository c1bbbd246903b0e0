"""What the tests of a suite do to the modules that they run, for `pytest --modelscope`."""

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
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

_MOST_RUNS = 20  # of a class: more tell nothing new
_LIBRARIES = ("torch.", "torchvision.")  # whose classes are not the user's


class _Running(threading.local):
    """The open calls of this thread, and the modules called in the outermost."""

    def __init__(self) -> None:
        self.stack: list[nn.Module] = []
        self.called: set[int] = set()


class ModuleWatch:
    """Global hooks that are in place while a test runs."""

    def __init__(self) -> None:
        # Ordered sets of tuples. `marks`: test, and what it did; `tests`: those that ran a module; `facts`: the
        # class of an outermost module, kind and name; see `conclude` of the plug-in.
        self.seen: dict[str, dict[tuple[str, ...], None]] = {"marks": {}, "tests": {}, "facts": {}}
        self._n_runs: defaultdict[str, int] = defaultdict(int)
        self._known: dict[int, weakref.ref[nn.Module]] = {}  # outermost modules so far
        # What a test left on a module that may live on: the test, the text, and whether it is still so.
        self._left: defaultdict[int, list[tuple[str, str, Callable[[], bool]]]] = defaultdict(list)

    def begin(self, test: str) -> None:
        """Attach the hooks before the set-up of a test."""
        self._test, self._first_hook, self._running = test, RemovableHandle.next_id, _Running()
        self._roots: dict[int, weakref.ref[nn.Module]] = {}
        self._values: list[tuple[str, str, nn.Parameter, Tensor]] = []  # class, name, and value before a step
        self._known = {key: ref for key, ref in self._known.items() if ref() is not None}
        self._modes = {key: _modes(ref()) for key, ref in self._known.items()}
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_pre_hook(lambda optimizer, *_: self._before_step(optimizer)),
            register_optimizer_step_post_hook(lambda *_: self._after_step()),
        ]

    def call_begins(self) -> None:
        """Tell the hooks of the test itself from those of its fixtures."""
        self._first_hook = RemovableHandle.next_id

    def end(self) -> None:
        """Remove the hooks after the tear-down of a test, and look at what it leaves."""
        for handle in self._handles:
            handle.remove()
        self._read_gradients()
        for key, root in [(key, root) for key, ref in self._roots.items() if (root := ref()) is not None]:
            for name, module in root.named_modules():
                text = f"leaves a hook on {name} of {type(root).__name__}".replace("on  of", "on")
                new = [hook for hook in hooks_of(module) if hook >= self._first_hook]
                self._left[key] += [(self._test, text, _has_hook(module, hook)) for hook in new]
        for key, modes in self._modes.items():
            known = self._known[key]()
            if known is not None and (now := _modes(known)) != modes:
                kind, mode = type(known).__name__, "train" if known.training else "eval"
                text = f"leaves layers of {kind} in another mode than before"
                if now[0] != modes[0]:
                    text = f"leaves {kind} in {mode} mode, unlike before"
                is_so = partial(lambda ref, now: _modes(ref()) == now, self._known[key], now)
                self._left[key].append((self._test, text, is_so))
        self._known |= self._roots

    @left_alone_by_compiler
    def _enter(self, module: nn.Module, args: Any) -> None:
        if (
            torch.compiler.is_compiling()
        ):  # the compiler traces this; a graph is seen as one call from outside
            return
        running = self._running
        if not running.stack:
            if in_backward() or is_transformed():
                return  # recomputed by checkpointing, or traced
            self.seen["tests"][(self._test,)] = None
            self._roots.setdefault(id(module), weakref.ref(module))
            running.called = set()
            self._promote(module)
        running.stack.append(module)
        running.called.add(id(module))

    def _promote(self, root: nn.Module) -> None:
        """Mark earlier tests for what this one finds on the module that it runs."""
        ref = self._known.get(id(root))
        waiting = self._left.pop(id(root), []) if ref is not None and ref() is root else []
        for test, text, is_so in waiting:
            if test != self._test and is_so():
                self._mark(f"{text}; {self._test.rpartition('::')[2]} ran it so", test)

    @left_alone_by_compiler
    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
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
        if not has_dispatch_modes():
            bad = _not_finite(tensors)
            if bad and not _not_finite([tensor for _, tensor in tensors_in(args)]):
                cause = _not_finite([*root.parameters(), *root.buffers()])
                cause = f"its parameters hold {cause}" if cause else "its inputs and parameters are finite"
                self._mark(f"{bad} in the output of {kind.__name__}; {cause}")
        if f"{kind.__module__}.".startswith(_LIBRARIES):
            return
        name = f"{kind.__module__}.{kind.__qualname__}"
        self._n_runs[name] += 1
        if self._n_runs[name] > _MOST_RUNS or not any(tensor.requires_grad for tensor in tensors):
            return
        called = (label for label, module in root.named_modules() if id(module) in self._running.called)
        self._note(name, "called", called)

    def _read_gradients(self) -> None:
        """Note which parameters have a gradient, before an optimizer steps and at the end of a test."""
        for name, root in self._classes_of_roots():
            parameters = [(label, value) for label, value in root.named_parameters() if value.requires_grad]
            got = {label for label, value in parameters if value.grad is not None}
            if got and self._n_runs[name]:
                self._note(name, "backward", [self._test])
                self._note(name, "asked", (label for label, _ in parameters))
                self._note(name, "got", got)

    def _before_step(self, optimizer: Optimizer) -> None:
        """Copy the parameters with a gradient that no step of an optimizer has changed so far."""
        self._read_gradients()
        self._values = []
        rates = {
            id(value): group.get("lr", 1) for group in optimizer.param_groups for value in group["params"]
        }
        with torch.no_grad(), unseen_by_modes():
            for name, root in self._classes_of_roots():
                parameters = [
                    (label, value) for label, value in root.named_parameters() if _has_values(value)
                ]
                if not self._n_runs[name] or not any(rates.get(id(value), 0) for _, value in parameters):
                    continue
                for label, value in parameters:
                    is_new = (name, "moved", label) not in self.seen["facts"] and rates.get(id(value), 1)
                    if is_new and value.grad is not None and value.grad.any():
                        self._values.append((name, label, value, value.detach().clone()))

    def _after_step(self) -> None:
        with torch.no_grad(), unseen_by_modes():
            for name, label, value, before in self._values:
                self._note(name, "moved" if not torch.equal(value, before) else "stood", [label])
                self._note(name, "steps", [self._test])
        self._values = []

    def _classes_of_roots(self) -> list[tuple[str, nn.Module]]:
        roots = [root for ref in self._roots.values() if (root := ref()) is not None]
        return [(f"{type(root).__module__}.{type(root).__qualname__}", root) for root in roots]

    def _note(self, name: str, kind: str, values: Iterable[str]) -> None:
        self.seen["facts"].update(((name, kind, value), None) for value in values)

    def _mark(self, text: str, test: str | None = None) -> None:
        self.seen["marks"][test or self._test, text] = None


def _has_hook(module: nn.Module, hook: int) -> Callable[[], bool]:
    ref = weakref.ref(module)
    return lambda: (alive := ref()) is not None and hook in hooks_of(alive)


def _modes(root: nn.Module | None) -> tuple[bool, ...]:
    return () if root is None else tuple(module.training for module in root.modules())


def _not_finite(tensors: list[Tensor]) -> str:
    """Return `NaN` or `inf`, whichever plain tensors hold; empty for neither. Minus infinity is what masks hold."""
    for tensor in tensors:
        if _has_values(tensor) and (torch.isnan(tensor).any() or torch.isposinf(tensor).any()):
            return "NaN" if torch.isnan(tensor).any() else "inf"
    return ""


def _has_values(tensor: Tensor) -> bool:
    is_plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
    return is_plain and tensor.is_floating_point() and not tensor.is_meta
