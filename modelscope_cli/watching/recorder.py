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
from modelscope_cli.watching.bookkeeping import Bookkeeper
from modelscope_cli.watching.criteria import CriterionWatch, watched_criteria
from modelscope_cli.watching.criterion_modules import is_criterion
from modelscope_cli.watching.entering import EnteringKey, EnteringSums
from modelscope_cli.watching.forward_pass import ForwardPass, is_norm
from modelscope_cli.watching.functional import MOST_CALLS, FunctionalWatch, FunctionCall, Operation, type_of
from modelscope_cli.watching.inferred import InferredSteps, inferred
from modelscope_cli.watching.losses import LossWatch, watched_losses
from modelscope_cli.watching.model_registry import CallKey, ModelRegistry, WatchedModel, is_wrapper, peel
from modelscope_cli.watching.owners import find_owners
from modelscope_cli.watching.parameters import Stepper, StepWatch
from modelscope_cli.watching.place import place_of_caller
from modelscope_cli.watching.saturation import count_saturated, dimension_of
from modelscope_cli.watching.schedule import is_recorded
from modelscope_cli.watching.step_sums import StepSums
from modelscope_cli.watching.steps import Clock, OpenStep, StepReport

_MOST_EVALUATED = (
    16  # passes in evaluation mode to one step: most such are no training, and nobody said no_grad
)
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

    def on_unstepped(self) -> None:
        """Called after ever more backward passes as long as there was no step."""

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
        self.criteria = CriterionWatch(self._is_looking)
        self.bookkeeper = Bookkeeper(self.registry)
        self._pass = ForwardPass()
        self._functional = FunctionalWatch(self._called)
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
                    begin=self._before_backward,
                    end=self._after_backward,
                )
            )
            stack.enter_context(watched_criteria(self.criteria, self._is_ours, self._guard))
            stack.enter_context(self.bookkeeper.installed(self._guard))
            stack.callback(self._functional.switch, False)
            yield
            self.settle()

    def optimizer_facts(self) -> list[dict[str, Any]]:
        """Return what is certain of every optimizer that has stepped."""
        facts = []
        for clock in self._clocks.values():
            optimizer = clock.optimizer()
            if not isinstance(optimizer, Optimizer):
                continue  # inferred: it holds whatever changes
            cycle = self.bookkeeper.cycle(optimizer)
            facts.append(
                {
                    "optimizer": clock.label,
                    "made": cycle.made,
                    "cycles": cycle.n,
                    "uncleared": cycle.uncleared,
                    "emptied": cycle.emptied,
                    "held": sum(len(group["params"]) for group in optimizer.param_groups),
                    "strangers": self.bookkeeper.unknown_without_gradient(optimizer),
                    "maximizes": any(group.get("maximize") for group in optimizer.param_groups),
                }
            )
        return facts

    def _is_looking(self) -> bool:
        """Whether any model's next step is recorded; before there is one, whatever comes is."""
        models = [model for model in self.registry.models if model.has_been_trained]
        return not models or any(model.is_recording for model in models)

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
            self.settle()
            can_look_between = self._functional.begin()
            model = self._begin_pass(module)
            now.begin(model, model is not None and can_look_between, sys._getframe(3))
            now.is_training = peel(module).training
            if model is not None:
                self._look_at_arguments(model, args)
        found = self.registry.find(module) if now.has_functions else None
        now.enter(module, found[1] if found is not None and found[0] is now.model else None)
        if now.model is not None:
            self._look_at_call(now.model, module, args)
        self._functional.switch(now.wants_functions)

    def _begin_pass(self, module: nn.Module) -> WatchedModel | None:
        root = peel(module)
        found = self.registry.find(root)
        model = found[0] if found else self.registry.register(root)
        if type(module).__name__ == "OptimizedModule":
            message = "the model is compiled: its layers run as one and cannot be seen, its parameters can"
            self._tell_once("compiled", f"{message} (TORCH_COMPILE_DISABLE=1 shows the layers)")
        if model is None or not torch.is_grad_enabled():
            return None
        model.has_run = True
        if self.losses.is_reevaluated:
            return None
        if not model.has_been_trained:
            model.has_been_trained, model.called = True, place_of_caller()
            self.bookkeeper.look_at_start(model)
        model.passes[not root.training] += 1
        most = _MOST_PASSES if root.training else _MOST_EVALUATED
        if not model.is_recording or model.passes[not root.training] > most or is_transformed():
            return None
        return model

    def _look_at_arguments(self, model: WatchedModel, args: Any) -> None:
        """Take in what the model itself is given."""
        tensors = [tensor for _, tensor in tensors_in(args) if tensor.is_floating_point()]
        for place, x in enumerate(tensors):
            self._look_at_entering(model, f"input#{place}" if place else "input", "", x)

    def _look_at_call(self, model: WatchedModel, module: nn.Module, args: Any) -> None:
        """Note that a module runs, and take in what the first one with weights is given."""
        module = peel(module)
        found = self.registry.find(module)
        if found is None or found[0] is not model:
            return
        model.ran.add(found[1])
        tensors = [tensor for _, tensor in tensors_in(args) if tensor.is_floating_point()]
        if not tensors:
            return
        if not self._pass.has_entered and next(module.parameters(recurse=False), None) is not None:
            self._pass.has_entered = True
            self._look_at_entering(model, found[1], type(module).__name__, tensors[0])
        if module.training and isinstance(module, nn.modules.batchnorm._BatchNorm) and tensors[0].ndim > 1:
            values = tensors[0].numel() // max(tensors[0].shape[1], 1), len(tensors[0])
            model.norm_values = max(model.norm_values or values, values)

    def _look_at_entering(self, model: WatchedModel, name: str, kind: str, x: Tensor) -> None:
        if not x.numel() or x.is_meta:
            return
        held = next((key for key in model.entering if key.name == name), None)
        key = held or EnteringKey(name, kind, tuple(x.shape), str(x.dtype).removeprefix("torch."))
        try:
            model.entering.setdefault(key, EnteringSums()).add(x)
        except (TypeError, RuntimeError, NotImplementedError):
            model.entering.pop(key, None)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self._is_ours() and not in_backward():
            self._guard(self._close, module, output)

    def _close(self, module: nn.Module, output: Any) -> None:
        now = self._pass
        is_innermost = now.leave(module)
        self._functional.switch(now.wants_functions)
        model = now.model
        if model is None or is_innermost is None or (is_wrapper(module) and not is_innermost):
            return
        module = peel(module)
        found = self.registry.find_in(model, module)
        if found is None or found[0] is not model:
            return
        if is_criterion(module, output):
            model.forget(found[1])
            if not found[1]:
                self.registry.set_aside(model)
        elif model.means(found[1], is_innermost or is_norm(module)):
            index = now.calls[found[1]]
            now.calls[found[1]] += 1
            tensors = [tensor for _, tensor in tensors_in(output) if tensor.is_floating_point()]
            if tensors:
                channel_dim = now.channels.find(module, tensors[0])
                what = Operation(type(module).__name__, channel_dim, dimension_of(module))
                self._look_at(model, (found[1], index), what, tensors[0])

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
        self._look_at(now.model, key, Operation(type_of(call.name), now.channels.find(None, x), call.dim), x)

    def _look_at(self, model: WatchedModel, key: CallKey, what: Operation, x: Tensor) -> None:
        held = model.sums if self._pass.is_training else model.eval_sums
        sums = held.get(key) or StepSums()
        try:
            sums.add_output(x, what.channel_dim if is_rectifier(what.type) else None)
            saturated = count_saturated(what.type, x, what.dim)
        except (TypeError, RuntimeError, NotImplementedError) as error:
            self._tell_once("unmeasured", f"{key[0] or what.type} has no statistics: {error}")
            return
        if saturated is not None:
            sums.add_saturated(*saturated)
        held[key] = sums
        model.types[key] = what.type
        model.dtypes.add(str(x.dtype).removeprefix("torch."))
        if x.requires_grad:
            model.severed.discard(key[0])
            x.register_hook(lambda gradient: self._arrived(sums, gradient))
        elif not torch.is_grad_enabled():
            model.severed.add(key[0])

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
        self._pass.forget_broken()
        self._functional.switch(self._pass.wants_functions)
        self._stepping.append(OpenStep(sys._getframe(1)))
        if len(self._stepping) == 1:
            self._guard(self.bookkeeper.cycle(optimizer).before_step)
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

    def _before_backward(self) -> None:
        self.settle()
        if self._is_ours():
            self._guard(self.bookkeeper.before_backward)

    def _after_backward(self) -> None:
        self.settle()  # it may have stepped by itself, as it went
        if self._is_ours():
            self._guard(self.bookkeeper.after_backward, self._is_looking())
        n = self.losses.n_backward
        if not self._n_counted and n & (n - 1) == 0:
            self._listener.on_unstepped()
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
        if isinstance(optimizer, Optimizer):
            self.bookkeeper.cycle(optimizer).after_step()
        report.criteria, report.evaluated = self.criteria.take(True), self.criteria.take(False)
        models = self._models_of(optimizer)
        for model in models:
            model.count_step()
            if watch is not None:
                report.layers += [
                    (model.label, name, call, model.types[name, call], sums.row())
                    for (name, call), sums in model.layer_sums().items()
                ]
                report.entering += [(model.label, key, sums.row()) for key, sums in model.entering.items()]
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
