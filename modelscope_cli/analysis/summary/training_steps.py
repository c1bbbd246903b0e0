"""The memory of training steps of any batch: the largest that fits, and what would need less."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from torch import nn

from modelscope_cli.analysis.summary.memory import WAYS, Step, StepOptions, run_step
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.session import ForwardError
from modelscope_cli.inputs.batch import count_images
from modelscope_cli.plain_text import in_one_line
from modelscope_cli.records.naming import counted
from modelscope_cli.records.run import Arguments
from modelscope_cli.records.summary import BatchFit, LayerShape, MemorySaving, TrainingMemory

_MOST_RUNS = 24  # to find the largest batch


class TrainingSteps:
    """The steps of a model with any batch, run without values where that works.

    Args:
        with_values: returns the model with values and its arguments; called where a step needs them.
        progress: called after each step.
    """

    def __init__(
        self,
        model: nn.Module,
        args: Arguments,
        options: StepOptions,
        with_values: Callable[[str], tuple[nn.Module, Arguments]],
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        self._model = model
        self._args = args
        self._options = options
        self._with_values = with_values
        self._progress = progress
        self._ways: Sequence[str] = WAYS
        self.batch = count_images(args)
        self._steps: dict[int, Step] = {}

    def of(self, batch: int) -> Step:
        if batch not in self._steps:
            self._steps[batch] = self.run(self._options, batch)
        return self._steps[batch]

    def run(self, options: StepOptions, batch: int) -> Step:
        """Run a step with other options, in the first way that works."""
        for way in self._ways:
            try:
                step = run_step(self._model, self._args, options, way=way, batch=batch)
            except Exception as error:  # torch raises anything for what a tensor without values cannot do
                is_final = isinstance(error, UsageError | CannotRunError) and not isinstance(
                    error, ForwardError
                )
                if is_final:
                    raise
                reason = in_one_line(error.__cause__ if isinstance(error, ForwardError) else error, 100)
                if way == "real":
                    if isinstance(error, ForwardError):
                        raise
                    message = f"the step raised {type(error).__name__}: {reason}"
                    raise CannotRunError(message, "leave out --train") from error
                if way == "fake":
                    self._model, self._args = self._with_values(reason)
            else:
                if options == self._options:  # the next steps begin where this one worked
                    self._ways = WAYS[WAYS.index(way) :]
                self._progress()
                return step
        raise AssertionError("unreachable")

    def memory(self) -> TrainingMemory:
        """Return the memory of the step with the given batch."""
        step = self.of(self.batch)
        return TrainingMemory(
            batch=self.batch,
            optimizer=self._options.name,
            amp=self._options.amp,
            gradient_bytes=step.sizes.get("gradients", 0),
            optimizer_bytes=step.sizes.get("optimizer state", 0),
            saved_bytes=step.saved_bytes,
            peak_bytes=step.peak.bytes,
            peak=step.peak,
            at_peak={kind: step.kinds[kind] for kind in _KINDS if step.kinds.get(kind)},
            is_fake=step.is_fake,
            device=step.device,
            assumed=_assumed(step, self._options),
        )

    def rows(self, rows: Iterable[LayerShape]) -> tuple[LayerShape, ...]:
        """Return rows with what each call keeps."""
        step = self.of(self.batch)

        def filled(row: LayerShape) -> LayerShape:
            key = row.name, row.call
            return replace(row, saved_bytes=step.saved.get(key, 0), peak_bytes=step.at_peak.get(key, 0))

        return tuple(filled(row) if row.executed else row for row in rows)

    def fit(self, limit: int) -> BatchFit:
        """Return the largest batch whose step fits into this many bytes.

        Memory is close to linear in the batch, so each next size is where a line through those run so far meets the
        limit. Without a step that runs without values, the answer is that line itself.
        """
        smallest, peak = self.smallest()
        if peak > limit:
            return BatchFit(limit, 0, peak, None, smallest, is_computed=True)
        fits, too_large = {smallest: peak}, dict[int, int]()
        trial = smallest + 1
        for _ in range(_MOST_RUNS):
            if "fake" in self._ways or len(fits) + len(too_large) < 2:
                peak = self.of(trial).peak.bytes
            else:
                known = {**fits, **too_large}
                (first, low), (second, high) = sorted(known.items())[:2]
                peak = round(low + (high - low) / (second - first) * (trial - first))
            (fits if peak <= limit else too_large)[trial] = peak
            best, worst = max(fits), min(too_large, default=None)
            if worst is not None and worst - best == 1:
                is_computed = "fake" in self._ways or {best, worst} <= {smallest, smallest + 1}
                return BatchFit(limit, best, fits[best], too_large[worst], smallest, is_computed)
            trial = _next_batch(limit, fits, too_large)
        raise CannotRunError(
            f"no largest batch found: {trial} images still fit into {limit:,} bytes", "a smaller --fit"
        )

    def smallest(self) -> tuple[int, int]:
        """Return the smallest batch that the model takes, and its peak; batch norm may need two values."""
        try:
            return 1, self.of(1).peak.bytes
        except CannotRunError:
            return self.batch, self.of(self.batch).peak.bytes

    def savings(self, batch: int) -> tuple[MemorySaving, ...]:
        """Run the step of a batch in ways that need less, and return those that do, the most helpful first."""
        before = self.of(batch)
        if not before.is_fake:
            return ()
        options, made = self._options, list[MemorySaving]()

        def add(what: str, changed: StepOptions, keyword: str) -> None:
            peak = self.run(changed, batch).peak.bytes
            made.append(MemorySaving(what, peak, before.peak.bytes - peak, keyword))

        if options.amp is None:
            add("autocast to bfloat16", replace(options, amp="bfloat16"), "--amp bfloat16")
        if before.sizes.get("optimizer state", 0) and isinstance(options.optimizer, str):
            stateless = replace(options, optimizer="sgd")
            add("an optimizer without state: sgd", stateless, "--optimizer sgd")
        return tuple(sorted((one for one in made if one.less_bytes > 0), key=lambda one: one.peak_bytes))


def _assumed(step: Step, options: StepOptions) -> tuple[str, ...]:
    """Return in words what the memory of a step rests on that was not asked of the device."""
    if step.device != options.device:
        return (f"the step cannot be modelled on {options.device}: its tensors are on {step.device}",)
    if step.kernels is None:
        return ()
    calls = [f"{kernel} in {counted(n, 'call')}" for kernel, n in sorted(step.kernels.items())]
    attention = (f"scaled_dot_product_attention is {', '.join(calls)}",) if calls else ()
    return (
        "no CUDA here: kernels of compute capability 8.0 or newer, a foreach optimizer, 0 bytes reserved by cuDNN",
        *attention,
    )


_KINDS = ("parameters", "buffers", "gradients", "optimizer state", "input", "saved", "temporary")


def _next_batch(limit: int, fits: Mapping[int, int], too_large: Mapping[int, int]) -> int:
    """Return the next size to try: in turns on the line through the two nearest to the limit, and halfway."""
    best, worst = max(fits), min(too_large, default=None)
    known = {**fits, **too_large}
    (first, low), (second, high) = sorted(sorted(known.items(), key=lambda pair: abs(pair[1] - limit))[:2])
    slope = (high - low) / (second - first)
    trial = int(first + (limit - low) / slope) if slope > 0 else 2 * best
    if worst is None:
        return max(best + 1, min(trial, 100 * best))
    return min(max(trial, best + 1), worst - 1) if len(known) % 2 else (best + worst) // 2
