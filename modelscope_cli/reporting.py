"""`make_report`: one page of a saved result, or of all that the other functions say about a model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Unpack

import modelscope_cli as ms
from modelscope_cli.checkpoints.file_type import is_checkpoint_name
from modelscope_cli.errors import ModelscopeError, UsageError
from modelscope_cli.inputs.python_inputs import PythonInputs, to_inputs
from modelscope_cli.inputs.truth import LabelsError, named_labels
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.models.request import Model
from modelscope_cli.output_files import check_file, free_folder
from modelscope_cli.records.display import Shown
from modelscope_cli.records.keywords import Keywords, ModelKeywords, spelled_out
from modelscope_cli.records.listings import Page, ReportRecord
from modelscope_cli.records.progress import SILENT, Progress, Told
from modelscope_cli.records.reading import PAGE, in_folder, is_page, n_results, read, result_file
from modelscope_cli.records.run import invocation, versions
from modelscope_cli.report.page.results import page_of, page_of_parts, save_page
from modelscope_cli.report.registry import view_of

_PARTS = ("predict", "explain", "check", "summary", "stats", "featuremaps", "grads")
_OF_CLASSES = ("predict", "explain", "check", "grads")
_OF_IMAGES = ("predict", "explain", "featuremaps")


@spelled_out
def make_report(
    result: "str | PathLike[str] | Model",
    inputs: Any = None,
    *,
    labels: str | PathLike[str] | Sequence[str] | None = None,
    html: str | PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
    **keywords: Unpack[Keywords],
) -> ReportRecord:
    """Make one self-contained page from a saved result, or about a model and an image.

    The page of a model shows the results of predict, explain, check, summary, stats, featuremaps and grads with
    their default options, on noise if no image is given. If a part cannot be computed, the page says why.

    Args:
        result: the folder of a command, its `report.json`, what `-o result.json` wrote, or another page; or a
            model: a name or file as on the command line, an `nn.Module`, or the result of `load`.
        inputs: for a model: a path, a PIL image or a tensor; None for seeded noise of its input size.
        labels: for a model: names of the classes instead of those of the weights, as in `predict`.
        html: where the page is written; None for `report.html` in the folder of the result, or in a new folder of
            `runs`.
        force: also write a page above 25 MB.

    Returns:
        A row for each part of the page.

    Raises:
        UsageError: the page is too large, or is there already and was not made by us (exit 2 on the command line).
        CannotRunError: there is no result, no part can be computed, or the page cannot be written (exit 4).
    """
    told = Told(progress or SILENT)
    target = None if html is None else Path(html)
    given = to_inputs(inputs, keywords)
    failed: dict[str, str] = {}
    if is_saved(result):
        if not given.is_noise:
            raise UsageError(f"'{result}' is a saved result: its images are in it", "leave out the images")
        if labels is not None:
            raise UsageError(f"'{result}' is a saved result: its labels are in it", "leave out --labels")
        file = result_file(Path(fspath(result)))  # type: ignore[arg-type]
        target = target or file.with_suffix(".html")
        if (n := n_results(file)) > 1:
            message = f"'{file}' is a page of {n} results, which only their model can make again"
            raise UsageError(message, "modelscope report ...   with the model and its image")
        check_file(target, invocation().is_forced or (is_page(target) and n_results(target) < 2))
        parts = [read(file)]
        # The folder is the only source of its images, whatever the file says.
        page = page_of(parts[0], file.parent)
    else:
        if target is not None:
            check_file(target, invocation().is_forced or is_page(target))
        options: Mapping[str, Any] = keywords
        of_model = {name: options[name] for name in options if name in ModelKeywords.__annotations__}
        loaded = ms.load(result, progress=told, **of_model)
        loaded = replace(loaded, categories=named_labels(labels)[0] or loaded.categories)
        parts = list(_compute(loaded, given, told, failed, labels))
        page = page_of_parts(parts, failed)
        target = target or free_folder("report", loaded.info.short_name) / PAGE
    note = save_page(page, target, is_forced=force)
    if note:
        told.note(note)
    told.note(f"wrote {target}")
    rows = [(one.command, view_of(one).headline(one)) for one in parts]
    rows += [(command, f"not run: {why}") for command, why in failed.items()]
    run = getattr(parts[0], "run", None)
    name = run.model.short_name if run else getattr(parts[0], "source", "")
    size = target.stat().st_size
    pages = tuple(Page(str(target), size, command, name, answer) for command, answer in rows)
    return ReportRecord(versions(), invocation().argv, pages)


def is_saved(result: object) -> bool:
    """Tell whether this is the path of a saved result, or a folder without weights, not a model."""
    if not isinstance(result, str | PathLike):
        return False
    path = Path(result)
    if not path.is_dir():
        return path.suffix.lower() in (".json", ".html", ".htm")
    return in_folder(path) is not None or not any(is_checkpoint_name(file.name) for file in path.iterdir())


def _compute(
    loaded: LoadedModel, given: PythonInputs, progress: Progress, failed: dict[str, str], labels: Any
) -> Iterator[Shown]:
    """Yield the record of each part, or add the reason to `failed`; raise ModelscopeError if all of them fail."""
    first = None
    missing = dict.fromkeys(_OF_IMAGES, "it needs an image") if given.is_noise else {}
    missing |= next(({"check": one.message} for one in loaded.warnings if one.code == "random_weights"), {})
    for name in progress.track(_PARTS, "parts of the page", len(_PARTS)):
        if name in missing:
            failed[name] = missing[name]
            continue
        more: dict[str, Any] = {"labels": labels} if name in _OF_CLASSES else {}
        try:
            yield getattr(ms, name)(loaded, given, progress=progress, **more)
        except LabelsError:
            raise
        except ModelscopeError as error:
            failed[name] = str(error)
            first = first or error
    if len(failed) == len(_PARTS) and first is not None:
        raise first
