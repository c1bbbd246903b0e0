"""`check DIR`: the public function, which reads the images of one or two data sets once for the rules."""

import math
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class _Listed:
    """The images of all data sets, in one list."""

    files: FileList
    sets: list[int]  # the number of each image's data set
    labels: list[str | None]  # the name of its subfolder; None if it is directly in the given folder


def examine_images(
    folders: Sequence[str], against: Sequence[str], progress: Progress
) -> tuple[DatasetEvidence, list[Notice]]:
    """Read every image once; return the evidence for the rules, and what no rule is about."""
    sets = _sets(folders, against)
    notices: list[Notice] = []
    listed = _list(sets, progress, notices)
    facts: list[ImageFacts] = []
    broken = UnreadableImages()
    looks = progress.track(_looks(listed), "images", len(listed.files))
    with deferred() as is_interrupted:
        for number, look in enumerate(looks):
            facts.append(look)
            if look.kind:
                broken.take([UnreadableImage(number, listed.files[number].name, look.kind)])
            if is_interrupted():
                break
    is_whole = len(facts) == len(listed.files)
    good = [number for number, look in enumerate(facts) if not look.kind]
    same: dict[bytes, list[int]] = {}
    for n in good:
        same.setdefault(facts[n].pixels_sha256, []).append(n)
    copies = [numbers for numbers in same.values() if len(numbers) > 1]
    by_set = [[list(each) for _, each in groupby(group, listed.sets.__getitem__)] for group in copies]
    leaks = ([first[0], *chain(*others), *first[1:]] for first, *others in by_set if others)
    classes: list[Counter[str]] = [Counter() for _ in sets]
    for number, label in zip(listed.sets, listed.labels[: len(facts)], strict=False):
        if label is not None:
            classes[number][label] += 1
    for counts, words in zip(classes, sets, strict=True):
        counts.update(dict.fromkeys(empty_folders(words) if counts else (), 0))
    if not is_whole:
        classes = classes[:1]  # a class may be among the images that were not read
    group = partial(_group, listed)
    modes = Counter(facts[n].mode for n in good).most_common()
    sizes = sorted((facts[n].size for n in good), key=math.prod)
    aspects = [width / height for width, height in sizes]
    usual = median_low(aspects or [1.0])
    report = DatasetReport(
        folders=tuple(folders),
        against=tuple(against),
        images=len(facts),
        against_images=sum(map(bool, listed.sets[: len(facts)])),
        broken=broken.kinds(),
        identical=tuple(group(side) for one in by_set for side in one if len(side) > 1),
        leaks=tuple(map(group, leaks)),
        near=tuple(map(group, find_near_copies(facts, good, listed.sets))),
        conflicts=tuple(copy for copy in map(group, copies) if len(copy.labels) > 1),
        sizes=tuple(dict.fromkeys(sizes[:1] + sizes[-1:])),
        other_aspect=sum(max(one / usual, usual / one) > _OTHER_ASPECT for one in aspects),
        modes=dict(modes),
        mode_names={
            mode: tuple([listed.files[n].name for n in good if facts[n].mode == mode][:3])
            for mode, _ in modes[1:]
        },
    )
    evidence = DatasetEvidence(
        report=report,
        names=[listed.files[n].name for n in good],
        sets=list(zip(sets, classes, strict=False)),
        readable=len({listed.sets[n] for n in good}),
        one_colour=[listed.files[n].name for n in good if facts[n].is_one_colour],
    )
    in_first = (listed.labels[n] for n in good if not listed.sets[n])
    by_class = Counter(filter(None, in_first)).most_common()
    if is_whole and by_class and by_class[0][1] >= _IMBALANCE * by_class[-1][1]:
        (most, n_most), (least, n_least) = by_class[0], by_class[-1]
        words = f"class sizes differ: '{most}' has {counted(n_most, 'readable image')}, '{least}' {n_least}"
        notices.append(Notice("class_sizes", words))
    if names := [listed.files[n].name for n in good if facts[n].has_frames]:
        words = "with several frames (only the first is tested)"
        notices.append(Notice("frames", f"{counted(len(names), 'image')} {words}: {some(names, 3)}"))
    tell(progress, (), notices)
    if n_unread := len(listed.files) - len(facts):
        message = f"Ctrl-C: {n_unread:,} of {counted(len(listed.files), 'image')} were not tested"
        notices.append(Notice("interrupted", message))
    return evidence, notices


def _sets(folders: Sequence[str], against: Sequence[str]) -> list[Sequence[str]]:
    """Return the words of each data set: `folders`, each folder or glob of `against`, and its files as one."""
    for n, word in enumerate(against):
        if os.path.isdir(word) and os.path.realpath(word) in map(os.path.realpath, (*folders, *against[:n])):
            hint = f"modelscope check {shlex.quote(word)}   finds the copies inside it"
            raise UsageError(f"'--against {word}' names the same folder again", hint)
    single = [word for word in against if os.path.isfile(word)]
    return [folders, *([word] for word in against if not os.path.isfile(word)), *([single] if single else [])]


def _list(sets: Sequence[Sequence[str]], progress: Progress, notices: list[Notice]) -> _Listed:
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
        root = Path(word) if os.path.isdir(word) else None
        parents = (Path(file.name).parent for file in listing.files)
        names = [parent.name if root not in (None, parent) else None for parent in parents]
        is_wrapped = len({*names}) == 1 and str(names[0]).lower() in chain(*_SETS)  # test/test
        labels += [None] * len(names) if is_wrapped else names
    return _Listed(FileList(files), numbers, labels)


def empty_folders(words: Sequence[str]) -> list[str]:
    """Return the names of the folders without any image that are directly in one of these."""
    inside = [entry for word in words if os.path.isdir(word) for entry in os.scandir(word) if entry.is_dir()]
    return [
        folder.name
        for folder in inside
        if not any(is_picture(name) for *_, names in os.walk(folder) for name in names)
    ]


def _looks(listed: _Listed) -> Iterator[ImageFacts]:
    """Yield the facts of the images in order, computed by several threads."""
    each, look = iter(listed.files), partial(look_at, is_compared=any(listed.sets))
    with strict_pillow(), ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
        while window := list(islice(each, _WINDOW)):
            yield from pool.map(look, window)


def _group(listed: _Listed, numbers: Sequence[int]) -> CopyGroup:
    labels = dict.fromkeys(label for n in numbers if (label := listed.labels[n]) is not None)
    return CopyGroup(tuple(listed.files[n].name for n in numbers), tuple(labels))


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
    rules = settings.rules(DATASET_RULES)
    invoked = invocation()
    before = known_findings(settings.baseline, update_baseline)
    accepted = before.findings
    evidence, notices = examine_images(folders, others, progress)
    is_cut_short = any(one.code == "interrupted" for one in notices)
    findings, infos = judge(rules, settings.thresholds, Evidence(is_real=True, dataset=evidence))
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
    unjudged = unjudged_error(record)
    if unjudged and not is_cut_short:
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
