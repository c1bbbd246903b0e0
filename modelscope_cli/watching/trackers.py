"""Write a watched run to an experiment tracker: the numbers of the record, its verdict and its page.

Where that is follows from the settings of each library. Only wandb would send by default, so it stays offline
unless WANDB_MODE says otherwise.
"""

import io
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from modelscope_cli.errors import CannotRunError, UsageError, one_of
from modelscope_cli.output_files import write_text
from modelscope_cli.plain_text import in_one_line
from modelscope_cli.records.display import renderer
from modelscope_cli.records.watch import Magnitudes, WatchRecord, labelling

_PAGE = "modelscope.html"
_MOST_METRICS = 1000  # that MLflow takes at once
_UNTIL = 16.0  # the upper edge of the last bin, as a multiple of the edge below which values were counted


@dataclass(frozen=True, slots=True)
class Tracked:
    """A run as trackers take it."""

    name: str
    verdict: str
    page: str
    numbers: dict[int, dict[str, float]]  # by step, those that it has
    # Of |x|, counts and their upper edges
    histograms: dict[int, dict[str, tuple[tuple[int, ...], tuple[float, ...]]]]


def tracked(record: WatchRecord) -> Tracked:
    """Return the verdict and all series of a record by step."""
    numbers: dict[int, dict[str, float]] = {}
    histograms: dict[int, dict[str, Any]] = {}
    for name, series in _series(record):
        for kind in fields(series):
            values = getattr(series, kind.name)
            if isinstance(values, Magnitudes):
                edges = (*values.edges, values.edges[-1] * _UNTIL)
                for step, counts in zip(series.step, values.counts, strict=True):
                    histograms.setdefault(step, {})[f"{name}/magnitudes"] = counts, edges
            elif isinstance(values, tuple) and kind.name not in ("step", "dead_channels"):
                for step, value in zip(series.step, values, strict=bool(values)):
                    if value is not None:
                        label = name if kind.name == "value" else f"{name}/{kind.name}"
                        numbers.setdefault(step, {})[label] = float(value)
    judged = renderer().sheet_of(record)
    verdict = "\n".join(f"{label}: {text}" for label, text in judged.facts)
    name = record.run.model.short_name
    return Tracked(name, verdict, renderer().to_page(record, None), numbers, histograms)


def _series(record: WatchRecord) -> Iterator[tuple[str, Any]]:
    name_of = labelling(record.layers, record.parameters)
    for what, scalars in (("loss", record.loss), ("lr", record.lr), ("step_ms", record.step_ms)):
        for one in scalars:
            yield f"{what}/{one.optimizer}" + (f"/{one.group}" if what == "lr" else ""), one
    yield from ((f"layers/{name_of(layer)}", layer.series) for layer in record.layers)
    yield from ((f"parameters/{name_of(one)}", one.series) for one in record.parameters)
    for criterion in record.facts.criteria:
        yield f"criteria/{criterion.name} {criterion.place or ''}".rstrip(), criterion.series


def _tensorboard(module: Any, where: str, run: Tracked) -> str:
    folder = where or "runs/tensorboard"
    with module.SummaryWriter(folder) as writer:
        for step, numbers in run.numbers.items():
            for name, value in numbers.items():
                writer.add_scalar(name, value, step, new_style=True, double_precision=True)
        for step, histograms in run.histograms.items():
            for name, (counts, edges) in histograms.items():
                low, high = edges[0], edges[-1]
                writer.add_histogram_raw(name, low, high, sum(counts), 0.0, 0.0, edges, counts, step)
        writer.add_text("verdict", run.verdict)
    write_text(Path(folder, _PAGE), run.page)
    return f"{folder}: tensorboard --logdir {folder}"


