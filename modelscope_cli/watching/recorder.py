"""The recorder: global hooks that look at every module and optimizer of a process, and change nothing.

What may be recorded is decided by the optimizers: forward passes since the last step of the one that owns a
model's weights belong to the next one.
"""

import math
import os
import sys
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
from modelscope_cli.hooks.torch_private import in_backward, is_transformed, unseen_by_modes
from modelscope_cli.records.naming import is_rectifier
from modelscope_cli.records.watch import BETWEEN, INPUT, OUTPUT, Birth
from modelscope_cli.watching.births import find_birth
from modelscope_cli.watching.forward_pass import ForwardPass, is_norm
from modelscope_cli.watching.functional import MOST_CALLS, FunctionalWatch, FunctionCall, Operation, type_of
from modelscope_cli.watching.losses import LossWatch, watched_losses
from modelscope_cli.watching.model_registry import CallKey, ModelRegistry, WatchedModel, is_wrapper, peel
from modelscope_cli.watching.parameters import StepWatch
from modelscope_cli.watching.saturation import count_saturated, dimension_of
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

    def on_birth(self, birth: Birth) -> None:
        """Called before the step in which values that are not finite began."""

    def on_event(self, step: int | None, kind: str, message: str) -> None:
        """Called when something is worth a word."""


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
        self._pass = ForwardPass()
        self._functional = FunctionalWatch(self._called)
        self._clocks: dict[int, Clock] = {}
        self._kinds: Counter[str] = Counter()
        self._stepping: list[OpenStep] = []
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
                    lambda: self._guard(self._after_backward),
                )
            )
            stack.callback(self._functional.switch, False)
            yield

    def _is_ours(self) -> bool:
        return not self._is_broken and os.getpid() == self._pid

    def _guard(self, look: Callable[..., None], *args: Any) -> None:
        """A mistake of ours must not end a training: say so once, and look no further."""
        try:
            with unseen_by_modes():
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
            self._guard(self._open, module, args)

    def _open(self, module: nn.Module, args: Any) -> None:
        now = self._pass
        if isinstance(module, torch.jit.ScriptModule) or getattr(module, "_is_replica", False):
            return
        if now.open and type(module).__name__ == "GraphModule" and self.registry.find(module) is None:
            return  # what the compiler made of the model
        if not now.open and self.registry.is_closed and self.registry.find(peel(module)) is None:
            return  # another model, or something around the one that is meant
        if not now.open:
            can_look_between = self._functional.begin()
            flagged, is_recorded = self._begin_pass(module)
            model = flagged if is_recorded else None
            now.begin(flagged, model, is_recorded and can_look_between, sys._getframe(3))
        name = None if now.flagged is None or is_wrapper(module) else self._name_in(now.flagged, module)
        if now.flagged is not None:
            around = now.open[-1] if now.open else None
            if around is None or around.name is None:
                now.flagged.flags.see(INPUT, "", 0, args)
            else:
                now.flagged.flags.see(BETWEEN, around.name, around.index, args)
        now.enter(module, name)
        self._functional.switch(now.wants_functions)

    def _name_in(self, model: WatchedModel, module: nn.Module) -> str | None:
        found, root = self.registry.find(module), model.root()
        if found is None and root is not None:  # a layer that was added since
            self.registry.register(root)
            found = self.registry.find(module)
        return found[1] if found is not None and found[0] is model else None

    def _begin_pass(self, module: nn.Module) -> tuple[WatchedModel | None, bool]:
        """Return the model that begins to run as it is trained, None for any other pass; and whether to record."""
        root = peel(module)
        found = self.registry.find(root)
        model = found[0] if found else self.registry.register(root)
        if type(module).__name__ == "OptimizedModule":
            message = "the model is compiled: its layers run as one and cannot be seen, its parameters can"
            self._tell_once("compiled", f"{message} (TORCH_COMPILE_DISABLE=1 shows the layers)")
        is_training = root.training and torch.is_grad_enabled()
        if model is None or not is_training or self.losses.is_reevaluated or is_transformed():
            return None, False
        model.flags.begin(root)
        if not model.is_recording or model.n_passes == _MOST_PASSES:
            return model, False
        model.n_passes += 1
        return model, True

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self._is_ours() and not in_backward():
            self._guard(self._close, module, output)

    def _close(self, module: nn.Module, output: Any) -> None:
        now = self._pass
        call = now.leave(module)
        self._functional.switch(now.wants_functions)
        if now.flagged is None or call is None or (is_wrapper(module) and not call.is_innermost):
            return
        module = peel(module)
        name = self._name_in(now.flagged, module)
        if name is None:
            return
        now.flagged.flags.see(OUTPUT, name, call.index, output)
        if now.model is not None and now.model.means(name, call.is_innermost or is_norm(module)):
            # A criterion gives a number, and is not a layer.
            tensors = [x for _, x in tensors_in(output) if x.is_floating_point() and x.ndim]
            if tensors:
                channel_dim = now.channels.find(module, tensors[0])
                what = Operation(type(module).__name__, channel_dim, dimension_of(module))
                self._look_at(now.model, (name, call.index), what, tensors[0])

    def _called(self, call: FunctionCall) -> None:
        if self._is_ours() and not in_backward() and not is_transformed():
            self._guard(self._look_between, call)

    def _look_between(self, call: FunctionCall) -> None:
        """Look at what a module computes by itself, see `functional`."""
        now, x = self._pass, call.find_output()
        if now.model is None or x is None or (key := now.count(call.name)) is None:
            return
        if now.open[-1].functions[call.name] > MOST_CALLS:
            message = f"of more than {MOST_CALLS} {call.name} in one call of a module the first are looked at"
            self._tell_once("many-calls", message)
            return
        now.model.flags.see(OUTPUT, *key, x)
        self._look_at(now.model, key, Operation(type_of(call.name), now.channels.find(None, x), call.dim), x)

    def _look_at(self, model: WatchedModel, key: CallKey, what: Operation, x: Tensor) -> None:
        sums = model.sums.get(key) or StepSums()
        try:
            sums.add_output(x, what.channel_dim if is_rectifier(what.type) else None)
            saturated = count_saturated(what.type, x, what.dim)
        except (TypeError, RuntimeError, NotImplementedError) as error:
            self._tell_once("unmeasured", f"{key[0] or what.type} has no statistics: {error}")
            return
        if saturated is not None:
            sums.add_saturated(*saturated)
        model.sums[key] = sums
        model.types[key] = what.type
        if x.requires_grad:
            x.register_hook(lambda gradient: self._arrived(sums, gradient))

    def _arrived(self, sums: StepSums, gradient: Tensor) -> None:
        if self._is_ours():
            self._guard(sums.add_gradient, gradient, self.losses.scale)

    # Steps. An optimizer may call another one's step, or its parent class's: the outermost counts.

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling() or not self._is_ours() or not self._means(optimizer):
            return
        self._stepping = [step for step in self._stepping if step.is_running()]
        self._pass.forget_broken()
        self._functional.switch(self._pass.wants_functions)
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
        if self._is_due(clock):
            self._stepping[0].watch = StepWatch(optimizer)

    def _is_due(self, clock: Clock) -> bool:
        return clock.is_due or is_recorded(clock.step, self._every)

    def _after_backward(self) -> None:
        for model in self.registry.models:
            root = model.root()
            if root is not None and model.flags.has_outputs:
                model.flags.see_gradients(root)

    def _tell_birth(self, clock: Clock, own: list[WatchedModel], loss: float | None) -> None:
        """Say where a step went wrong that follows one that did not."""
        labels = {model.label for model in own}
        others = [model for model in self.registry.models if model.label not in labels]
        birth = find_birth(own, others, clock.step, loss)
        clock.is_due = birth is not None and clock.was_finite
        if birth is not None and clock.was_finite:
            self._listener.on_birth(birth)
        clock.was_finite = birth is None

    def _clock(self, optimizer: Optimizer) -> Clock:
        clock = self._clocks.get(id(optimizer))
        if clock is None or clock.optimizer() is not optimizer:
            kind = type(optimizer).__name__
            self._kinds[kind] += 1
            label = f"{kind}#{self._kinds[kind]}" if self._kinds[kind] > 1 else kind
            clock = self._clocks[id(optimizer)] = Clock(weakref.ref(optimizer), label)
        return clock

    def _step_skipped(self, optimizer: Optimizer) -> None:
        if not self._means(optimizer):
            self.losses.drop()
            return
        self._guard(self._forget_step, optimizer)

    def _forget_step(self, optimizer: Optimizer) -> None:
        """What led to a step that a scaler left out is no part of the next one."""
        clock, loss, models = self._clock(optimizer), self.losses.take(), self._models_of(optimizer)
        step = clock.step
        for model in models:
            model.flags.forget_gradients()  # they are scaled, and often too large: that is why
        self._tell_birth(clock, models, loss)
        for model in models:
            model.begin_step(model.step, model.is_recording or clock.is_due)
        message = "the gradient scaler skipped a step: gradients were not finite"
        self._listener.on_event(step, "skipped", message)
        if loss is not None and not math.isfinite(loss):
            self._listener.on_event(step, "loss", f"the loss was {loss} where a step was skipped")

    def _models_of(self, optimizer: Optimizer) -> list[WatchedModel]:
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

    def _end_step(self, optimizer: Optimizer, watch: StepWatch | None, has_closure: bool) -> StepReport:
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
        self._tell_birth(clock, models, report.loss)
        clock.step += 1
        for model in models:
            if watch is not None:
                report.layers += [
                    (model.label, name, call, model.types[name, call], sums.row())
                    for (name, call), sums in model.sums.items()
                ]
            model.begin_step(clock.step, self._is_due(clock))
        if watch is not None:
            report.parameters = clock.name_rows(watch.finish(has_closure), self.registry)
            if all(model == clock.label for model, *_ in report.parameters):
                what = f"no model that {clock.label} trains was seen to run, so its layers are missing"
                self._tell_once(
                    "unseen", f"{what} (it is compiled by model.compile(), or is not an nn.Module)"
                )
        clock.ended = time.perf_counter()
        self.n_steps = max(self.n_steps, clock.step)
        self._n_counted += 1
        return report
