"""`check DIR`: the public function, which reads the images of one or two data sets once for the rules."""

import math
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, groupby, islice
from os import PathLike, fspath
from pathlib import Path
from statistics import median_low

from modelscope_cli.analysis.dataset.look import ImageFacts, look_at
from modelscope_cli.analysis.dataset.near_copies import find_near_copies
from modelscope_cli.analysis.health.check import known_findings, write_baseline
from modelscope_cli.errors import UsageError
from modelscope_cli.inputs.files import FileList, ListedImage, find_images, is_picture
from modelscope_cli.inputs.image import UnreadableImage, UnreadableImages, strict_pillow
from modelscope_cli.interrupts import deferred
from modelscope_cli.records.check import CheckRecord, CopyGroup, DatasetEvidence, DatasetReport
from modelscope_cli.records.check_evidence import Evidence
from modelscope_cli.records.findings import NOT_JUDGED, PASSED
from modelscope_cli.records.keywords import as_tuple, spelled_out
from modelscope_cli.records.naming import counted, some
from modelscope_cli.records.progress import SILENT, Progress, tell
from modelscope_cli.records.run import InputInfo, ModelInfo, Notice, Run, WeightsInfo, invocation
from modelscope_cli.rules.baseline import compare, updated
from modelscope_cli.rules.registry import DATASET_RULES
from modelscope_cli.rules.rule import judge, unjudged_error, verdict_of
from modelscope_cli.rules.settings import read_settings

_MOST_THREADS = 4  # Pillow decodes without the GIL; more threads wait for the disk and for each other
_WINDOW = 256  # images in flight
_OTHER_ASPECT = 1.1  # ratio of two aspect ratios above which they are different
_IMBALANCE = 10  # times as many images of the largest class as of the smallest, from which it is told


