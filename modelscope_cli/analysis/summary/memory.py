"""The memory of one training step: which layer keeps what, how much at most, and the largest batch that fits.

The step runs on tensors without values, with the shapes, storages and operators of one device. Every storage is
followed from the operator that makes it until it is freed, in the forward, the backward and the step of the
optimizer. What one operator allocates for itself and frees again is not seen.
"""

import math
import weakref
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from warnings import catch_warnings, filterwarnings

import torch
from torch import Tensor, UntypedStorage, nn
from torch.overrides import TorchFunctionMode

from modelscope_cli.analysis.summary.cuda_kernels import attention_of_cuda, backward
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.layers import map_tensors, tensors_in
from modelscope_cli.hooks.selection import storages_in
from modelscope_cli.hooks.session import Call, HookSession, Observer
from modelscope_cli.hooks.torch_private import (
    backward_sequence,
    forward_sequence,
    has_foreach,
    operators_shown_to,
)
from modelscope_cli.inputs.batch import count_images, map_arguments
from modelscope_cli.plain_text import in_one_line
from modelscope_cli.records.naming import label
from modelscope_cli.records.refusals import unknown
from modelscope_cli.records.run import Args, Arguments, Kwargs
from modelscope_cli.records.summary import AMP, OPTIMIZERS, MemoryLevel

Key = tuple[str, int]
Owner = tuple[Key, ...]  # the open calls, outermost first


@dataclass(frozen=True, slots=True)
class StepOptions:
    """The kind of step."""

    # A name of `OPTIMIZERS`, or optimizers of torch over the parameters of the model
    optimizer: Any = "adamw"
    amp: str | None = None  # the dtype of autocast: `bfloat16` or `float16`; None for no autocast
    device: str = "cpu"  # whose kernels the step has: `cpu` or `cuda`, which need not be here

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, str):
            if self.optimizer == "lbfgs":
                raise UsageError(_LBFGS, "--optimizer adamw")
            if self.optimizer not in OPTIMIZERS:
                raise unknown("an optimizer", self.optimizer, tuple(OPTIMIZERS))
        if self.amp is not None and self.amp not in AMP:
            raise unknown("a dtype of autocast", self.amp, AMP)

    @property
    def name(self) -> str:
        if isinstance(self.optimizer, str):
            return self.optimizer
        return " and ".join(type(one).__name__ for one in _several(self.optimizer))


_LBFGS = "LBFGS calls the model a number of times that depends on the loss, so its memory is unknown without values"


def _several(optimizers: Any) -> list[torch.optim.Optimizer]:
    return list(optimizers) if isinstance(optimizers, list | tuple) else [optimizers]


@dataclass(slots=True)
class _Block:
    """One storage; `born` and `died` count operators."""

    n_bytes: int
    kind: str
    owner: Owner
    born: int
    died: float = math.inf


@dataclass(frozen=True, slots=True)
class Step:
    """What one step kept."""

    saved: Mapping[Key, int]  # bytes kept by autograd because of a call and the calls inside it, by call
    at_peak: Mapping[Key, int]  # bytes made by a call, or kept because of it, that exist at the peak, by call
    kinds: Mapping[str, int]  # bytes at the peak by kind of tensor
    sizes: Mapping[str, int]
    saved_bytes: int
    peak: MemoryLevel
    is_fake: bool
    device: str
    kernels: Mapping[str, int] | None  # of attention, by how often each is assumed; None if nothing is


