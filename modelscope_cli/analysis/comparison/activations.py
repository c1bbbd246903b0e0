"""`diff` with an input: run two models in step, with one output of each in memory at a time."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.analysis.comparison.distance import merge, place_of, sum_up, to_distance, traits
from modelscope_cli.analysis.comparison.matching import LayerNames, Matching, match
from modelscope_cli.analysis.comparison.programs import Program
from modelscope_cli.analysis.outputs.output_kinds import main_leaf
from modelscope_cli.errors import CannotRunError, refuse_failed_device
from modelscope_cli.hooks.forward_passes import OutputStream, StreamedOutput
from modelscope_cli.hooks.layers import list_layers, tensors_in
from modelscope_cli.hooks.patterns import Layer
from modelscope_cli.hooks.selection import names_among
from modelscope_cli.hooks.session import ForwardError, HookSession, Intervention, Observer
from modelscope_cli.inputs.batch import Batch, ModelSide
from modelscope_cli.inputs.forward_signature import training_args
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.plain_text import in_one_line
from modelscope_cli.records.diff import LayerDifference
from modelscope_cli.records.run import Arguments

Pair = tuple[StreamedOutput | None, StreamedOutput | None]


class Pairing:
    """Pairs the outputs of the same call of both models.

    While both models make the same calls in the same order, no output is copied. Outputs of layers that only one
    model has are yielded alone. Where the orders differ, copies are stored until the other side reaches them.

    Args:
        names_a, names_b: the names of all layers of each model.
    """

    def __init__(self, names_a: frozenset[str], names_b: frozenset[str]) -> None:
        self._names_a, self._names_b = names_a, names_b
        self._kept_a: dict[tuple[str, int, str], StreamedOutput] = {}
        self._kept_b: dict[tuple[str, int, str], StreamedOutput] = {}

    def pairs(self, a: Iterator[StreamedOutput], b: Iterator[StreamedOutput]) -> Iterator[Pair]:
        """Yield each output once, with its counterpart or None; valid until the next pair is requested."""
        x, y = next(a, None), next(b, None)
        while x is not None or y is not None:
            if x is not None and y is not None and x.key == y.key:
                yield x, y
                x = y = None  # release them before the models continue
                x, y = next(a, None), next(b, None)
            elif x is not None and (x.key in self._kept_b or y is None or x.call.name not in self._names_b):
                yield x, self._kept_b.pop(x.key, None)
                x = None
                x = next(a, None)
            elif y is not None and (y.key in self._kept_a or x is None or y.call.name not in self._names_a):
                yield self._kept_a.pop(y.key, None), y
                y = None
                y = next(b, None)
            elif x is not None and y is not None:
                self._kept_a[x.key], self._kept_b[y.key] = x.copied(), y.copied()
                x = y = None
                x, y = next(a, None), next(b, None)
        yield from ((output, None) for output in self._kept_a.values())
        yield from ((None, output) for output in self._kept_b.values())
        self._kept_a.clear()
        self._kept_b.clear()


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two models and its settings."""

    label: str  # `A` or `B`, for messages
    loaded: LoadedModel
    is_training: bool = False
    seed: int = 0  # the seed of random numbers in the passes (dropout)
    interventions: tuple[Intervention, ...] = ()  # change values in it, to find a cause
    program: Program | None = None  # of B, what runs in the place of layers; None for a model with layers

    def place(self, args: Arguments) -> Arguments:
        """Move the arguments of a forward to this side's device and dtype."""
        loaded = self.loaded
        placed = ModelSide(loaded.family, loaded.device, loaded.dtype).place(args)
        return training_args(loaded.module, loaded.family, placed) if self.is_training else placed

    def run(
        self,
        args: Arguments,
        *observers: Observer,
        changes: Iterable[Intervention] = (),
        mode: AbstractContextManager[Any] | None = None,
    ) -> Any:
        """Run one pass under observers, further hooks and a mode of torch; return the output."""
        hooks, module = (*self.interventions, *changes), self.loaded.module
        with (
            HookSession(module, observers, is_training=self.is_training, interventions=hooks) as session,
            mode or nullcontext(),  # not around the session, which copies buffers
        ):
            return session.run(self.place(args))


