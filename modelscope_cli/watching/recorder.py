"""The recorder: global hooks that look at every module and optimizer of a process, and change nothing.

What may be recorded is decided by the optimizers: forward passes since the last step of the one that owns a
model's weights belong to the next one.
"""

import math
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.optim import Optimizer
from torch.optim import optimizer as optim

from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.torch_private import in_backward
from modelscope_cli.watching.criteria import is_criterion
from modelscope_cli.watching.inferred import InferredSteps, inferred
from modelscope_cli.watching.losses import LossWatch, watched_losses
from modelscope_cli.watching.model_registry import ModelRegistry, WatchedModel, is_wrapper, kind_of, peel
from modelscope_cli.watching.owners import find_owners
from modelscope_cli.watching.parameters import Stepper, StepWatch
from modelscope_cli.watching.schedule import is_recorded
from modelscope_cli.watching.step_sums import StepSums
from modelscope_cli.watching.steps import Clock, OpenStep, StepReport

_MOST_PASSES = 512  # to one step; a model that no optimizer ever steps is not looked at for ever


_watching: set[int] = set()  # processes with a recorder in them: a fork takes this along


@contextmanager
def alone() -> Iterator[None]:
    """Be the only one who looks on in this process.

    Raises:
        UsageError: somebody does already (exit 2).
    """
    process = os.getpid()
    if process in _watching:
        message = "this process is watched already: what two of them saw could not be told apart"
        raise UsageError(message, "leave the first watch before the next, or give it several models")
    _watching.add(process)
    try:
        yield
    finally:
        _watching.discard(process)


class Listener(Protocol):
    """Who is told what was seen."""

    def on_step(self, report: StepReport) -> None:
        """Called after every optimizer step; may raise to stop the script."""

    def on_event(self, step: int | None, kind: str, message: str) -> None:
        """Called when something is worth a word."""


class _Pass(threading.local):
    """The calls that are open in this thread."""

    def __init__(self) -> None:
        self.open: list[tuple[nn.Module, bool]] = []  # a module, and whether no other was called inside
        self.model: WatchedModel | None = None  # None: nothing of this pass is recorded
        self.calls: Counter[str] = Counter()