class _StepObserver(Observer):
    """Follows all storages of one step, and whose they are: which calls were open when each storage, and each node
    of the graph of autograd, was made."""

    def __init__(self) -> None:
        self.open: Owner = ()
        self._begins: list[int] = []  # sequence numbers of autograd, and who was open from there
        self._owners: list[Owner] = []
        self.phase = "forward"
        # The number of the node whose derivative is computed, if not by torch's engine
        self.node: int | None = None
        self.blocks: list[_Block] = []
        self.saved: dict[Key, int] = defaultdict(int)
        self.saved_bytes = 0
        self._level = MemoryLevel("forward", None, 0)  # of the last operator
        self._peak = self._level
        self.moment_of_peak = 0
        self._alive: dict[int, _Block] = {}
        self._references: dict[int, weakref.ref[UntypedStorage]] = {}
        self._packed: set[int] = set()
        self._total = 0
        self._moment = 0

    def enter(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        self._now_in((*self.open[: call.depth], (call.name, call.index)))

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        self._now_in(self.open[: call.depth])

    def _now_in(self, owner: Owner) -> None:
        self.open = owner
        self._begins.append(forward_sequence())
        self._owners.append(owner)

    def see(self, operator: Any, args: Args, kwargs: Kwargs, result: Any) -> None:
        """Follow the results of an operator."""
        self._moment += 1
        owner = self._owner()
        for storage in storages_in(result):
            self.follow(storage, "temporary", owner)
        layer = label(*owner[-1]) if owner else None
        if layer is None and self.phase == self._level.phase:
            layer = self._level.layer  # operators between layers belong to the one before
        self._level = MemoryLevel(self.phase, layer, self._total)
        if self._total > self._peak.bytes:
            self._peak, self.moment_of_peak = self._level, self._moment

    def follow(self, storage: UntypedStorage, kind: str, owner: Owner = ()) -> _Block:
        """Count a storage, once, until it is freed."""
        key = storage._cdata
        block = self._alive.get(key)
        if block is None:
            n_bytes = 0 if kind == "stand-ins" else storage.nbytes()  # of an optimizer: counted in the model
            block = self._alive[key] = _Block(n_bytes, kind, owner, self._moment)
            self.blocks.append(block)
            self._total += block.n_bytes
            self._references[key] = weakref.ref(storage, lambda _: self._free(key))
        return block

    def _free(self, key: int) -> None:
        block = self._alive.pop(key, None)
        self._packed.discard(key)
        if block is not None:
            block.died = self._moment
            self._total -= block.n_bytes

    def name(self, tensors: Iterable[Tensor | None], kind: str) -> None:
        """Say what the storages of tensors are."""
        for storage in storages_in([tensor for tensor in tensors if tensor is not None]):
            self.follow(storage, kind).kind = kind

    def pack(self, tensor: Tensor) -> Tensor:
        """Count a tensor that autograd keeps, by its storage; weights are there anyway."""
        for storage in storages_in(tensor):
            block = self.follow(storage, "saved", self.open)
            if storage._cdata in self._packed or block.kind in ("parameters", "buffers"):
                continue
            self._packed.add(storage._cdata)
            if block.kind == "temporary":
                block.kind, block.owner = "saved", self.open
            self.saved_bytes += block.n_bytes
            for key in self.open:
                self.saved[key] += block.n_bytes
        return tensor

    def _owner(self) -> Owner:
        if self.phase != "backward":
            return self.open if self.phase == "forward" else ()
        number = backward_sequence() if self.node is None else self.node
        place = bisect_right(self._begins, number) if number is not None else 0
        return self._owners[place - 1] if place else ()

    def step(self, *, is_fake: bool, device: str = "cpu", kernels: Mapping[str, int] | None = None) -> Step:
        """Return what was seen."""
        at_peak: dict[Key, int] = defaultdict(int)
        kinds: dict[str, int] = defaultdict(int)
        sizes: dict[str, int] = defaultdict(int)
        for block in self.blocks:
            if block.born <= self.moment_of_peak <= block.died:
                kinds[block.kind] += block.n_bytes
                for key in block.owner:
                    at_peak[key] += block.n_bytes
            sizes[block.kind] += block.n_bytes
        return Step(
            saved=self.saved,
            at_peak=at_peak,
            kinds=kinds,
            sizes=sizes,
            saved_bytes=self.saved_bytes,
            peak=self._peak if self._moment else MemoryLevel(self.phase, None, self._total),
            is_fake=is_fake,
            device=device,
            kernels=kernels,
        )


def run_step(
    model: nn.Module, args: Arguments, options: StepOptions, *, way: str = "fake", batch: int | None = None
) -> Step:
    """Run one training step on copies of all tensors, the second of a training, and restore the model.

    Args:
        way: one of `WAYS`.
        batch: the number of images; None for that of `args`. Values of other images are copies.
    """
    observer = _StepObserver()
    session = HookSession(model, [observer], is_training=True, with_gradients=True)
    with torch.inference_mode(False), session:
        originals = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not originals:
            raise CannotRunError(
                "no parameter requires a gradient, so nothing is trained", "leave out --train"
            )
        device = options.device if way == "fake" else originals[0].device.type
        optimizers = _optimizers(options, originals, device)
        with _mode_of(way, options) as kernels:
            make = _maker(way, device)
            if way != "real":
                _swap_tensors(model, make)
            parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
            for parameter in parameters:
                parameter.grad = None
            examples = args if way == "real" else map_tensors(args, lambda _, tensor: tensor.to("meta"))
            inputs = map_tensors(resized(examples, batch), make)
            observer.name(model.parameters(), "parameters")
            observer.name(model.buffers(), "buffers")
            observer.name((tensor for _, tensor in tensors_in(inputs)), "input")
            for optimizer in optimizers:
                observer.name(_tensors_of(optimizer, is_state=True), "optimizer state")
                observer.name(_tensors_of(optimizer, is_state=False), "stand-ins")
            with operators_shown_to(observer.see):
                # Not detached, the node that made a tensor would keep itself alive: only torch's engine clears it
                pack = observer.pack if kernels is None else lambda tensor: observer.pack(tensor).detach()
                hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
                with hooks, _autocast(options.amp, device):
                    output = session.run(inputs)
                loss = loss_of(output)
                if loss is None:
                    raise CannotRunError("no output depends on anything trainable", "leave out --train")
                observer.phase = "backward"
                if kernels is None:
                    loss.backward()
                else:
                    del output  # with its graph, which this backward pass frees node by node
                    backward(loss, partial(setattr, observer, "node"))
            observer.name((parameter.grad for parameter in parameters), "gradients")
        observer.phase = "optimizer"
        with operators_shown_to(observer.see):
            for optimizer in optimizers:
                optimizer.step()
    return observer.step(is_fake=way != "real", device=device, kernels=kernels)


def loss_of(output: Any) -> Tensor | None:
    """Return the sum of all outputs; None if none of them requires a gradient."""
    real = (torch.view_as_real(t) if t.is_complex() else t for _, t in tensors_in(output))
    losses = [tensor.sum() for tensor in real if tensor.requires_grad]
    return torch.stack([one.float() for one in losses]).sum() if len(losses) > 1 else next(iter(losses), None)


def forward_peak(model: nn.Module, args: Arguments) -> int:
    """Return the most bytes that exist during one forward in eval mode without gradients, weights included."""
    for way in WAYS:
        observer = _StepObserver()
        session = HookSession(model, [observer])
        try:
            with torch.inference_mode(False), session, _mode_of(way, StepOptions()):
                make = _maker(way, "cpu")
                if way != "real":
                    _swap_tensors(model, make)
                inputs = map_tensors(args, make)
                named = (*model.parameters(), *model.buffers(), *(tensor for _, tensor in tensors_in(inputs)))
                observer.name(named, "before")
                with operators_shown_to(observer.see):
                    session.run(inputs)
        except Exception:
            if way == "real":
                raise
        else:
            return observer.step(is_fake=way != "real").peak.bytes
    raise AssertionError("unreachable")


# Fake tensors have no values and say that they are on a device, so torch chooses its kernels; on `meta` it chooses
# others. Recurrent layers keep what only their kernels know, and some code decides by values: these need real ones.
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
WAYS = ("fake", "real")


@contextmanager
def _mode_of(way: str, options: StepOptions) -> Iterator[Mapping[str, int] | None]:
    """Run a step in one way while open; yields how often each kernel of attention is assumed, None if none is."""
    if way == "real":
        yield None
        return
    from torch._subclasses.fake_tensor import FakeTensorMode

    is_absent = options.device == "cuda" and not torch.cuda.is_available()
    assumed = attention_of_cuda() if is_absent else nullcontext()
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        _Without(_RECURRENT),
        assumed as kernels,
        catch_warnings(),
    ):
        filterwarnings("ignore", ".*CUDA is not available")
        yield kernels