@dataclass(slots=True)
class _OutputSums:
    """The sums of one output over the batches so far; `pending` are those of the current pass, on the device."""

    difference: LayerDifference
    sums: Tensor | None = None
    pending: Tensor | None = None

    def settle(self) -> None:
        if self.pending is not None:
            sums = self.pending.cpu()
            self.sums = sums if self.sums is None else merge(self.sums, sums)
            self.pending = None

    def fail(self, problem: str) -> None:
        self.difference = replace(self.difference, status="changed", problem=problem)

    def finish(self, tolerance: float) -> LayerDifference:
        if self.sums is None or self.difference.problem:
            return self.difference
        distance = to_distance(self.sums)
        status = "changed" if distance.exceeds(tolerance) else self.difference.status
        return replace(self.difference, status=status, **distance.figures())


@dataclass(frozen=True, slots=True)
class Activations:
    """What `diff_activations` finds."""

    rows: tuple[LayerDifference, ...]  # in execution order
    # The same, with the rows of a B that is a program that the patterns leave out
    examined: tuple[LayerDifference, ...]
    matching: Matching | None = None  # of a B that is a program, which value is which layer's; else None


def diff_activations(
    a: Side,
    b: Side,
    batches: Iterable[Batch],
    tolerance: float,
    *,
    layers: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    is_whole_only: bool = False,
    is_forced: bool = False,
    see: Callable[[Tensor, Tensor, Batch], None] = lambda a, b, batch: None,
    track: Callable[[Iterable[Batch]], Iterator[Batch]] = iter,
) -> Activations:
    """Run both models over every batch and compare the outputs of each call of each layer.

    The models wait for each other at every output, so only one activation of each is in memory. Where their calls
    come in another order, outputs are copied and stored until the other side reaches them. Each side draws random
    numbers from its own seed, so dropout is the same for equal seeds and devices.

    Args:
        batches: float32 on the CPU, preprocessed for A.
        tolerance: on the relative L2 over all batches.
        layers, exclude: patterns; without any, the innermost layers and the models themselves.
        is_whole_only: whether to compare nothing but the main output of both, for models with other layers.
        is_forced: whether A goes on with B's value after each comparison, so that a row is what the layer adds.
        see: is given the outputs of both models for every batch.

    A B that is a program is first run once after A, to find the value of every output. The patterns have no part
    in that: what is compared with a layer, and what explains it, depends on all layers.
    """
    wanted = frozenset({""}) if is_whole_only else _wanted(a, b, layers, exclude)
    rows: dict[tuple[str, int, str], _OutputSums] = {}
    pairing = Pairing(_names(a), _names(b))
    matching = None
    with ExitStack() as stack:
        is_whole = wanted is None or b.program is not None
        blocks = {*(wanted or ()), *(_norms_with_layers(a) if b.program is not None else ())}
        run_a = _open(a, None if is_whole else wanted, blocks, stack)
        run_b = run_a if b.program is not None else _open(b, wanted, frozenset(), stack)
        for batch in track(batches):
            kept = (a.loaded.module.state_dict(), batch.args) if is_forced else ()
            spared = {place_of(one) for _, one in tensors_in(kept)}
            if b.program is not None and matching is None:
                with closing(run_a(batch.args)) as ours:
                    matching = match(ours, b.program, b.place(batch.args), LayerNames(a.loaded.module))
                run_b = partial(matching.stream, b.program, b.place)
                pairing = Pairing(_names(a), frozenset(name for name, _, _ in matching.values))
            with closing(run_a(batch.args)) as ours, closing(run_b(batch.args)) as theirs:
                both = (_main(ours), _main(theirs)) if is_whole_only else (ours, theirs)
                for x, y in pairing.pairs(*both):
                    _add(rows, x, y, matching)
                    if x and y and not x.call.name:
                        see(x.tensor, y.tensor, batch)
                    if is_forced and x and y and x.tensor.shape == y.tensor.shape:
                        with torch.inference_mode(), suppress(RuntimeError):  # a tensor that overlaps itself
                            if place_of(x.tensor) not in spared:  # neither a weight nor the input
                                x.tensor.copy_(y.tensor)
                    del x, y
            for row in rows.values():
                row.settle()
    examined = tuple(row.finish(tolerance) for row in rows.values())
    if b.loaded.info.class_name == "ExportedProgram":  # the exporter leaves out what has no effect
        # It also returns what is left alone, not in a tuple, and names a second call `layer@1`
        known = _names(a)
        examined = tuple(
            replace(row, status="not tested")
            if row.status == "removed" or (row.status == "added" and row.name.partition("@")[0] in known)
            else row
            for row in examined
        )
    shown = tuple(row for row in examined if wanted is None or row.name in wanted)
    is_apart = layers and b.program is None and all(row.status in ("added", "removed") for row in examined)
    if is_apart or not shown:
        patterns = f"--layer '{layers[0]}'" if layers else "what --exclude leaves"
        problem = "has the same name in A and in B" if is_apart else "is called in the forward pass"
        hint = f"leave out --{'layer' if layers else 'exclude'}"
        raise CannotRunError(f"no layer of {patterns} {problem}", hint)
    return Activations(shown, examined, matching)


