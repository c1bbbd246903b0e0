"""The recorder: global hooks on every module and optimizer of a process, which change nothing.

A forward pass belongs to the next step of the optimizer that holds the model's weights.
"""

import math
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from modelscope_cli.hooks.fetch import Deferred, joined
from modelscope_cli.hooks.torch_private import (
    graph_leaves,
    has_compiled,
    is_transformed,
    left_alone_by_compiler,
)
from modelscope_cli.records.watch import LEAKS, SPARSE, UNHELD
from modelscope_cli.source_location import place_of_caller
from modelscope_cli.watching import custom_optimizers
from modelscope_cli.watching.bookkeeping import Bookkeeper
from modelscope_cli.watching.clipping import ClipWatch
from modelscope_cli.watching.criteria import CriterionWatch, watched_criteria
from modelscope_cli.watching.error_isolation import Guard, around_steps
from modelscope_cli.watching.functional import is_by_all_leaves, watched_transforms
from modelscope_cli.watching.loss_graph import shares_of_rows_in
from modelscope_cli.watching.loss_history import LossHistory
from modelscope_cli.watching.losses import LossWatch, watched_losses
from modelscope_cli.watching.model_hooks import PassWatch
from modelscope_cli.watching.model_registry import ModelRegistry, WatchedModel
from modelscope_cli.watching.non_finite_origin import check_gradients, find_birth, see_gradients
from modelscope_cli.watching.parameters import (
    Stepper,
    StepWatch,
    has_finite_gradients,
    has_no_gradients,
    parameters_of,
)
from modelscope_cli.watching.replicas import ReplicaWatch
from modelscope_cli.watching.schedule import Budget, Stretches
from modelscope_cli.watching.steps import Clock, Clocks, EndedStep, Listener, OpenStep, StepReport, is_running

_LAST = 5  # steps without hooks that are reported at the end
_SEARCHED = 8  # backward passes whose graph is searched
_MOST_ENDED = 64  # steps that end on an accelerator before one that is recorded
_PROBED = 8  # the step before which a copy of the model is run: weights that start at zero have grown by then