class _Without(TorchFunctionMode):
    """Refuses functions of torch by name."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self._names = names

    def __torch_function__(self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        if getattr(func, "__name__", "") in self._names:
            raise NotImplementedError(f"the kernels of {func.__name__} depend on the device")
        return func(*args, **(kwargs or {}))


def _maker(way: str, device: str) -> Callable[[str, Tensor], Tensor]:
    """Return the function for `map_tensors` that makes the tensors of a step like those that are there."""
    if way == "real":
        return lambda _, tensor: tensor.detach().clone()
    return lambda _, t: torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device=device)


def _swap_tensors(model: nn.Module, make: Callable[[str, Tensor], Tensor]) -> None:
    """Put copies in the place of all parameters and buffers, until the session restores them."""
    made: dict[int, Any] = {}
    for module in model.modules():
        tensors = [*module._parameters.items(), *module._buffers.items()]
        for name, tensor in [(name, tensor) for name, tensor in tensors if tensor is not None]:
            if id(tensor) not in made:
                is_parameter = isinstance(tensor, nn.Parameter)
                copied = make(name, tensor)
                made[id(tensor)] = nn.Parameter(copied, tensor.requires_grad) if is_parameter else copied
            setattr(module, name, made[id(tensor)])


def _optimizers(
    options: StepOptions, parameters: Sequence[nn.Parameter], device: str
) -> list[torch.optim.Optimizer]:
    """Return the optimizers over parameters on the meta device in place of those given, with the gradients and the
    state that every step but the first finds."""
    twins = {
        id(parameter): nn.Parameter(torch.empty_like(parameter, device="meta")) for parameter in parameters
    }
    for twin in twins.values():
        twin.grad = torch.empty_like(twin)
    if isinstance(options.optimizer, str):
        name, keywords = OPTIMIZERS[options.optimizer]
        made = [getattr(torch.optim, name)(list(twins.values()), lr=1e-3, **keywords)]
    else:
        made = [_like(optimizer, twins) for optimizer in _several(options.optimizer)]
    for optimizer in made:
        for group in optimizer.param_groups:
            if has_foreach(device) and group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True  # torch's default there
        try:
            optimizer.step()
        except Exception as error:
            message = f"{type(optimizer).__name__} needs values for its step: {in_one_line(error, 100)}"
            raise UsageError(message, "--optimizer adamw") from error
    return made


def _like(optimizer: torch.optim.Optimizer, twins: Mapping[int, nn.Parameter]) -> torch.optim.Optimizer:
    """Return a new optimizer of the same kind over the twins; it steps what requires a gradient."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError(_LBFGS, "optimizer='adamw'")
    groups = [
        {**group, "params": [twins[id(p)] for p in group["params"] if id(p) in twins]}
        for group in optimizer.param_groups
    ]
    if not any(group["params"] for group in groups):
        message = f"{type(optimizer).__name__} updates no parameter of the model that requires a gradient"
        raise UsageError(message, "make the optimizer from model.parameters()")
    return type(optimizer)([group for group in groups if group["params"]])  # type: ignore[call-arg]