def _main(outputs: Iterator[StreamedOutput]) -> Iterator[StreamedOutput]:
    """Yield the main output under no name: what one model returns in a dict, another returns as it is."""
    by_path = {one.path: one for one in outputs if one.tensor.is_floating_point()}
    if by_path:
        path, tensor = main_leaf([(path, one.tensor) for path, one in by_path.items()])
        yield StreamedOutput(by_path[path].call, "", tensor)


def _norms_with_layers(side: Side) -> set[str]:
    """Return the norms that hold other layers, such as timm's with their activation; a program has their value."""
    return {
        name
        for name, module in side.loaded.module.named_modules()
        if "Norm" in type(module).__name__ and [*module.parameters(recurse=False)] and [*module.children()]
    }


def _open(
    side: Side, wanted: frozenset[str] | None, blocks: Set[str], stack: ExitStack
) -> Callable[[Arguments], Generator[StreamedOutput]]:
    """Open a session, closed by `stack`, and return a function that runs one pass."""
    module = side.loaded.module
    stream = OutputStream(module, seed=side.seed, blocks={"", *blocks} if wanted is None else None)
    session = stack.enter_context(
        HookSession(
            module, [stream], names=wanted, is_training=side.is_training, interventions=side.interventions
        )
    )

    def run(args: Arguments) -> Generator[StreamedOutput]:
        placed = side.place(args)
        try:
            yield from stream.follow(lambda: session.run(placed))
        except ForwardError as error:
            error.message = f"{side.label}: {error.message}"
            raise

    return run


def _add(
    rows: dict[tuple[str, int, str], _OutputSums],
    x: StreamedOutput | None,
    y: StreamedOutput | None,
    matching: Matching | None,
) -> None:
    difference = _to_difference(x, y)
    if matching is not None:
        status = "not tested" if difference.status == "removed" else difference.status
        remark = matching.remarks.get(difference.key)
        difference = replace(difference, status=status, matched=remark)
    row = rows.setdefault(difference.key, _OutputSums(difference))
    if difference.status != row.difference.status:
        row.fail(f"{row.difference.status} in one batch, {difference.status} in another")
    elif x is not None and y is not None and difference.status == "same":
        try:
            row.pending = sum_up(x.tensor, y.tensor)
        except (TypeError, RuntimeError) as error:
            refuse_failed_device(error)
            # An output that cannot be compared is reported in its row and does not end the run.
            row.fail(in_one_line(error, 200))


def _to_difference(x: StreamedOutput | None, y: StreamedOutput | None) -> LayerDifference:
    if x is None or y is None:
        status = "added" if x is None else "removed"
    else:
        status = "same" if x.tensor.shape == y.tensor.shape else "reshaped"
    one = x or y
    assert one is not None
    other = y.call.type if y else ""
    return LayerDifference(
        **one.call.fields,
        matched=f"{other} in B" if x and other not in ("", x.call.type, "InterpreterModule") else None,
        status=status,
        output=one.path,
        **traits(x.tensor if x else None, y.tensor if y else None),
    )


def _wanted(a: Side, b: Side, layers: Sequence[str], exclude: Sequence[str]) -> frozenset[str] | None:
    if not layers and not exclude:
        return None
    return names_among([*_layers(a), *_layers(b)], layers, exclude)


def _layers(side: Side) -> list[Layer]:
    return [] if side.program is not None else [layer for layer, _ in list_layers(side.loaded.module)]


def _names(side: Side) -> frozenset[str]:
    return frozenset(layer.name for layer in _layers(side))