def _wandb(module: Any, where: str, run: Tracked) -> str:
    is_own = module.run is None
    mode = os.environ.get("WANDB_MODE", "offline")
    # The script's own run where it is still open. It has steps of its own, which only grow.
    there = module.run or module.init(
        project=where or "modelscope", name=run.name, mode=mode, settings=module.Settings(silent=True)
    )
    there.define_metric("modelscope/*", step_metric="modelscope/step")
    for step, values in _by_step(run, module.Histogram):
        there.log({"modelscope/step": step, **values})
    there.log({"modelscope/page": module.Html(run.page, inject=False)})
    there.summary["modelscope/verdict"] = run.verdict
    folder = Path(there.dir).parent
    if is_own:
        there.finish()
    return str(folder) + (f": wandb sync {folder}" if mode == "offline" and is_own else "")


def _trackio(module: Any, where: str, run: Tracked) -> str:
    project = where or "modelscope"
    module.init(project=project, name=run.name, auto_log_gpu=False, auto_log_cpu=False)
    for step, values in _by_step(run, module.Histogram):
        module.log(values, step=step)
    module.log({"modelscope/verdict": module.Markdown(run.verdict)}, step=max(run.numbers, default=0))
    with tempfile.TemporaryDirectory() as folder:
        write_text(Path(folder, _PAGE), run.page)
        module.log_artifact(Path(folder, _PAGE), name="modelscope-page", type="page")
    module.finish()
    return f"project {project}: trackio show --project {project}"


def _mlflow(module: Any, where: str, run: Tracked) -> str:
    is_own = module.active_run() is None
    if is_own:
        module.set_experiment(where or "modelscope")
    with module.start_run(run_name=run.name) if is_own else nullcontext(module.active_run()):
        for step, values in _by_step(run):
            named = [(re.sub(r"[^\w\-. :/]", "_", name), value) for name, value in values.items()]
            for n in range(0, len(named), _MOST_METRICS):
                module.log_metrics(dict(named[n : n + _MOST_METRICS]), step=step)
        module.set_tag("modelscope.verdict", run.verdict)
        module.log_text(run.page, _PAGE)
    return str(module.get_tracking_uri())


def _by_step(
    run: Tracked, histogram: Callable[..., Any] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each step with its numbers and histograms, named so that the numbers of the script stay apart."""
    for step in sorted({*run.numbers, *run.histograms}):
        values: dict[str, Any] = dict(run.numbers.get(step, {}))
        if histogram is not None:
            for name, (counts, edges) in run.histograms.get(step, {}).items():
                values[name] = histogram(np_histogram=(counts, (0.0, *edges)))
        yield step, {f"modelscope/{name}": value for name, value in values.items()}


# What `pip install` takes, the module that writes, and what writes a run by it.
_TRACKERS: dict[str, tuple[str, str, Callable[[Any, str, Tracked], str]]] = {
    "tensorboard": ("tensorboard", "torch.utils.tensorboard", _tensorboard),
    "wandb": ("wandb", "wandb", _wandb),
    "trackio": ("trackio", "trackio", _trackio),
    "mlflow": ("mlflow", "mlflow", _mlflow),
}


def find_tracker(text: str) -> Callable[[WatchRecord], str]:
    """Return a function that writes a record to a tracker, and returns where it is.

    The library is imported when that is called: some replace `sys.stdout.write`, which the script should not see.

    Args:
        text: the tracker, and after a colon its folder (TensorBoard), project or experiment: `wandb:digits`.

    Raises:
        UsageError: it is unknown, or its library is not installed.
    """
    name, colon, where = text.partition(":")
    if name not in _TRACKERS:
        raise UsageError(
            f"'{text}' is not a tracker", one_of(text, [one + colon + where for one in _TRACKERS])
        )
    package, module, write = _TRACKERS[name]
    if find_spec(package) is None:
        raise UsageError(
            f"'--log-to {text}' needs {package}, which is not installed", f"pip install {package}"
        )

    def write_record(record: WatchRecord) -> str:
        try:
            with redirect_stdout(io.StringIO()):  # stdout has the result, and is not for their greetings
                return write(import_module(module), where, tracked(record))
        except Exception as error:
            message = f"{name}: {type(error).__name__}: {in_one_line(error, 300)}"
            raise CannotRunError(message, f"modelscope watch --report DIR --log-to {text}") from error

    return write_record