def examine_images(
    folders: Sequence[str], against: Sequence[str], progress: Progress
) -> tuple[DatasetEvidence, list[Notice]]:
    """Read every image once; return the evidence for the rules, and what no rule is about."""
    sets = _sets(folders, against)
    notices: list[Notice] = []
    files, set_of, labels = _list(sets, progress, notices)
    facts: list[ImageFacts] = []
    broken = UnreadableImages()
    looks = progress.track(_looks(files, any(set_of)), "images", len(files))
    with deferred() as is_interrupted:
        for look in looks:
            facts.append(look)
            if is_interrupted():
                break
    broken.take(UnreadableImage(n, files[n].name, look.kind) for n, look in enumerate(facts) if look.kind)
    is_whole = len(facts) == len(files)
    good = [number for number, look in enumerate(facts) if not look.kind]
    same: dict[bytes, list[int]] = {}
    for n in good:
        same.setdefault(facts[n].pixels_sha256, []).append(n)
    copies = [numbers for numbers in same.values() if len(numbers) > 1]
    by_set = [[list(each) for _, each in groupby(group, set_of.__getitem__)] for group in copies]
    leaks = ([first[0], *chain(*others), *first[1:]] for first, *others in by_set if others)
    classes: list[Counter[str]] = [Counter() for _ in sets]
    for number, label in zip(set_of, labels[: len(facts)], strict=False):
        if label is not None:
            classes[number][label] += 1
    for counts, words in zip(classes, sets, strict=True):
        inside = (one for word in words if counts and os.path.isdir(word) for one in os.scandir(word))
        own = (one for one in inside if one.is_dir() and one.name not in counts)
        empty = [
            one.name for one in own if not any(is_picture(x) for *_, names in os.walk(one) for x in names)
        ]
        counts.update(dict.fromkeys(empty, 0))
    if not is_whole:
        classes = classes[:1]  # a class may be among the images that were not read

    def group(numbers: Sequence[int]) -> CopyGroup:
        own = dict.fromkeys(label for n in numbers if (label := labels[n]) is not None)
        return CopyGroup(tuple(files[n].name for n in numbers), tuple(own))

    modes = Counter(facts[n].mode for n in good).most_common()
    sizes = sorted((facts[n].size for n in good), key=math.prod)
    aspects = [width / height for width, height in sizes]
    usual = median_low(aspects or [1.0])
    report = DatasetReport(
        folders=tuple(folders),
        against=tuple(against),
        images=len(facts),
        against_images=sum(map(bool, set_of[: len(facts)])),
        broken=broken.kinds(),
        identical=tuple(group(side) for one in by_set for side in one if len(side) > 1),
        leaks=tuple(map(group, leaks)),
        near=tuple(map(group, find_near_copies(facts, good, set_of))),
        conflicts=tuple(copy for copy in map(group, copies) if len(copy.labels) > 1),
        sizes=tuple(dict.fromkeys(sizes[:1] + sizes[-1:])),
        other_aspect=sum(max(one / usual, usual / one) > _OTHER_ASPECT for one in aspects),
        modes=dict(modes),
        mode_names={x: tuple([files[n].name for n in good if facts[n].mode == x][:3]) for x, _ in modes[1:]},
    )
    evidence = DatasetEvidence(
        report=report,
        names=[files[n].name for n in good],
        sets=list(zip(sets, classes, strict=False)),
        readable=len({set_of[n] for n in good}),
        one_colour=[files[n].name for n in good if facts[n].is_one_colour],
    )
    by_class = Counter(label for n in good if not set_of[n] and (label := labels[n])).most_common()
    if is_whole and by_class and by_class[0][1] >= _IMBALANCE * by_class[-1][1]:
        (most, n_most), (least, n_least) = by_class[0], by_class[-1]
        words = f"class sizes differ: '{most}' has {counted(n_most, 'readable image')}, '{least}' {n_least}"
        notices.append(Notice("class_sizes", words))
    if names := [files[n].name for n in good if facts[n].has_frames]:
        words = f"{counted(len(names), 'image')} with several frames (only the first is tested)"
        notices.append(Notice("frames", f"{words}: {some(names, 3)}"))
    tell(progress, (), notices)
    if n_unread := len(files) - len(facts):
        message = f"Ctrl-C: {n_unread:,} of {counted(len(files), 'image')} were not tested"
        notices.append(Notice("interrupted", message))
    return evidence, notices


def _sets(folders: Sequence[str], against: Sequence[str]) -> list[Sequence[str]]:
    """Return what was typed for each data set: `folders`, each folder or glob of `against`, its files as one."""
    for n, word in enumerate(against):
        if os.path.isdir(word) and os.path.realpath(word) in map(os.path.realpath, (*folders, *against[:n])):
            hint = f"modelscope check {shlex.quote(word)}   finds the copies inside it"
            raise UsageError(f"'--against {word}' names the same folder again", hint)
    single = [word for word in against if os.path.isfile(word)]
    return [folders, *([word] for word in against if not os.path.isfile(word)), *([single] if single else [])]


def _list(
    sets: Sequence[Sequence[str]], progress: Progress, notices: list[Notice]
) -> tuple[FileList, list[int], list[str | None]]:
    """Return the images of all data sets in one list, the number of each one's set, and its class if it has one."""
    files: list[ListedImage] = []
    numbers: list[int] = []
    labels: list[str | None] = []
    for number, word in ((number, word) for number, words in enumerate(sets) for word in words):
        listing = find_images([word])
        tell(progress, listing.notes)
        files += listing.files
        if n_others := len(listing.others):
            message = f"{counted(n_others, 'image')} of a kind that is not read: {some(listing.others, 3)}"
            notices.append(Notice("other_kinds", message))
        numbers += [number] * len(listing.files)
        root, paths = Path(word) if os.path.isdir(word) else None, (file.name for file in listing.files)
        names = [None if root in (None, Path(x).parent) else listing.files.class_of(x) for x in paths]
        is_wrapped = len({*names}) == 1 and str(names[0]).lower() in chain(*_SETS)  # test/test
        labels += [None] * len(names) if is_wrapped else names
    return FileList(files), numbers, labels


