"""`check DIR`: the public function."""

import os
import shlex
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path

from modelscope_cli.analysis.dataset.examine import examine_images
from modelscope_cli.analysis.health.check import known_findings, several, write_baseline
from modelscope_cli.errors import UsageError
from modelscope_cli.records.check import NOT_JUDGED, PASSED, CheckRecord
from modelscope_cli.records.check_evidence import Evidence
from modelscope_cli.records.keywords import spelled_out
from modelscope_cli.records.naming import counted, some
from modelscope_cli.records.progress import SILENT, Progress
from modelscope_cli.records.run import InputInfo, ModelInfo, Notice, Run, WeightsInfo, invocation
from modelscope_cli.rules.baseline import compare, updated
from modelscope_cli.rules.registry import DATASET_RULES
from modelscope_cli.rules.rule import judge, unjudged_error, verdict_of
from modelscope_cli.rules.settings import read_settings

Folders = str | PathLike[str] | Sequence[str | PathLike[str]]
_ALIKE = "MS803"
_SETS = ("train", "training"), ("val", "valid", "validation", "test", "testing")
_MOST_FILES = 1000  # named in the record


@spelled_out
def check_images(
    images: Folders,
    *,
    against: Folders = (),
    select: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    set: Mapping[str, float | str] | Sequence[str] = (),
    fail_on: str = "error",
    baseline: str | PathLike[str] | None = None,
    update_baseline: bool = False,
    progress: Progress | None = None,
) -> CheckRecord:
    """Check a data set against rules, without a model: duplicates, leaks, unreadable, odd, dark, flat or blurred
    images.

    Every image is read and decoded once, at a short side of 128 pixels; about 130 bytes are kept per image.

    Args:
        images: folders, globs, lists (`@files.txt`) or shards.
        against: a second data set, which must not share images with the first.
        select, ignore, set, fail_on, baseline, update_baseline: as of `check`, with the rules `MS8`.

    Raises:
        UsageError: a rule, a threshold or a glob that is not valid (exit 2 on the command line).
        CannotRunError: a folder holds no image, the baseline cannot be read or written, or nothing was judged
            (exit 4).
    """
    folders, others = _words(images), _words(against)
    if not folders:
        raise UsageError("there is no folder of images to check", "modelscope check IMAGES")
    _refuse_sets(folders, others)
    progress = progress or SILENT
    settings = read_settings(
        None,
        select=several(select),
        ignore=several(ignore),
        set_=several(set),
        fail_on=fail_on,
        baseline=Path(baseline) if baseline is not None else None,
    )
    rules = settings.rules(DATASET_RULES)
    invoked = invocation()
    before = known_findings(settings.baseline, update_baseline)
    accepted = before.findings
    least = settings.thresholds.get(
        _ALIKE, next(rule.threshold for rule in DATASET_RULES if rule.code == _ALIKE)
    )
    evidence, n_unread = examine_images(folders, others, float(least or 0), progress)
    findings, infos = judge(rules, settings.thresholds, Evidence(is_real=True, dataset=evidence))
    if settings.baseline is not None and update_baseline:
        new = updated(accepted, findings, infos)
        accepted = write_baseline(settings.baseline, new, before.model, progress)
    findings, gone = compare(findings, accepted, infos)
    report = evidence.report
    run = Run.of(
        "check",
        ModelInfo("images", ", ".join(folders), "data set", WeightsInfo("none", "none", "none")),
        InputInfo(
            "image",
            (),
            tuple(evidence.names[:_MOST_FILES]),
            n_files=report.images,
            broken=report.broken,
        ),
        device="none",
        dtype="none",
        seed=0,
        warnings=_interrupted(n_unread, report.images),
        invoked=invoked,
    )
    verdict = verdict_of(findings, infos, settings.fail_on, run.input)
    verdict = NOT_JUDGED if n_unread and verdict == PASSED else verdict
    record = CheckRecord(
        run=run,
        findings=findings,
        rules=infos,
        passed=verdict == PASSED,
        fail_on=settings.fail_on,
        mode="none",
        images=report.images,
        baseline=str(settings.baseline) if settings.baseline else None,
        gone=gone,
        dataset=report,
        verdict=verdict,
    )
    unjudged = unjudged_error(record)
    if unjudged and not n_unread:
        raise unjudged
    return record


def _interrupted(n_unread: int, n_read: int) -> list[Notice]:
    """Return a warning if Ctrl-C left images unread."""
    words = f"Ctrl-C: {n_unread:,} of {counted(n_unread + n_read, 'image')} were not tested"
    return [Notice("interrupted", words)] if n_unread else []


def _refuse_sets(folders: Sequence[str], others: Sequence[str]) -> None:
    """Refuse a folder of sets, such as `train` and `val`: they are not classes."""
    if len(folders) != 1 or others or not os.path.isdir(folders[0]):
        return
    names = {name.lower(): os.path.join(folders[0], name) for name in sorted(os.listdir(folders[0]))}
    train, held_out = ([path for name, path in names.items() if name in sets] for sets in _SETS)
    if train and held_out:
        message = (
            f"'{folders[0]}' contains data sets, not classes: {some(map(os.path.basename, train + held_out))}"
        )
        words = shlex.join(["modelscope", "check", train[0], "--against", held_out[0]])
        raise UsageError(message, words)


def _words(paths: Folders) -> tuple[str, ...]:
    return (fspath(paths),) if isinstance(paths, str | PathLike) else tuple(fspath(path) for path in paths)