def _tensors_of(optimizer: torch.optim.Optimizer, *, is_state: bool) -> list[Tensor]:
    """Return the state, or the parameters and gradients that the optimizer was given."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not is_state:
        return [*parameters, *(p.grad for p in parameters if p.grad is not None)]
    return [value for p in parameters for value in optimizer.state[p].values() if isinstance(value, Tensor)]


@contextmanager
def _autocast(dtype: str | None, device: str) -> Iterator[None]:
    """Enable autocast while open, also of a device that is not here, which `torch.autocast` refuses."""
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    if dtype is not None:
        torch.set_autocast_enabled(device, True)
        torch.set_autocast_dtype(device, getattr(torch, dtype))
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])


def resized(args: Arguments, batch: int | None) -> Arguments:
    """Return arguments with another number of images; tensors of another length stay."""
    before = count_images(args)
    if batch is None or batch == before:
        return args

    def resize(value: Any) -> Any:
        if isinstance(value, list) and len(value) == before:
            return [value[n % before] for n in range(batch)]
        return map_tensors(value, repeat)

    def repeat(path: str, tensor: Tensor) -> Tensor:
        if tensor.ndim == 0 or len(tensor) != before:
            return tensor
        repeated = tensor[:1].expand(batch, *tensor.shape[1:])
        return torch.empty_like(repeated) if tensor.is_meta else repeated

    return map_arguments(args, resize)