def _looks(files: FileList, is_compared: bool) -> Iterator[ImageFacts]:
    """Yield the facts of the images in order, computed by several threads."""
    each, look = iter(files), partial(look_at, is_compared=is_compared)
    with strict_pillow(), ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
        while window := list(islice(each, _WINDOW)):
            yield from pool.map(look, window)


Folders = str | PathLike[str] | Sequence[str | PathLike[str]]
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
    """Check a data set against rules, without a model: unreadable images, exact copies, leaks.

    Every image is decoded once; a hash of its pixels is kept.

    Args:
        images: folders, globs or lists (`@files.txt`); `train` and `val` folders, given or inside one, are
            compared.
        against: a second data set, which must not share images with the first.
        select, ignore, set, fail_on, baseline, update_baseline: as in `check`, for the rules `MS8`.

    Raises:
        UsageError: a rule, a threshold or a glob that is not valid (exit 2 on the command line).
        CannotRunError: a folder holds no image, the baseline cannot be read or written, or nothing was judged
            (exit 4).
    """
    folders, others = _words(images), _words(against)
    if not folders:
        raise UsageError("there is no folder of images to check", "modelscope check IMAGES")
    progress = progress or SILENT
    train, held_out = ([], []) if others else _sets_in(folders)
    if train:
        where = f"'{folders[0]}' contains data sets: " if len(folders) == 1 else ""
        progress.note(f"{where}{some(train)}, compared with {some(held_out)}")
        folders, others = tuple(train), tuple(held_out)
    kept = Path(baseline) if baseline is not None else None
    settings = read_settings(
        None, select=as_tuple(select), ignore=as_tuple(ignore), set_=set, fail_on=fail_on, baseline=kept
    )
    invoked = invocation()
    before = known_findings(settings.baseline, update_baseline)
    accepted = before.findings
    evidence, notices = examine_images(folders, others, progress)
    is_cut_short = any(one.code == "interrupted" for one in notices)
    findings, infos = judge(
        settings.rules(DATASET_RULES), settings.thresholds, Evidence(is_real=True, dataset=evidence)
    )
    if settings.baseline is not None and update_baseline:
        new = updated(accepted, findings, infos)
        accepted = write_baseline(settings.baseline, new, before.model, progress)
    findings, gone = compare(findings, accepted, infos)
    report, names = evidence.report, tuple(evidence.names[:_MOST_FILES])
    run = Run.of(
        "check",
        ModelInfo("images", ", ".join(folders), "data set", WeightsInfo("none", "none", "none")),
        InputInfo("image", (), names, n_files=report.images, broken=report.broken),
        device="none",
        dtype="none",
        seed=0,
        warnings=notices,
        invoked=invoked,
    )
    verdict = verdict_of(findings, infos, settings.fail_on, run.input)
    verdict = NOT_JUDGED if is_cut_short and verdict == PASSED else verdict
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
    if not is_cut_short and (unjudged := unjudged_error(record)):
        raise unjudged
    return record


def _sets_in(folders: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the training sets and the others, as their names tell, of these folders or inside the only one."""
    inside = sorted(os.listdir(folders[0])) if os.path.isdir(folders[0]) else []
    paths = [os.path.join(folders[0], name) for name in inside] if len(folders) == 1 else [*folders]
    train, held_out = ([x for x in paths if Path(x).resolve().name.lower() in names] for names in _SETS)
    is_whole = len(folders) == 1 or sorted(train + held_out) == sorted(folders)
    return (train, held_out) if train and held_out and is_whole else ([], [])


def _words(paths: Folders) -> tuple[str, ...]:
    return (fspath(paths),) if isinstance(paths, str | PathLike) else tuple(fspath(path) for path in paths)
