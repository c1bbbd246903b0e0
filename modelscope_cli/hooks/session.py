"""Attach to the layers of a model, run it, observe every call, and restore it."""

import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from modelscope_cli.errors import CannotRunError, ModelscopeError, failed_device
from modelscope_cli.hooks.layers import list_layers, set_training, tensors_in
from modelscope_cli.hooks.other_shapes import image_shape_taken, input_taken, shapes_taken
from modelscope_cli.hooks.patterns import Layer
from modelscope_cli.hooks.snapshot import Snapshot
from modelscope_cli.hooks.torch_private import in_backward, run_uncompiled
from modelscope_cli.plain_text import in_one_line
from modelscope_cli.records.naming import label
from modelscope_cli.records.run import Args, Arguments, CallInputs, Kwargs, Shape, invocation

_MOST_CHARACTERS = 300  # of an error of the model's


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a layer's forward."""

    name: str  # the layer's qualified name; empty for the model itself
    type: str  # its class name
    order: int  # 1-based position among all calls of the pass, in the order they begin
    index: int  # 0 for the layer's first call in the pass, 1 for its second
    depth: int  # number of enclosing open calls
    like: int = 0  # `index` of the first call of the same kind, see `HookSession`

    @property
    def label(self) -> str:
        """Its name in patterns: `relu`, or `relu#1` for its second call."""
        return label(self.name, self.index)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a record's row that describe its call."""
        return {"name": self.name, "type": self.type, "order": self.order, "call": self.index}


