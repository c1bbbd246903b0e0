"""Two sides compared: their weights, or what their layers give on the same input."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from modelscope_cli.analysis.comparison.activations import Side, diff_activations
from modelscope_cli.analysis.comparison.request import Patterns, choose_tolerance
from modelscope_cli.analysis.comparison.sides import Source, describe, load_both, open_shared, open_weights
from modelscope_cli.analysis.comparison.tensors import diff_tensors
from modelscope_cli.analysis.interventions import ReadHook, bind, conclude, read_hooks
from modelscope_cli.analysis.subject import as_patterns, by_image, first_of, tell_of_images
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.inputs.python_inputs import PythonInputs
from modelscope_cli.records.diff import DiffRecord, DiffSide, count_up, first_divergence
from modelscope_cli.records.progress import Progress
from modelscope_cli.records.run import InputInfo, Invocation, Notice, Run


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sides and the tolerance they are held to."""

    sources: tuple[Source, Source]
    seeds: tuple[int, int]
    tolerance: float | None
    progress: Progress
    invoked: Invocation

    def of_weights(self) -> DiffRecord:
        """Compare two state dicts: of checkpoints, of models, or one of each."""
        a, b = (
            open_weights(source, seed, self.progress)
            for source, seed in zip(self.sources, self.seeds, strict=True)
        )
        tolerance, reason = choose_tolerance(self.tolerance, None)
        rows, renamings = diff_tensors(
            a.tensors,
            b.tensors,
            tolerance,
            track=lambda names, total: self.progress.track(names, "tensors", total),
        )
        if not any(row.status not in ("added", "removed") for row in rows):
            names = f"'{a.side.model.name}' and '{b.side.model.name}'"
            message = f"{names} have no tensor in common, by name or by value: there is nothing to compare"
            raise CannotRunError(message, "give two versions of one model")
        return DiffRecord(
            run=self._header(a.side, None, (*a.warnings, *b.warnings)),
            b=b.side,
            mode=None,
            tolerance=tolerance,
            tolerance_reason=reason,
            first_divergence=first_divergence(rows),
            totals=count_up(rows),
            renamings=renamings,
            tensors=rows,
        )

    def run(
        self,
        given: PythonInputs,
        modes: tuple[str, str],
        hook: Patterns,
        b_hook: Patterns,
        layer: Patterns,
        exclude: Patterns,
    ) -> DiffRecord:
        """Run both on the same input and compare what their layers give."""
        hooks = _read_hooks(as_patterns(hook), as_patterns(b_hook))
        modes = ("train" if modes[0] == "train" else "eval", "train" if modes[1] == "train" else "eval")
        loaded = load_both(*self.sources, self.progress)
        inputs = open_shared(given, loaded[0], self.progress)
        sides = [
            Side(label, model, is_training=mode == "train", seed=seed)
            for label, model, mode, seed in zip("AB", loaded, modes, self.seeds, strict=True)
        ]
        first = first_of(inputs, loaded[0]).args
        bound = [
            bind(read, side.loaded, side.place(first), side.seed, self.progress)
            for side, read in zip(sides, hooks, strict=True)
        ]
        a, b = (describe(side.loaded, side.seed, mode) for side, mode in zip(sides, modes, strict=True))
        tolerance, reason = choose_tolerance(self.tolerance, [a.dtype, b.dtype])
        hooked_a, hooked_b = (
            replace(side, interventions=tuple(one.interventions))
            for side, one in zip(sides, bound, strict=True)
        )
        rows, kept = diff_activations(
            hooked_a,
            hooked_b,
            inputs,
            tolerance,
            layers=as_patterns(layer),
            exclude=as_patterns(exclude),
            hooked={name for one in bound for hook in one.hooks for name in hook.target.names},
            track=lambda batches: by_image(self.progress, batches, "activations", inputs.n_listed),
        )
        for warning in kept:
            self.progress.warn(warning.message)
        (a_hooks, a_notices), (b_hooks, b_notices) = (conclude(one, self.progress) for one in bound)
        warnings = (
            *(warning for model in loaded for warning in model.warnings),
            *inputs.warnings,
            *tell_of_images(inputs, self.progress),
            *kept,
            *a_notices,
            *b_notices,
        )
        return DiffRecord(
            run=self._header(a, inputs.info, warnings),
            b=b,
            mode=a.mode,
            tolerance=tolerance,
            tolerance_reason=reason,
            first_divergence=first_divergence(rows),
            totals=count_up(rows),
            images=inputs.n_images,
            layers=rows,
            hooks=a_hooks,
            b_hooks=b_hooks,
        )

    def _header(self, a: DiffSide, given: InputInfo | None, warnings: tuple[Notice, ...]) -> Run:
        """Fill the header, which tells of A."""
        return Run.of(
            "diff",
            a.model,
            given,
            device=a.device,
            dtype=a.dtype,
            seed=a.seed,
            warnings=dict.fromkeys(warnings),
            invoked=self.invoked,
        )


def _read_hooks(ours: Sequence[str], theirs: Sequence[str]) -> tuple[list[ReadHook], list[ReadHook]]:
    """Read the hooks of A and of B, which are those of A where B has none of its own."""
    read = read_hooks(ours, "diff")
    if theirs:
        return read, read_hooks(theirs, "diff")
    for spec, _ in read:
        if spec.action == "save":
            message = f"--hook '{spec}' would write the same file for A and for B"
            raise UsageError(message, f"--b-hook {shlex.quote(f'save=b.safetensors@{spec.pattern}')}")
    return read, read_hooks(ours, "diff")