class Recorder:
    """Everything that is seen in one process.

    Args:
        every: record every so many steps; None for the schedule of `is_recorded`.
        patterns: `--layer`, checked when the first model is trained.
        models: look at these only; None at every one that runs.
        optimizers: look at the steps of these only; none: at those of every one that trains a model.
    """

    def __init__(
        self,
        listener: Listener,
        every: int | None,
        patterns: tuple[str, ...],
        models: Sequence[nn.Module] | None = None,
        optimizers: Sequence[Optimizer] = (),
    ) -> None:
        self.registry = ModelRegistry(patterns, models)
        self._only = tuple(optimizers)
        self.n_steps = 0
        self._n_counted = 0  # of all optimizers together
        self._listener = listener
        self._every = every
        self.losses = LossWatch()
        self._pass = _Pass()
        self._clocks: dict[int, Clock] = {}
        self._kinds: Counter[str] = Counter()
        self._stepping: list[OpenStep] = []
        self._inferred = InferredSteps()
        self._pid = os.getpid()
        self._is_broken = False
        self._told: set[str] = set()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Look on while open; see `alone`."""
        with ExitStack() as stack:
            handles = [
                hooks.register_module_forward_pre_hook(self._enter),
                hooks.register_module_forward_hook(self._leave, always_call=True),
                optim.register_optimizer_step_pre_hook(self._before_step),
                optim.register_optimizer_step_post_hook(self._after_step),
            ]
            for handle in handles:
                stack.callback(handle.remove)
            stack.enter_context(
                watched_losses(
                    self.losses,
                    self._is_ours,
                    self._step_skipped,
                    lambda: self._n_counted,
                    begin=self.settle,
                    end=self._after_backward,
                )
            )
            yield
            self.settle()

    def _is_ours(self) -> bool:
        return not self._is_broken and os.getpid() == self._pid

    def _guard(self, look: Callable[..., None], *args: Any) -> None:
        """A mistake of ours must not end a training: say so once, and look no further."""
        try:
            look(*args)
        except Exception as error:
            self._is_broken = True
            what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            message = f"recording stopped, the training goes on; this is a bug in modelscope: {what}"
            self._listener.on_event(self.n_steps, "broken", message)

    def _tell_once(self, kind: str, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            self._listener.on_event(self.n_steps, kind, message)

    # Forward passes. Under torch.compile both hooks vanish: a graph that has to show its inside is another graph.

    def _enter(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self._is_ours() and not in_backward():
            self._guard(self._open, module)

    def _open(self, module: nn.Module) -> None:
        now = self._pass
        if isinstance(module, torch.jit.ScriptModule) or getattr(module, "_is_replica", False):
            return
        if now.open and type(module).__name__ == "GraphModule" and self.registry.find(module) is None:
            return  # what the compiler made of the model
        if not now.open and self.registry.is_closed and self.registry.find(peel(module)) is None:
            return  # another model, or something around the one that is meant
        if not now.open:
            self.settle()
            now.calls.clear()
            now.model = self._begin_pass(module)
        else:
            now.open[-1] = now.open[-1][0], False
        now.open.append((module, True))

    def _begin_pass(self, module: nn.Module) -> WatchedModel | None:
        root = peel(module)
        found = self.registry.find(root)
        model = found[0] if found else self.registry.register(root)
        if type(module).__name__ == "OptimizedModule":
            message = "the model is compiled: its layers run as one and cannot be seen, its parameters can"
            self._tell_once("compiled", f"{message} (TORCH_COMPILE_DISABLE=1 shows the layers)")
        is_training = root.training and torch.is_grad_enabled()
        if model is not None and torch.is_grad_enabled():
            model.has_run = True
        if model is None or not model.is_recording or not is_training:
            return None
        if model.n_passes == _MOST_PASSES or self.losses.is_reevaluated:
            return None
        model.n_passes += 1
        return model

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self._is_ours() and not in_backward():
            self._guard(self._close, module, output)

    def _close(self, module: nn.Module, output: Any) -> None:
        now = self._pass
        if not any(one is module for one, _ in now.open):
            return  # a pre-hook of the user's own raised before ours was called
        while now.open:
            opened, is_innermost = now.open.pop()
            if opened is module:
                break
        model = now.model
        if model is None or (is_wrapper(module) and not is_innermost):
            return
        module = peel(module)
        found = self.registry.find_in(model, module)
        if found is None or found[0] is not model:
            return
        if is_criterion(module, output):
            model.forget(found[1])
            if not found[1]:
                self.registry.set_aside(model)
        elif model.means(found[1], is_innermost):
            index = now.calls[found[1]]
            now.calls[found[1]] += 1
            self._look_at(model, found[1], index, kind_of(module), output)

    def _look_at(self, model: WatchedModel, name: str, index: int, kind: str, output: Any) -> None:
        tensors = [tensor for _, tensor in tensors_in(output) if tensor.is_floating_point()]
        if not tensors:
            return
        x, key = tensors[0], (name, index)
        sums = model.sums.get(key) or StepSums()
        try:
            sums.add_output(x)
        except (TypeError, RuntimeError, NotImplementedError) as error:
            self._tell_once("unmeasured", f"{name or kind} has no statistics: {error}")
            return
        model.sums[key] = sums
        model.types[key] = kind
        if x.requires_grad:
            x.register_hook(lambda gradient: self._arrived(sums, gradient))

    def _arrived(self, sums: StepSums, gradient: Tensor | None) -> None:
        # Of several outputs of a compiled graph those that the loss does not depend on are handed None.
        if self._is_ours() and gradient is not None:
            self._guard(sums.add_gradient, gradient, self.losses.scale)

    # Steps. An optimizer may call another one's step, or its parent class's: the outermost counts.

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling() or not self._is_ours():
            return
        self._inferred.forget()
        if not self._means(optimizer):
            return
        self._stepping = [step for step in self._stepping if step.is_running()]
        self._stepping.append(OpenStep(sys._getframe(1)))
        if len(self._stepping) == 1:
            self.losses.begin_step()
            self._guard(self._begin_step, optimizer)

    def _means(self, optimizer: Optimizer) -> bool:
        if self._only:
            return any(optimizer is one for one in self._only)
        return not self.registry.is_closed or bool(self._models_of(optimizer))

    def _begin_step(self, optimizer: Optimizer) -> None:
        clock = self._clock(optimizer)
        if is_recorded(clock.step, self._every):
            self._stepping[0].watch = StepWatch(optimizer)

    def _name_owners(self, optimizer: Stepper) -> None:
        known = self.registry.parameter_names()
        held = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in known]
        for owner in find_owners(held):
            self.registry.name(owner)

    def _clock(self, optimizer: Stepper) -> Clock:
        clock = self._clocks.get(id(optimizer))
        if clock is None or clock.optimizer() is not optimizer:
            kind = type(optimizer).__name__
            self._kinds[kind] += 1
            label = f"{kind}#{self._kinds[kind]}" if self._kinds[kind] > 1 else kind
            clock = self._clocks[id(optimizer)] = Clock(weakref.ref(optimizer), label)
        return clock

    def _step_skipped(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            return  # it does not tell of the steps that it takes
        if not self._means(optimizer):
            self.losses.drop()
            return
        self._guard(self._forget_step, optimizer)

    def _forget_step(self, optimizer: Optimizer) -> None:
        """What led to a step that a scaler left out is no part of the next one."""
        step = self._clock(optimizer).step
        for model in self._models_of(optimizer):
            model.begin_step(model.step, model.is_recording)
        loss = self.losses.take()
        message = "the gradient scaler skipped a step: gradients were not finite"
        self._listener.on_event(step, "skipped", message)
        if loss is not None and not math.isfinite(loss):
            self._listener.on_event(step, "loss", f"the loss was {loss} where a step was skipped")

    def _models_of(self, optimizer: Stepper) -> list[WatchedModel]:
        """Return the models some of whose weights an optimizer holds."""
        owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return [
            model
            for model in self.registry.models
            if (root := model.root()) is not None and any(id(p) in owned for p in root.parameters())
        ]

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling() or not self._is_ours():
            return
        if not self._means(optimizer):
            if not self._stepping:
                self.losses.drop()  # they belonged to this step
            return
        if not self._stepping:
            return
        watch = self._stepping.pop().watch
        if self._stepping:
            return
        has_closure = self.losses.end_step()
        found_inf = getattr(optimizer, "found_inf", None)
        if isinstance(found_inf, Tensor) and found_inf.any():
            return  # a fused optimizer leaves out by itself what a scaler says, which calls `_step_skipped`
        reports: list[StepReport] = []
        self._guard(lambda: reports.append(self._end_step(optimizer, watch, has_closure)))
        for report in reports:
            self._listener.on_step(report)

    def settle(self) -> None:
        """Report the steps since the last backward pass that no optimizer told of; see `inferred`."""
        reports: list[StepReport] = []
        if self._is_ours() and not self._stepping:
            self._guard(lambda: reports.extend(map(self._inferred_step, self._inferred.stepped())))
        for report in reports:
            self._listener.on_step(report)

    def _inferred_step(self, one: inferred) -> StepReport:
        return self._end_step(one, one.watch, has_closure=False)

    def _after_backward(self) -> None:
        self.settle()  # it may have stepped by itself, as it went
        if self._is_ours() and not self._stepping and not self._only:
            self._guard(self._inferred.remember, self.registry.models, self.losses.scale, self._is_due)

    def _is_due(self, one: inferred) -> bool:
        clock = self._clocks.get(id(one))  # not `_clock`: one that never steps needs no label
        step = clock.step if clock is not None and clock.optimizer() is one else 0
        return is_recorded(step, self._every)

    def _end_step(self, optimizer: Stepper, watch: StepWatch | None, has_closure: bool) -> StepReport:
        clock = self._clock(optimizer)
        now = time.perf_counter()
        report = StepReport(
            optimizer=clock.label,
            step=clock.step,
            loss=self.losses.take(),
            lr=[float(group["lr"]) for group in optimizer.param_groups if "lr" in group],
            ms=(now - clock.ended) * 1000 if clock.ended else None,
            is_recorded=watch is not None,
        )
        models = self._models_of(optimizer)
        for model in models:
            if watch is not None:
                report.layers += [
                    (model.label, name, call, model.types[name, call], sums.row())
                    for (name, call), sums in model.sums.items()
                ]
            model.begin_step(clock.step + 1, is_recorded(clock.step + 1, self._every))
            model.is_stepped = isinstance(optimizer, Optimizer)
        if watch is not None:
            if clock.step == 0:
                self._name_owners(optimizer)
            report.parameters = clock.name_rows(watch.finish(has_closure), self.registry)
            if not models:
                what = f"no model that {clock.label} trains was seen to run, so its layers are missing"
                why = "it is compiled by model.compile() or inside a function, is not an nn.Module, or never runs"
                self._tell_once("unseen", f"{what} ({why})")
        clock.step += 1
        clock.ended = time.perf_counter()
        self.n_steps = max(self.n_steps, clock.step)
        self._n_counted += 1
        return report