class Recorder:
    """Observes one process.

    Args:
        listener: receives the observations.
        every: record every this many steps; None for the schedule of `is_recorded`.
        patterns: `--layer`, checked when the first model is trained.
        models: the models to observe; None for every one that runs.
        optimizers: the optimizers to observe; empty for every one that trains a model.
        has_ranks: whether other processes train the same model.
        clock: returns the seconds of which recording may take a share; None for CPU time.
    """

    def __init__(
        self,
        listener: Listener,
        every: int | None,
        patterns: tuple[str, ...],
        models: Sequence[nn.Module] | None = None,
        optimizers: Sequence[Optimizer] = (),
        has_ranks: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.registry = ModelRegistry(patterns, models)
        self._only = tuple(optimizers)
        # Steps; those of all optimizers; of these, in the present stretch without hooks.
        self.n_steps = self._n_counted = self._n_missed = 0
        self._listener = listener
        self._every = every
        self.losses = LossWatch()
        self.bookkeeper = Bookkeeper(self.registry)
        clock = clock or time.process_time
        self.budget = Budget(clock)
        self.stretches = Stretches(clock, is_barred=every is not None or has_ranks)
        self._spent = 0.0  # by the guard, up to the last step
        self.guard = Guard(lambda kind, message: listener.on_event(self.n_steps, kind, message), clock)
        self.replicas = ReplicaWatch() if has_ranks else None
        self._passes = PassWatch(
            self.registry,
            self.losses,
            self.bookkeeper,
            self.guard,
            self.settle,
            self._is_counting,
            self.replicas,
        )
        self.step_time = self.guard.step_time = self._passes.step_time
        self.criteria = CriterionWatch(self._is_counting, self._passes.count_evaluation, self.guard.tell_once)
        self._passes.tape.see_criterion = self.criteria.see
        self.clocks = Clocks(self.bookkeeper)
        self._trained: dict[int, tuple[weakref.ref[Stepper], list[int], list[WatchedModel]]] = {}
        self._stepping: list[OpenStep] = []
        self._inferred = custom_optimizers.InferredSteps()
        self._unheld: list[str] = []  # models whose loss reaches no parameter of an optimizer
        self._clips = ClipWatch()
        self._told: list[tuple[str, str]] = []  # of the losses since the last step
        self._history = LossHistory()
        self._has_stepped = False  # whether an optimizer of torch has stepped
        # The last steps of a stretch without hooks: optimizer, number, loss, learning rates
        self._missed: deque[tuple[Clock, int, Deferred[float | None], list[float]]] = deque(maxlen=_LAST)
        self._ended: list[EndedStep] = []  # those that are not reported yet
        self.is_prompt = False  # whether each step is reported as it ends, even if a device is waited for

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Observe while open."""
        with ExitStack() as stack:
            stack.enter_context(around_steps(self._before_step, self._after_step))
            stack.enter_context(self._passes.installed())
            stack.enter_context(
                watched_losses(
                    self.losses,
                    self._is_open,
                    self._step_skipped,
                    lambda one: self.guard(self.bookkeeper.before_unscaling, one),
                    lambda: self._n_counted,
                    begin=left_alone_by_compiler(lambda tensors: self.guard(self._prepare_backward, tensors)),
                    end=left_alone_by_compiler(lambda: self.guard(self._finish_backward)),
                    is_pass=lambda loss, inputs: self._has_no_optimizer() and is_by_all_leaves(loss, inputs),
                    rest=lambda tensors: self.stretches.is_open and self.guard(self.losses.see, tensors),
                )
            )
            stack.enter_context(
                watched_transforms(lambda: self._is_open() and self._has_no_optimizer(), self._see_derived)
            )
            stack.enter_context(self.step_time.installed(self.registry.is_evaluating))
            stack.enter_context(watched_criteria(self.criteria, self.guard))
            stack.enter_context(self.bookkeeper.installed(self.guard))
            stack.enter_context(self._clips.installed(self._is_open))
            if self.replicas is not None:
                stack.enter_context(self.replicas.installed(self.guard))
            self.guard(self._expect_optimizers)
            yield
            self.guard(self._tell_missed)
            self.guard(self._resume)
            self.settle()
            self.guard(lambda: self._hand_on(self._read_ended()))
            self.guard(self._tell_at_end)

    def _expect_optimizers(self) -> None:
        """Register the optimizers made before the recorder, to notice one that never steps."""
        given = [p for model in self.registry.models if (root := model.root()) for p in root.parameters()]
        for optimizer in self._only or custom_optimizers.find_optimizers(given):
            self.bookkeeper.cycle(optimizer)

    def _is_open(self) -> bool:
        return self.guard.is_open and not self.stretches.is_open

    def _is_looking(self) -> bool:
        """Whether any model's next step is recorded; True before the first model is trained."""
        models = [model for model in self.registry.models if model.has_been_trained]
        return not models or any(model.is_recording for model in models)

    def _is_counting(self) -> bool:
        """Whether losses are looked at: as planned, whether or not there is time for the layers."""
        clocks = self.clocks.all()
        return self._is_open() and (not clocks or any(one.is_planned or one.is_due for one in clocks))

    # An optimizer may call the step of another one or of its parent class: the outermost counts.

    @left_alone_by_compiler
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._passes.is_stepping = self.stretches.is_open
        if self.stretches.is_open or torch.compiler.is_compiling() or not self.guard.is_open:
            return
        self._inferred.forget()
        self._passes.tape.drop()
        self._has_stepped = True
        if not self._is_watched(optimizer):
            return
        self._stepping = [step for step in self._stepping if is_running(step.frame)]
        self._passes.forget_broken()
        self._stepping.append(OpenStep(sys._getframe(1)))
        if len(self._stepping) == 1:
            self.losses.begin_step()
            self.guard(self._begin_step, optimizer)

    def _is_watched(self, optimizer: Optimizer) -> bool:
        if self._only:
            return any(optimizer is one for one in self._only)
        return not self.registry.is_closed or bool(self._models_of(optimizer))

    def _begin_step(self, optimizer: Optimizer) -> None:
        for label in self._unheld if has_no_gradients(optimizer) else ():
            self.guard.tell_once(UNHELD, f"{label}: its loss reaches no parameter of an optimizer")
        self.bookkeeper.uses.stop()
        self.bookkeeper.take_over(optimizer)
        clock = self.clocks.of(optimizer)
        is_due = self._is_due(clock)
        clock.cycle.before_step()
        if is_due:
            self._stepping[0].watch = StepWatch(optimizer)
            self._trained.clear()
        if self.replicas is not None:
            self.replicas.before_step(optimizer, is_due)
        if clock.step == _PROBED:
            self._passes.look_for_leaks(self._models_of(optimizer))

    def _tell_at_end(self) -> None:
        self.guard.tell_all((*self.registry.at_end(), *self._history.at_end(self.registry.models)))
        self.guard.tell_all(self._clips.at_end())

    def _is_due(self, clock: Clock) -> bool:
        """Tell whether the current step is recorded."""
        clock.decide(self._every, self.budget)
        if clock.is_owed:
            self.guard.tell_once(SPARSE, Budget.NOTE)
        return clock.is_due or clock.decided[1]

    def _tell_birth(self, clock: Clock, step: int, own: list[WatchedModel], loss: float | None) -> None:
        """Report the first non-finite value of a step after a finite one."""
        if (loss is None or math.isfinite(loss)) and not any(model.flags.spoilt for model in own):
            clock.is_due, clock.was_finite = False, True
            return
        labels = {model.label for model in own}
        others = [model for model in self.registry.models if model.label not in labels]
        birth = find_birth(own, others, step, loss)
        clock.is_due = birth is not None and clock.was_finite
        if birth is not None and clock.was_finite:
            self._listener.on_birth(birth)
        clock.was_finite = birth is None

    @left_alone_by_compiler
    def _step_skipped(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            return  # its steps are inferred
        if not self._is_watched(optimizer):
            self.losses.drop()
            return
        self.guard(self._forget_step, optimizer)

    def _forget_step(self, optimizer: Optimizer) -> None:
        """Discard the passes that led to a step which a scaler skipped."""
        clock, loss, models = self.clocks.of(optimizer), self.losses.take()(), self._models_of(optimizer)
        step = clock.step
        for model in models:
            model.flags.spoilt = []  # scaled gradients are often too large, which is why the step is skipped
        self._tell_birth(clock, step, models, loss)
        for model in models:
            model.begin_step(model.step, model.is_recording or clock.is_due, model.is_followed)
        message = "the gradient scaler skipped a step: gradients were not finite"
        self._listener.on_event(step, "skipped", message)
        if loss is not None and not math.isfinite(loss):
            self._listener.on_event(step, "loss", f"the loss was {loss} in a skipped step")

    def _models_of(self, optimizer: Stepper) -> list[WatchedModel]:
        """Return the models some of whose weights an optimizer holds, searched again before each recorded step."""
        known = self._trained.get(id(optimizer))
        size = [len(group["params"]) for group in optimizer.param_groups] + [len(self.registry.models)]
        if known is None or known[0]() is not optimizer or known[1] != size:
            owned = {id(p) for p in parameters_of(optimizer)}
            found = [
                model
                for model in self.registry.models
                if (root := model.root()) is not None and any(id(p) in owned for p in root.parameters())
            ]
            for model in found:
                model.is_stepped |= isinstance(optimizer, Optimizer)
            if not found and not self.registry.is_closed and has_no_gradients(optimizer):
                found = self.registry.held_by_none(self.bookkeeper.held())  # it holds what was replaced
            known = self._trained[id(optimizer)] = weakref.ref(optimizer), size, found
        return known[2]

    @left_alone_by_compiler
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._passes.is_stepping = False
        if torch.compiler.is_compiling() or not self.guard.is_open:
            return
        if self.stretches.is_open:
            self.guard(self._count_step, optimizer)
            return
        if not self._is_watched(optimizer):
            if not self._stepping:
                self.losses.drop()  # they belonged to this step
            return
        if not self._stepping:
            return
        watch = self._stepping.pop().watch
        if self._stepping:
            self.stretches.is_barred = True  # two steps would be counted for one
            return
        has_closure = self.losses.end_step()
        self.stretches.is_barred |= has_closure or self.losses.has_scaler
        found_inf = getattr(optimizer, "found_inf", None)
        if isinstance(found_inf, Tensor) and found_inf.any():
            return  # a fused optimizer skips the step itself; the scaler calls `_step_skipped`
        reports, n_before = list[StepReport](), self._n_counted
        self.guard(lambda: reports.extend(self._end_step(optimizer, watch, has_closure)))
        self._hand_on(reports)
        is_plain = self.budget.was_plain, not self.guard.is_timed
        if self._n_counted > n_before and self.stretches.begins(id(optimizer), self._n_counted, *is_plain):
            self.guard(self._rest)

    def _rest(self) -> None:
        """Take the hooks away; steps are still counted."""
        if self._inferred.is_open or any(clock.is_due for clock in self.clocks.all()) or has_compiled():
            self.stretches.is_open = False
            return
        self.guard.tell_once(SPARSE, Stretches.NOTE)
        self._passes.rest()
        self.step_time.rest()
        self._n_missed = 0
        self._missed.clear()

    def _count_step(self, optimizer: Optimizer) -> None:
        """Count a step without hooks."""
        clock = self.clocks.find(optimizer)
        if clock is not None:
            rates = [rate for group in optimizer.param_groups if isinstance(rate := group.get("lr"), float)]
            self._missed.append((clock, clock.step, self.losses.take(), rates))
            clock.step += 1
            self.bookkeeper.cycle(optimizer).ended = self._n_counted + self._n_missed
            self.n_steps, self._n_missed = max(self.n_steps, clock.step), self._n_missed + 1
            if self.stretches.ends(id(optimizer)):
                self._resume()
        elif self._is_watched(optimizer):  # a new one, which may step too rarely to be met between stretches
            self.bookkeeper.cycle(optimizer).n_steps += 1
            self.stretches.is_barred = True
            self._resume()

    def _tell_missed(self) -> None:
        """Report the last steps, if they had no hooks."""
        for clock, step, loss, rates in self._missed if self.stretches.is_open else ():
            self._listener.on_step(StepReport(clock.label, step, loss(), rates, False))

    def _resume(self) -> None:
        """Set the hooks again after steps without, if there are none."""
        if not self.stretches.is_open:
            return
        self.stretches.end()
        self._passes.resting.close()
        self._passes.hook()
        self.step_time.resume()
        self.budget.resume()
        self._n_counted += self._n_missed
        self.budget.n += self._n_missed
        for clock in self.clocks.all():
            if clock.decided[0] < clock.step and (optimizer := clock.optimizer()) is not None:
                for model in self._models_of(optimizer):
                    self._begin_next(clock, model)
                    model.has_missed = True
        self._see_time()

    def _begin_next(self, clock: Clock, model: WatchedModel) -> None:
        model.begin_step(clock.step, self._is_due(clock), self.budget.allows(clock.step))

    def _hand_on(self, reports: list[StepReport]) -> None:
        for report in reports:
            self.guard(self._listener.on_step, report)  # what stops the script on purpose passes through
        self._see_time()
        self._passes.garbage.end()

    def _see_time(self) -> None:
        """Measure the time of the next step's hooks if they look at anything."""
        self.guard.is_timed = any(model.is_followed for model in self.registry.models)

    @left_alone_by_compiler
    def settle(self) -> None:
        """Report the inferred steps since the last backward pass; see `custom_optimizers`."""
        reports: list[StepReport] = []
        if self._inferred.is_open and self.guard.is_open and not (self._stepping or is_transformed()):
            ended = (self._end_step(one, one.watch, False) for one in self._inferred.stepped())
            self.guard(reports.extend, chain.from_iterable(ended))
            self._hand_on(reports)

    def _has_no_optimizer(self) -> bool:
        return not (self._only or self.registry.is_closed or self.bookkeeper.has_optimizer())

    def _see_derived(self, loss: Tensor, leaves: list[Tensor]) -> None:
        self.guard(self._prepare_backward, loss, leaves)
        self.guard(self._finish_backward)

    def _prepare_backward(self, tensors: Any, leaves: Sequence[Tensor] = ()) -> None:
        self.bookkeeper.uses.see(tensors)
        if not (self._has_stepped or self._inferred.is_of_modules or self._only or self.registry.is_closed):
            self._look_for_tensors(leaves or graph_leaves(tensors))
        self.settle()
        self._look_at_loss(tensors)
        if self._has_stepped and self.losses.n_backward < _SEARCHED and not self.registry.is_closed:
            self._search_graph(tensors)
        self._passes.tape.compare(tensors)
        self.bookkeeper.before_backward()
        self.losses.see(tensors)

    def _finish_backward(self) -> None:
        self.settle()  # a hook may have stepped during the backward pass
        self.bookkeeper.after_backward(self._is_looking(), self.losses.scale)
        check_gradients(self.registry, self.losses)
        n = self.losses.n_backward
        if not self._n_counted and n & (n - 1) == 0:
            self._listener.on_unstepped()
        if not self._stepping and not self._only:
            if custom_optimizers.register_hidden(self.registry, self.bookkeeper.waiting(), n):
                message = "the trained model is compiled: its layers are not visible, only its parameters"
                self.guard.tell_once("compiled", f"{message} (TORCH_COMPILE_DISABLE=1 shows the layers)")
            self._inferred.remember(self.registry.models, self.losses.scale, self._is_awaited)

    def _look_for_tensors(self, leaves: Sequence[Tensor]) -> None:
        """Treat the leaves of a loss as the model if neither a model nor an optimizer holds them."""
        model = self._inferred.take_tensors(leaves, self.registry, self.bookkeeper.waiting())
        self.bookkeeper.go_on_with(self._inferred.replaced)
        if model is not None:
            self.bookkeeper.look_at_start(model)
            self.guard.tell_once("tensors", "the trained tensors belong to no module: there are no layers")

    def _search_graph(self, loss: Any) -> None:
        """Search the graph of one of the first losses for other parameters and leaks between samples."""
        self._unheld = custom_optimizers.unheld_models(loss, self.registry, held := self.bookkeeper.held())
        self._inferred.take_loose(loss, self.registry, held)
        if isinstance(loss, Tensor) and (leak := shares_of_rows_in(loss)) is not None:
            self.guard.tell_once(LEAKS, f"{leak} ({place_of_caller() or 'the loss'})")

    def _look_at_loss(self, tensors: Any) -> None:
        """Report likely faults in a hand-written loss."""
        if not isinstance(tensors, Tensor) or tensors.numel() != 1 or not self._is_counting():
            return
        where = f" ({place})" if (place := place_of_caller()) else ""
        self._told += [(kind, f"{message}{where}") for kind, message in self._history.see(tensors)]

    def _is_awaited(self, one: custom_optimizers.inferred) -> bool:
        clock = self.clocks.find(one)  # not `of`, which gives a label
        return clock is None or self._is_due(clock)

    def _end_step(self, optimizer: Stepper, watch: StepWatch | None, has_closure: bool) -> list[StepReport]:
        clock, begun = self.clocks.of(optimizer), self.budget.clock()
        rates = [float(group["lr"]) for group in self.bookkeeper.groups_of(optimizer) if "lr" in group]
        clock.rates = rates or clock.rates  # a compiled optimizer may be deleted by now
        is_recorded = watch is not None
        report = StepReport(clock.label, clock.step, None, clock.rates, is_recorded)
        self.bookkeeper.after_step(optimizer, self._n_counted)
        self.bookkeeper.note_schedules(optimizer, clock.label, clock.step)
        told, self._told = self._told, []
        if watch is not None:
            clock.is_loose = self.bookkeeper.are_of_no_module(optimizer.param_groups)
        self.guard.tell_all(() if clock.is_loose else told)  # it may ascend
        if isinstance(optimizer, Optimizer) and self.replicas is not None:
            report.replicas = self.replicas.after_step(optimizer, clock.label)
        report.criteria, report.evaluated = self.criteria.take(True), self.criteria.take(False)
        report.criteria = {} if clock.is_loose else report.criteria
        models = self._models_of(optimizer)
        is_followed = any(model.is_followed for model in models)
        is_finite: Deferred[bool] = Deferred((), lambda: True)
        parts: list[Deferred[Any]] = [
            self.losses.take(),
            is_finite if is_followed else has_finite_gradients(optimizer),
            joined([report.fetched(), clock.cycle.read(), self._passes.tape.read()]),
        ]
        if watch is not None:
            if clock.step == 0:
                custom_optimizers.name_owners(optimizer, self.registry)
            parts += [report.record(models), watch.finish(has_closure)]
        self._ended.append(EndedStep(report, clock, models, joined(parts)))
        must_wait = is_recorded or is_followed or self.is_prompt or len(self._ended) >= _MOST_ENDED
        reports = self._read_ended() if must_wait or not self._ended[-1].is_computed_later else []
        clock.step += 1
        self.budget.n += 1
        for model in models:
            model.count_step()
            self._begin_next(clock, model)
        if is_recorded and not models:
            self.guard.tell_once("unseen", clock.unseen)
        is_plain = watch is None and not is_followed
        spent = self.guard.spent + (0.0 if is_plain else self.budget.clock() - begun)
        self.budget.take(spent - self._spent, is_plain)
        self._spent = spent
        self.n_steps = max(self.n_steps, clock.step)
        self._n_counted += 1
        return reports

    def _read_ended(self) -> list[StepReport]:
        """Return the reports of the steps that ended since the last call, with one wait for the device."""
        ended, self._ended = self._ended, []
        fetched = joined(one.numbers for one in ended)()
        for one, (loss, is_finite, _, *rows) in zip(ended, fetched, strict=True):
            one.report.loss = loss
            if len(self.clocks.all()) == 1:  # those of adversaries need not fall
                self.budget.see_loss(loss)
            if not is_finite:
                see_gradients(one.models)
            self._tell_birth(one.clock, one.report.step, one.models, loss)
            if rows:
                one.report.parameters = one.clock.name_rows(rows[1], self.registry)
        return [one.report for one in ended]