class Observer:
    """Base of observers of calls. Reduce or copy tensors at once, as in-place operations may overwrite them, and
    never synchronise an accelerator."""

    def attach(self, name: str, module: nn.Module) -> Iterable[RemovableHandle]:
        """Attach further hooks to a layer as the session opens; it removes the returned handles."""
        return ()

    def detach(self) -> None:
        """Remove hooks attached later; called as the session closes."""

    def enter(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        """Called before the layer's forward."""

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        """Called after it. `inputs` is `(args, kwargs)`; `is_innermost`: no other layer was called inside."""

    def pass_by(self, module: nn.Module, output: Any) -> None:
        """Called after the forward of a call that is not selected, as it may matter for a later one."""


class Intervention(Observer):
    """Base of hooks that change values before any observer sees them; they select their own calls."""

    def change_inputs(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> CallInputs:
        """Return the new arguments of the layer."""
        return args, kwargs

    def change_output(self, call: Call, module: nn.Module, inputs: CallInputs, output: Any) -> Any:
        return output

    def begin(self, *, is_again: bool) -> None:
        """Called before each of several passes. `is_again`: with the input of the previous pass; then change
        everything as before, but count and collect nothing."""


class ForwardError(CannotRunError):
    """The model's own forward raised.

    Attributes:
        call: the innermost running layer; None outside any.
        input_shapes: shapes of that layer's input tensors.
    """

    def __init__(self, error: Exception, call: Call | None, input_shapes: tuple[Shape, ...]) -> None:
        self.call = call
        self.input_shapes = input_shapes
        reason = in_one_line(error, _MOST_CHARACTERS) or "no message"
        where = f"{call.label or 'the model itself'} ({call.type})" if call else "the model"
        shapes = " and ".join(str(list(shape)) for shape in input_shapes)
        inputs_note = f", given {shapes}" if shapes else ""
        command = next(iter({*invocation().argv[:1]} - {"train", "lrfind"}), "summary")  # these take no input
        options = "(--input, --input-shape, --batch)"
        hint = f"modelscope {command} --help   shows how to give another input {options}"
        if (failed := failed_device(error)) is not None:
            reason, hint = failed
        elif fixed := re.search(r"shape\[(\d)\] to be (?:equal to )?(.*?, but got \d+)", str(error)):
            reason = f"exported for dimension {fixed[1]} of {fixed[2]}".replace("dimension 0", "a batch size")
        elif "on the same device" in reason:
            hint = "--device cpu   a tensor of the model is on a different device than its input"
        elif reason.startswith("Expected more than 1 value per channel when training"):
            hint = "--mode eval   or --batch 2, with two images or noise: "
            hint += "batch norm in train mode needs more than one value per channel"
        super().__init__(f"forward raised in {where}{inputs_note}: {type(error).__name__}: {reason}", hint)


def _typed(shape: Iterable[int], name: str = "", is_float: bool = True) -> str:
    option = f"--input {name}=" if name else "--input-shape "
    return f"{option}{'int64:' * (not is_float)}{','.join(map(str, shape))}"


def _other_shape(model: nn.Module, args: Arguments) -> str | None:
    """Return a hint for a model of images that was given another size than it was built for, or no image at all."""
    given = [tensor for _, tensor in tensors_in(args)]
    words = invocation().argv
    exported: Any = getattr(model, "exported_shapes", ())  # of a program, which takes no others
    named = [word for option, word in pairwise(words) if option == "--input"]
    is_noise = len(named) == len(given) and all(re.fullmatch(r"\w+=(\w+:)?[\d,\s]+", word) for word in named)
    names = [word.partition("=")[0] for word in named if is_noise]
    if names and len(given) > 1 and not exported:
        texts = [name for name in names if re.search("ids|token|text|word", name)]
        image = next((tuple(one.shape) for one in given if one.ndim == 4), (1, 3, 224, 224))
        taken = shapes_taken(model, names, image, texts)
        return " ".join(_typed(one.shape, name, name not in texts) for name, one in taken.items()) or None
    if len(given) != 1 or len(exported) > 1:
        return None
    name = next(iter(names), "")
    if exported:
        sizes = [size if type(size) is int else 1 for size in exported[0]]
        if tuple(sizes) == given[0].shape:
            return None
        if words and len(sizes) == 4 and "--input-shape" not in " ".join(words) and not name:
            is_of_one = sizes[0] == 1 and tuple(sizes[1:]) == given[0].shape[1:]
            return "--batch 1" if is_of_one else f"--size {sizes[2]},{sizes[3]}"
        return _typed(sizes, name)
    fitting = input_taken(model, 1, tuple(given[0].shape))
    if fitting is not None and fitting.shape[1:] != given[0].shape[1:]:
        n, *others = fitting.shape
        n = len(given[0]) if n == 1 and fitting.ndim == given[0].ndim else n  # as many as given
        return _typed((n, *others), name, fitting.is_floating_point())
    if not 1 <= given[0].ndim <= 4 or not given[0].is_floating_point():
        return None
    shape = image_shape_taken(model, given[0])
    if shape is None or shape == given[0].shape:
        return None
    if not words or "--input-shape" in " ".join(words) or name:
        return _typed(shape, name)
    sides = shape[2:] if shape[2] != shape[3] else shape[2:3]
    # No option changes a tensor of a file, or makes an image of another tensor.
    is_of_file = "--input" in words or any(word.endswith((".npy", ".npz")) for word in words)
    if given[0].ndim == 4 and is_of_file:
        return f"give a tensor of {' x '.join(map(str, shape))}: no option resizes tensors"
    return f"--size {','.join(map(str, sides))}" if given[0].ndim == 4 else None


# Not an Exception: a model's own `except Exception` must not swallow it.
class _StopForward(BaseException):
    """Raised inside the forward to end it early, or because an observer failed."""


@contextmanager
def _uncaught() -> Iterator[None]:
    """Carry an observer's exception past every `except` of the model."""
    try:
        yield
    except Exception as error:
        raise _StopForward from error


def _refuse(layers: Iterable[tuple[Layer, nn.Module]]) -> None:
    """Refuse layers that cannot be observed: TorchScript, and lazy ones."""
    for layer, module in layers:
        if isinstance(module, torch.jit.ScriptModule):
            name = layer.name or "the model"
            message = f"{name} ({layer.type}) is TorchScript, which does not run hooks"
            raise CannotRunError(message, "give the Python module that it was made from, as FILE.py:NAME")
        if any(map(is_lazy, (*module.parameters(recurse=False), *module.buffers(recurse=False)))):
            message = f"layer '{layer.name}' ({layer.type}) has no shape before the model's first run"
            raise CannotRunError(message, "let the factory run the model once on a dummy batch and return it")


@dataclass(slots=True)
class _RunningCall:
    call: Call
    module: nn.Module
    inputs: CallInputs
    handling: BaseException | None  # exception handled by the model's own `except` when the call began
    kind: tuple[Any, ...]
    previous: tuple[str, int] = "", 0  # the call last made directly inside: its layer, and `like`
    is_innermost: bool = True


class HookSession:
    """Context manager that owns all hooks and always restores the model.

    Args:
        model: restored: hooks, training flags, attributes, buffers, `requires_grad`, fast-path flag, RNG.
        observers: see every wanted call.
        interventions: change the calls they select, in this order; then no forward is cut short.
        wanted: the `(layer name, call index)` pairs that matter, or None for all. Once the last one is done the
            forward is cut short.
        names: layers shown to the observers, with every call; None for all.
        is_restoring: switch to the requested mode, disable the fused attention path, which hides inner layers, and
            restore everything at the end. If False the caller runs the model, and only the hooks are removed.
        is_training: run in train mode instead of eval mode.
        with_gradients: build the graph for a backward pass. Then no forward is truncated: a loss needs its end.

    An outermost call begins a new pass, in which counting restarts. Calls repeated by activation checkpointing
    inside a backward pass are not counted.

    Calls of one layer are of the same kind if it has parameters, as they share them. A layer without any may stand
    at several places, as the ReLU of a residual block does: its calls are of one kind if those around them are, and
    the same kind of call came before each.

    Attributes:
        first_calls: the first call of every layer in the latest pass, wanted or not.
    """

    def __init__(
        self,
        model: nn.Module,
        observers: Iterable[Observer] = (),
        *,
        wanted: frozenset[tuple[str, int]] | None = None,
        names: frozenset[str] | None = None,
        is_restoring: bool = True,
        is_training: bool = False,
        with_gradients: bool = False,
        interventions: Iterable[Intervention] = (),
    ) -> None:
        self.model = model
        self._interventions = tuple(interventions)
        self._observers = tuple(observers)
        self._wanted = wanted
        self._names = names
        self._is_restoring = is_restoring
        self._is_training = is_training
        self._with_gradients = with_gradients
        self._handles: list[RemovableHandle] = []
        self._snapshot: Snapshot | None = None
        self._uncompiled = ExitStack()
        self._begin_pass()

    @property
    def running(self) -> tuple[tuple[Call, nn.Module], ...]:
        """The open calls, outermost first."""
        return tuple((frame.call, frame.module) for frame in self._open)

    def _begin_pass(self) -> None:
        self._n_calls = 0
        self.first_calls: dict[str, Call] = {}
        self._calls_of: Counter[str] = Counter()
        self._first_of_kind: dict[tuple[Any, ...], int] = {}
        self._open: list[_RunningCall] = []
        self._failed: tuple[BaseException, _RunningCall] | None = None
        may_stop = self._wanted is not None and not self._with_gradients and not self._interventions
        self._n_missing = len(self._wanted or ()) if may_stop else 0

    def __enter__(self) -> Self:
        layers = list_layers(self.model)
        _refuse(layers)
        if self._is_restoring:
            self._snapshot = Snapshot(self.model)
        try:
            if self._is_restoring:
                set_training(self.model, self._is_training)
                torch.backends.mha.set_fastpath_enabled(False)
                self._uncompiled.enter_context(run_uncompiled())
            for layer, module in layers:
                self._attach(layer, module)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        if isinstance(error, _StopForward) and error.__cause__ is not None:
            raise error.__cause__  # of an observer, in a forward run by the caller

    def _close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for observer in (*self._interventions, *self._observers):
            observer.detach()
        self._uncompiled.close()
        if self._snapshot is not None:
            self._snapshot.restore()
            self._snapshot = None

    def _attach(self, layer: Layer, module: nn.Module) -> None:
        name, kind = layer.name, layer.type

        def enter(module: nn.Module, args: Args, kwargs: Kwargs) -> CallInputs | None:
            return self._enter(name, kind, module, args, kwargs)

        def leave(module: nn.Module, args: Args, kwargs: Kwargs, output: Any) -> Any:
            return self._leave(module, output)

        # After the user's own hooks, which may change values. Also called if the forward raises, as the model may
        # catch that and continue.
        self._handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        self._handles.append(module.register_forward_hook(leave, with_kwargs=True, always_call=True))
        for observer in (*self._interventions, *self._observers):
            self._handles.extend(observer.attach(name, module))

    def _enter(
        self, name: str, kind: str, module: nn.Module, args: Args, kwargs: Kwargs
    ) -> CallInputs | None:
        if not self._open:
            if in_backward():
                return None  # recomputed inside a backward pass
            self._begin_pass()
        self._n_calls += 1
        place: tuple[Any, ...] = (name,)
        if self._open and next(module.parameters(), None) is None:
            place = name, self._open[-1].previous, self._open[-1].kind
        index = self._calls_of[name]
        like = self._first_of_kind.setdefault(place, index)
        if self._open:
            self._open[-1].previous = name, like
        call = Call(name, kind, self._n_calls, index, len(self._open), like)
        self._calls_of[name] += 1
        self.first_calls.setdefault(name, call)
        self._open.append(_RunningCall(call, module, (args, kwargs), sys.exception(), place))
        with _uncaught():
            for intervention in self._interventions:
                args, kwargs = intervention.change_inputs(call, module, args, kwargs)
            self._open[-1].inputs = args, kwargs
            if self._is_wanted(call):
                for observer in self._observers:
                    observer.enter(call, module, args, kwargs)
        return (args, kwargs) if self._interventions else None

    def _leave(self, module: nn.Module, output: Any) -> Any:
        if not self._open or self._open[-1].module is not module:
            return None  # a pre-hook of the user raised before this session's
        frame = self._open.pop()
        error = sys.exception()
        if error is not None and error is not frame.handling:
            if self._failed is None or self._failed[0] is not error:
                self._failed = error, frame
            return None
        if self._open and (tensors_in(output) or not frame.is_innermost):
            self._open[-1].is_innermost = False
        with _uncaught():
            for intervention in self._interventions:
                output = intervention.change_output(frame.call, module, frame.inputs, output)
            is_wanted = self._is_wanted(frame.call)
            for observer in self._observers:
                if is_wanted:
                    observer.leave(frame.call, module, frame.inputs, output, frame.is_innermost)
                else:
                    observer.pass_by(module, output)
        if is_wanted and self._n_missing > 0:
            self._n_missing -= 1
            if self._n_missing == 0:
                raise _StopForward
        return output if self._interventions else None

    def _is_wanted(self, call: Call) -> bool:
        if self._wanted is not None:
            return (call.name, call.index) in self._wanted
        return self._names is None or call.name in self._names

    def run(self, args: Arguments) -> Any:
        """Run one forward pass with positional or named arguments; return the output, None if cut short."""
        observer_error = None
        try:
            with torch.set_grad_enabled(self._with_gradients):
                return self.model(**args) if isinstance(args, dict) else self.model(*args)
        except _StopForward as stop:
            observer_error = stop.__cause__
        except ModelscopeError:  # of an ONNX file, which says itself what is wrong
            raise
        except Exception as error:
            raise self._forward_error(error, args) from error
        finally:
            self._open.clear()  # these hold tensors
            self._failed = None
        if observer_error is not None:
            raise observer_error
        return None

    def _forward_error(self, error: Exception, args: Arguments) -> ForwardError:
        raised = ForwardError(error, None, ())
        features = None
        if self._failed is not None and self._failed[0] is error:
            _, innermost = self._failed
            shapes = tuple(tuple(tensor.shape) for _, tensor in tensors_in(innermost.inputs))
            raised = ForwardError(error, innermost.call, shapes)
            features = innermost.module.in_features if type(innermost.module) is nn.Linear else None
        if failed_device(error) is not None:
            return raised
        if (hint := _other_shape(self.model, args)) is not None:
            raised.hint = hint
            return raised
        if features and raised.input_shapes and raised.input_shapes[0][-1:] != (features,):
            what = f"'{raised.call.label if raised.call else ''}' takes {features} features"
            raised.hint = (
                f"{what} and got {raised.input_shapes[0][-1]}; no square image tried gives {features}"
            )
        is_of_targets = isinstance(error, AssertionError | TypeError | ValueError | AttributeError)
        if self._is_training and is_of_targets and not (raised.hint or "").startswith("--mode eval"):
            raised.hint = (
                f"--mode eval   in train mode it may need more inputs, such as targets; or {raised.hint}"
            )
        is_one_dict = isinstance(args, tuple) and len(args) == 1 and isinstance(args[0], dict)
        if is_one_dict and isinstance(error, TypeError | KeyError | AttributeError):
            name = next(iter(inspect.signature(self.model.forward).parameters))
            raised.message += f" (it was given a dict of {', '.join(map(repr, next(iter(args))))})"
            raised.hint = f"--input {name}=FILE.pt   holds what forward() takes, such as a tuple of tensors"
        return raised
