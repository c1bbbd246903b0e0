"""The forward passes of every model of a process: inputs, outputs of layers, and the gradients at these."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.utils.hooks import RemovableHandle

from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.torch_private import (
    has_compiled,
    in_backward,
    is_compiled,
    is_transformed,
    left_alone_by_compiler,
    remove_global_hook,
)
from modelscope_cli.records.naming import dtype_name, percent
from modelscope_cli.records.watch import BACKGROUND, DROPPED, LAYOUT
from modelscope_cli.source_location import place_of_caller
from modelscope_cli.watching import forward_pass
from modelscope_cli.watching.bookkeeping import Bookkeeper
from modelscope_cli.watching.error_isolation import Guard, after, replaced
from modelscope_cli.watching.exchanged_rows import Tape
from modelscope_cli.watching.finite_flags import BEGUN, CALLED, ENTERED, LEFT, FiniteFlags
from modelscope_cli.watching.forward_pass import ForwardPass, FunctionalWatch, FunctionCall
from modelscope_cli.watching.garbage import GarbagePause
from modelscope_cli.watching.losses import LossWatch
from modelscope_cli.watching.model_inputs import EnteringKey, EnteringSums, data_in, roughness_of
from modelscope_cli.watching.model_registry import (
    MOST_SEEN,
    CallKey,
    ModelRegistry,
    WatchedModel,
    is_average,
    is_called_target,
    is_wrapper,
    kind_of,
    peel,
)
from modelscope_cli.watching.non_finite_origin import is_harmless
from modelscope_cli.watching.parameters import is_sharded
from modelscope_cli.watching.replicas import ReplicaWatch
from modelscope_cli.watching.step_sums import FunctionOperation, StepSums, dimension_of
from modelscope_cli.watching.step_time import StepTime
from modelscope_cli.watching.uses import Outputs
from modelscope_cli.watching.whole_outputs import find_leak, see_output

MOST_CALLS = 16  # of one function in one call of a module; a loop over time would add a row for every step

_MOST_PASSES = 512  # recorded for one step, for models that are never stepped
_ROUGH, _LOOKED_AT = 1.5, 64  # times; samples
_ROW = 3  # passes without training between them
_NEARLY_ALL = 0.9  # of the input of a dropout
_MOST_SPREADS = 4  # passes of a step whose outputs are compared row by row
_FOLLOWED = range(2, 12)  # backward passes before a pass in which unused parameters are looked for
_MOST_EVALUATED = 16  # recorded in evaluation mode: most such passes are validation without no_grad


class PassWatch:
    """Observes forward passes.

    Args:
        losses: provides the scale of gradients, and whether a step runs its closure again.
        settle: called before a pass begins.
        is_counting: tells whether the step is planned to be recorded.
        replicas: counts the passes; None in a single process.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        losses: LossWatch,
        bookkeeper: Bookkeeper,
        guard: Guard,
        settle: Callable[[], None],
        is_counting: Callable[[], bool],
        replicas: ReplicaWatch | None,
    ) -> None:
        self._registry, self._losses, self._bookkeeper = registry, losses, bookkeeper
        self._guard, self._settle, self._replicas = guard, settle, replicas
        self._is_counting, self._name_in = is_counting, registry.name_inside
        self.garbage = GarbagePause()
        self.is_blind = False  # during passes of the recorder itself
        self.is_stepping = False  # an optimizer, without gradients, in a stretch without hooks
        self._pass = ForwardPass()
        self._handles: list[RemovableHandle] = []
        self._is_away = False  # whether the hooks are removed until the running root ends
        self._functional = FunctionalWatch(self._called)
        self.tape = Tape(guard.tell_once, bookkeeper.taught)
        self.step_time, self.outputs = StepTime(), Outputs(self._count_prediction)
        self.resting = ExitStack()  # what is open while there are no hooks
        # The last model run without gradients, and whether in training mode.
        self._evaluated: tuple[WatchedModel, bool] | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Observe while open."""
        with ExitStack() as stack:
            stack.enter_context(self._guard.paused_by_captures())
            self.hook()
            stack.callback(self.unhook)
            stack.callback(self._functional.switch, False)
            stack.callback(self.tape.drop)
            stack.callback(self._bookkeeper.uses.stop)
            stack.callback(self.outputs.stop)
            stack.callback(self.garbage.end)
            yield

    def hook(self) -> None:
        self.unhook()
        self._handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, with_kwargs=True, always_call=True),
        ]

    def unhook(self, root: nn.Module | None = None) -> None:
        """Remove the hooks, until `root`, which is running, ends: hooks slow down small layers."""
        for handle in self._handles:
            remove_global_hook(handle)
        self._is_away = root is not None
        self._handles = [] if root is None else [root.register_forward_hook(self._rehook, always_call=True)]

    def rest(self) -> None:
        """Remove the hooks, except while gradients are disabled, so that evaluations are seen."""
        self.unhook()
        # `no_grad` calls the first
        contexts = torch.set_grad_enabled, torch.enable_grad, torch.inference_mode
        doors = [(one, name) for one in contexts for name in ("__init__", "__enter__", "__exit__")]
        self.resting.enter_context(replaced(*(after(one, self._look, name) for one, name in doors)))

    def _look(self, context: Any) -> None:
        if not self.is_stepping:
            self.outputs.stop()  # `zero_grad()` reads each gradient by a function
            (self.unhook if torch.is_grad_enabled() else self.hook)()

    @left_alone_by_compiler
    def _rehook(self, module: nn.Module, args: Any, output: Any) -> None:
        self.hook()
        self._pass.leave(module)
        self._guard(self._note_output, module, output)
        self.step_time.end_pass()

    def _note_output(self, module: nn.Module, output: Any) -> None:
        """Follow the output of a root to criteria, and to the loss in steps that are planned to be recorded."""
        self.outputs.end(module, output)
        if torch.is_grad_enabled() and self._is_counting():
            found = self._registry.find(peel(module))
            if found is not None and not self._losses.is_reevaluated and not is_transformed():
                self.tape.begin(found[0], output, module.training)
        self.tape.go_on()

    def count_evaluation(self, values: Any) -> bool:
        """Count a criterion applied to the last pass without gradients; False if that is of no trained model."""
        is_counted = self.outputs.reach(values)
        if is_counted and self._evaluated is not None and not torch.is_grad_enabled():
            if self._bookkeeper.is_apart(self._evaluated[0]):
                return False
            self._evaluated[0].count_evaluation(self._evaluated[1])
        return is_counted

    def _count_prediction(self) -> None:
        """Count passes without gradients and a criterion that make predictions, if several follow each other."""
        if self._evaluated is not None:
            model, is_training = self._evaluated
            place = model.no_grad_at, sum(model.passes)
            n_before = model.row[1] if model.row[0] == place else 0
            model.row = place, n_before + 1
            if n_before + 1 >= _ROW:
                model.evaluated[not is_training] += 1 if n_before >= _ROW else _ROW

    def forget_broken(self) -> None:
        """Close the calls that an exception has ended."""
        self._pass.forget_broken()
        if not self._pass.open and self._is_away:
            self.hook()
        self._functional.switch(self._pass.wants_functions)

    # Under torch.compile both hooks do nothing, as recording would change the graph.

    @left_alone_by_compiler
    def _enter(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or self._is_aside(module):
            return
        if not in_backward() and not self.is_blind:
            if not self._pass.open:
                self.step_time.begin_pass(torch.is_grad_enabled() or self._is_apart(module))
            if not self._pass.open and next(module.parameters(), None) is not None:
                self.tape.pause()
                self.outputs.begin(module)
            if self._pass.open or not self._is_only_counted(module):
                self._guard(self._open, module, args)

    @left_alone_by_compiler
    def _leave(self, module: nn.Module, args: Any, *kwargs_and_output: Any) -> None:
        if torch.compiler.is_compiling() or self._is_aside(module):
            return
        if not in_backward() and not self.is_blind:
            # Torch leaves the keywords out if forward has raised
            kwargs, output = ({}, *kwargs_and_output)[-2:]
            self._guard(self._close, module, args, kwargs, output)
            if not self._pass.open:
                self._guard(self._note_output, module, output)
                self.step_time.end_pass()

    def _is_aside(self, module: nn.Module) -> bool:
        """Tell quickly whether a module is ignored: a transform of one image, or inside a pass not followed."""
        if self._replicas is not None:
            return False
        return self._pass.is_aside(module) if self._pass.open else not (module._parameters or module._modules)

    def _is_apart(self, module: nn.Module) -> bool:
        found = self._registry.find(peel(module))
        return found is not None and self._bookkeeper.is_apart(found[0])

    def _is_only_counted(self, module: nn.Module) -> bool:
        """Count a pass, if nothing else is seen of the step of its model, without the detours of `_open`."""
        found = self._registry.find(module)
        model = found[0] if found is not None else None
        if model is None or model.is_followed or not model.has_been_trained or self._replicas is not None:
            return False
        if not torch.is_grad_enabled() or self._losses.is_reevaluated or is_transformed() or has_compiled():
            return False
        self._settle()
        model.has_run = True
        model.passes[not module.training] += 1
        model.has_trained |= module.training
        self.unhook(module)
        return True

    def _open(self, module: nn.Module, args: Any) -> None:
        now = self._pass
        if self._replicas is not None:
            self._replicas.see_pass(module)
        if now.open and now.model is None:
            now.inside.append(module)
            if now.flagged is not None:
                now.flagged.flags.see(ENTERED, module, args)
            return
        if isinstance(module, torch.jit.ScriptModule) or getattr(module, "_is_replica", False):
            return
        if now.open and type(module).__name__ == "GraphModule" and self._registry.find(module) is None:
            return  # the compiled graph of the model
        if not now.open and self._registry.is_closed and self._registry.find(peel(module)) is None:
            return  # another model, or a module around a watched one
        if not now.open:
            self._settle()
            self._bookkeeper.uses.stop()
            can_record_functions = self._functional.begin()
            flagged, is_recorded = self._begin_pass(module, args)
            (self.garbage.begin if is_recorded else self.garbage.end)()
            model = flagged if is_recorded else None
            if flagged is not None and can_record_functions and self._losses.n_backward in _FOLLOWED:
                self._bookkeeper.follow_uses()
            now.begin(flagged, model, is_recorded and can_record_functions, sys._getframe(3))
            root = peel(module)
            now.is_training, found = root.training, self._registry.find(root)
            if can_record_functions and found is not None and self._is_passed_over(module, found[0]):
                self.unhook(module)
            if model is not None:
                self._record_arguments(model, args)
        name = None if now.flagged is None or is_wrapper(module) else self._name_in(now.flagged, module)
        if now.flagged is not None:
            now.flagged.flags.see(ENTERED, module, args)
        now.enter(module, name)
        if now.model is not None and name is not None:
            self._record_call(now.model, name, module, args)
        self._functional.switch(now.wants_functions)

    def _is_passed_over(self, root: nn.Module, model: WatchedModel) -> bool:
        """Tell whether nothing inside a pass is recorded; without gradients, hooks may disable a fast path."""
        is_seen = self._replicas is not None and not isinstance(root, nn.parallel.DistributedDataParallel)
        return not (model.is_followed or is_seen) and torch.is_grad_enabled()

    def _begin_pass(self, module: nn.Module, args: Any) -> tuple[WatchedModel | None, bool]:
        """Return the model if this is a training pass, else None; and whether to record it."""
        root = peel(module)
        found = self._registry.find(root)
        model = found[0] if found else self._registry.register(root)
        if is_compiled(module) or is_compiled(root):
            message = "the model is compiled: its layers are not visible, only its parameters"
            self._guard.tell_once("compiled", f"{message} (TORCH_COMPILE_DISABLE=1 shows the layers)")
        if model is None:
            return None, False
        if not torch.is_grad_enabled():
            model.count_no_grad(self._losses.n_backward)
            model.is_only_fed &= not root.training
            model.is_average |= is_average(module)
            if model.called is None:
                model.called, model.is_target = place_of_caller(), is_called_target(module)
            self._evaluated = model, root.training
            if root.training:
                model.count_loose_run()
            if not root.training and model.has_been_trained and model.n_seen < MOST_SEEN:
                x = next((x for _, x in tensors_in(args) if x.is_floating_point() and not x.is_meta), None)
                if x is not None and not is_sharded(x):
                    model.see_validated(x)
            return None, False
        model.has_run = True
        if self._losses.is_reevaluated or is_transformed():
            return None, False
        if not model.has_been_trained:
            model.has_been_trained, model.called = True, place_of_caller() or model.called
            self._bookkeeper.look_at_start(model)
        model.passes[not root.training] += 1
        model.has_trained |= root.training
        most = _MOST_PASSES if root.training else _MOST_EVALUATED
        is_recorded = model.is_recording and model.passes[not root.training] <= most
        if not is_recorded and not (root.training and model.is_followed):
            return None, False
        if is_harmless(model, self._registry):
            model.flags = FiniteFlags()
        model.flags.see(BEGUN, None, ())
        return model, is_recorded

    def _record_arguments(self, model: WatchedModel, args: Any) -> None:
        """Record the arguments of the model, also tokens, but not a state that it carries from batch to batch."""
        tensors = [tensor for _, tensor in tensors_in(args) if tensor.is_floating_point()]
        model.is_fed |= any(x.requires_grad for x in tensors)
        model.is_only_fed &= any(x.grad_fn is not None for x in tensors)
        for place, x in enumerate(data_in(args)):
            self._record_input(model, f"input#{place}" if place else "input", "", x)

    def _record_call(self, model: WatchedModel, name: str, module: nn.Module, args: Any) -> None:
        """Record that a module runs, and the input of the first one with weights."""
        model.ran.add(name)
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p >= _NEARLY_ALL:
            what = name or type(module).__name__
            self._guard.tell_once(DROPPED, f"{what} sets {percent(module.p)} of its input to 0")
        targets = args[3] if type(module).__name__ == "RoIHeads" and len(args) > 3 else None
        if any((one["labels"] == 0).any() for one in targets or ()):
            words = "torchvision's Faster and Mask R-CNN take boxes with label 0 for background"
            self._guard.tell_once(BACKGROUND, f"{words}: count the classes of objects from 1")
        tensors = [tensor for _, tensor in tensors_in(args) if tensor.is_floating_point()]
        if not tensors:
            return
        if not self._pass.has_entered and next(module.parameters(recurse=False), None) is not None:
            self._pass.has_entered = True
            self._record_input(model, name, type(module).__name__, tensors[0])
        if module.training and isinstance(module, nn.modules.batchnorm._BatchNorm) and tensors[0].ndim > 1:
            values = tensors[0].numel() // max(tensors[0].shape[1], 1), len(tensors[0])
            model.norms[name] = max(model.norms.get(name, values), values)
            if module.running_mean is not None and module.weight is not None:
                is_frozen = not module.weight.requires_grad
                model.frozen_norms[name] = model.frozen_norms.get(name, True) and is_frozen

    def look_for_leaks(self, models: Sequence[WatchedModel]) -> None:
        """Run a copy of each model with a changed batch."""
        self.is_blind = True
        try:
            self._guard.tell_all(leak for one in models if (leak := find_leak(one)) is not None)
        finally:
            self.is_blind = False

    def _record_input(self, model: WatchedModel, name: str, kind: str, x: Tensor) -> None:
        if not x.numel() or x.is_meta:
            return
        dtype, x = dtype_name(x.dtype), x if x.is_floating_point() else x.float()
        held = next((key for key in model.entering if key.name == name), None)
        is_first = held is None and not (kind or model.step or x.grad_fn is not None or is_transformed())
        if is_first and (ratio := roughness_of(x.detach()[:_LOOKED_AT].float())) > _ROUGH:
            words = f"neighbouring pixels of the input of {model.label} differ {ratio:.2g} times as much as when it"
            self._guard.tell_once(LAYOUT, f"{words} is read as height, width, channels")
        key = held or EnteringKey(name, kind, tuple(x.shape), dtype, x.requires_grad)
        try:
            model.entering.setdefault(key, EnteringSums()).add(x)
        except (TypeError, RuntimeError, NotImplementedError):
            model.entering.pop(key, None)

    def _close(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        now = self._pass
        if now.flagged is not None and now.open:
            now.flagged.flags.see(LEFT, module, output, is_recorded=now.model is not None)
        if now.has_left_inside(module):
            return
        call = now.leave(module)
        self._functional.switch(now.wants_functions)
        if now.flagged is None or call is None or (is_wrapper(module) and not call.is_innermost):
            return
        module = peel(module)
        name = self._name_in(now.flagged, module)
        if name is None or now.model is None:
            return
        if not name and now.is_training:
            now.model.expect_gradient(output)
            if not tensors_in(args):  # only now the keywords are known
                for x in data_in(tuple(kwargs.values()))[:1]:
                    self._record_input(now.model, "input", "", x)
        if not name and now.is_training and now.model.passes[0] <= _MOST_SPREADS:
            # Nested, sparse or quantised.
            with contextlib.suppress(TypeError, RuntimeError, NotImplementedError):
                see_output(now.model, args, output)
        if forward_pass.is_criterion(module, output):
            now.model.forget(name)
            if not name:
                self._registry.set_aside(now.model)
        elif now.model.selects(name, call.is_innermost or forward_pass.is_norm(module)):
            tensors = [x for _, x in tensors_in(output) if x.is_floating_point()]
            if tensors:
                channel_dim = now.channels.find(module, tensors[0])
                what = FunctionOperation(kind_of(module), channel_dim, dimension_of(module))
                self._record_output(now.model, (name, call.index), what, tensors[0])

    @left_alone_by_compiler
    def _called(self, call: FunctionCall) -> None:
        if not in_backward() and not is_transformed():
            self._guard(self._record_function, call)

    def _record_function(self, call: FunctionCall) -> None:
        """Record an operation that a module computes itself."""
        now, x = self._pass, call.find_output()
        if now.model is None or x is None or (key := now.count(call.name)) is None:
            return
        if now.open[-1].functions[call.name] > MOST_CALLS:
            message = f"a module calls {call.name} more than {MOST_CALLS} times in one pass;"
            message += " only the first are recorded"
            self._guard.tell_once("many-calls", message)
            return
        now.model.flags.see(CALLED, key, x, is_recorded=True)
        what = FunctionOperation(forward_pass.type_of(call.name), now.channels.find(None, x), call.dim)
        self._record_output(now.model, key, what, x)

    def _record_output(self, model: WatchedModel, key: CallKey, what: FunctionOperation, x: Tensor) -> None:
        held = model.sums if self._pass.is_training else model.eval_sums
        sums = held.get(key) or StepSums()
        try:
            sums.add_output(x, what, model.flags.copy_of(x))
        except (TypeError, RuntimeError, NotImplementedError) as error:
            self._guard.tell_once("unmeasured", f"{key[0] or what.type} has no statistics: {error}")
            return
        held[key] = sums
        model.types[key] = what.type
        model.dtypes.add(dtype_name(x.dtype))
        if x.requires_grad:
            model.severed.discard(key[0])
            x.register_hook(functools.partial(self._arrived, sums))
        elif not torch.is_grad_enabled():
            model.severed.add(key[0])

    @left_alone_by_compiler
    def _arrived(self, sums: StepSums, gradient: Tensor | None) -> None:
        # Outputs of a compiled graph that the loss does not depend on get None.
        if gradient is not None:
            self._guard(sums.add_gradient, gradient, self._losses.scale)
