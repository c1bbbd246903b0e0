"""`check DIR`: the public function, which reads the images of one or two data sets once for the rules."""

import hashlib
import os
import shlex
import time
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelscope_cli.analysis.dataset.look import ImageFacts, ImageTable, look_at
from modelscope_cli.analysis.health.check import known_findings, several, write_baseline
from modelscope_cli.errors import UsageError
from modelscope_cli.inputs.files import find_images
from modelscope_cli.inputs.image import (
    UnreadableImage,
    UnreadableImageError,
    UnreadableImages,
    decode,
    strict_pillow,
)
from modelscope_cli.inputs.listing import FileList, ListedImage
from modelscope_cli.interrupts import deferred
from modelscope_cli.records.check import (
    ALIKE,
    BYTES,
    NOT_JUDGED,
    PASSED,
    PIXELS,
    CheckRecord,
    CopyGroup,
    DatasetEvidence,
    DatasetReport,
    spread_of,
)
from modelscope_cli.records.check_evidence import Evidence
from modelscope_cli.records.keywords import spelled_out
from modelscope_cli.records.naming import counted, some
from modelscope_cli.records.progress import SILENT, Progress, tell
from modelscope_cli.records.run import InputInfo, ModelInfo, Notice, Run, WeightsInfo, invocation
from modelscope_cli.rules.baseline import compare, updated
from modelscope_cli.rules.registry import DATASET_RULES
from modelscope_cli.rules.rule import judge, unjudged_error, verdict_of
from modelscope_cli.rules.settings import read_settings

Numbers = NDArray[np.int64]
_MOST_APART = 28  # differing coarse bits of 128, up to which the fine bits are compared
_FEWEST_EDGES = 8  # fine bits set in either image, below which images are not compared
_POPCOUNT = np.array([bin(n).count("1") for n in range(1 << 16)], dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class ImagePair:
    """Two similar images, the earlier in the list first."""

    first: int
    second: int
    alike: float  # the share of edges they have in common
    how: str = ALIKE  # `BYTES`, `PIXELS` or `ALIKE`


def equal_rows(rows: NDArray[np.uint8], numbers: Numbers) -> list[list[int]]:
    """Return groups of two or more numbers with equal rows, sorted."""
    if not len(numbers):
        return []
    keys = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}")[:, 0]
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], keys[order][1:] != keys[order][:-1]]))
    groups = (numbers[group] for group in np.split(order, starts[1:]))
    return sorted(sorted(group.tolist()) for group in groups if len(group) > 1)


def find_alike(table: ImageTable, numbers: Numbers, least: float) -> Iterator[ImagePair]:
    """Yield each pair of similar images once.

    The 128 coarse bits of every image are split into bands of 16 bits, straight and interleaved. Sorting by each
    band brings images with an equal band together, without a matrix of all pairs. Pairs with at most 28 differing
    coarse bits are compared by their 512 fine bits: bits set in both over bits set in either (Jaccard 1912), which
    plain areas do not affect.

    Args:
        numbers: the images to compare; of several with equal hashes, the first is paired with each of the others.
        least: smallest share of common edges of a similar pair.
    """
    coarse, fine = table.rows("coarse")[numbers], table.rows("fine")[numbers]
    hashes = np.concatenate([coarse, fine], 1)
    if len(numbers) < 2:
        return
    for group in equal_rows(hashes, np.arange(len(numbers))):
        for b in group[1:]:
            if _POPCOUNT[fine[b].view(np.uint16)].sum() >= _FEWEST_EDGES:
                yield ImagePair(int(numbers[group[0]]), int(numbers[b]), 1.0)
    distinct = _firsts(hashes)
    coarse, fine, numbers = coarse[distinct], fine[distinct].view(np.uint16), numbers[distinct]
    yielded: set[tuple[int, int]] = set()
    for band in _bands(coarse):
        for left, right in _neighbours(band):
            near = _POPCOUNT[(coarse[left] ^ coarse[right]).view(np.uint16)].sum(1) <= _MOST_APART
            a, b = left[near], right[near]
            both, either = (_POPCOUNT[bits].sum(1) for bits in (fine[a] & fine[b], fine[a] | fine[b]))
            alike = np.where(either >= _FEWEST_EDGES, both / np.maximum(either, 1), 0.0)
            for n in np.flatnonzero(alike >= least):
                first, second = sorted((int(numbers[a[n]]), int(numbers[b[n]])))
                if (first, second) not in yielded:
                    yielded.add((first, second))
                    yield ImagePair(first, second, float(alike[n]))


def _firsts(rows: NDArray[np.uint8]) -> Numbers:
    """Return the index of the first of each group of equal rows."""
    keys = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}")[:, 0]
    return np.sort(np.unique(keys, return_index=True)[1])


def _bands(coarse: NDArray[np.uint8]) -> Iterator[NDArray[np.uint16]]:
    for bits in (coarse, _interleaved(coarse)):
        bands = np.ascontiguousarray(bits).view(np.uint16)
        yield from bands.T


def _interleaved(coarse: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Reorder the bits so that each band has one of every row of the grid."""
    bits = np.unpackbits(coarse, axis=1)
    return np.packbits(bits.reshape(len(bits), -1, 8).transpose(0, 2, 1).reshape(len(bits), -1), axis=1)


def _neighbours(band: NDArray[np.uint16]) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield the pairs with equal bands, by their distance in the sorted order."""
    order = np.argsort(band, kind="stable").astype(np.int64)
    ordered = band[order]
    places = np.arange(len(order) - 1)
    step = 1
    while len(places):
        places = places[places + step < len(order)]
        places = places[ordered[places] == ordered[places + step]]
        if len(places):
            yield order[places], order[places + step]
        step += 1


def groups_of(pairs: Sequence[ImagePair]) -> list[list[ImagePair]]:
    """Return connected groups of pairs, in the order of their first image."""
    parent: dict[int, int] = {}

    def root(n: int) -> int:
        while parent.setdefault(n, n) != n:
            parent[n] = n = parent[parent[n]]
        return n

    for pair in pairs:
        first, second = sorted((root(pair.first), root(pair.second)))
        parent[second] = first
    groups: dict[int, list[ImagePair]] = {}
    for pair in pairs:
        groups.setdefault(root(pair.first), []).append(pair)
    return [groups[first] for first in sorted(groups)]


_MOST_THREADS = 4  # Pillow decodes without the GIL; more threads wait for the disk and for each other
_WINDOW = 256  # images in flight
_SAME_PIXELS = 0.9  # similarity from which two images of one size are compared pixel by pixel
_PLAIN = 0.02  # contrast below which images are not compared


@dataclass(frozen=True, slots=True)
class _Listed:
    """The images of both sides, in one list."""

    files: FileList
    n_first: int  # number of images of the first side
    # For each argument, its folder (None for lists and globs) and the end of its range of images
    roots: tuple[tuple[Path | None, int], ...]

    def label(self, number: int) -> str | None:
        """Return the name of the image's subfolder; None if it is directly in the given folder."""
        root = next(root for root, end in self.roots if number < end)
        parent = Path(self.files[number].name).parent
        return parent.name if root is not None and parent != root else None


def examine_images(
    folders: Sequence[str], against: Sequence[str], least_alike: float, progress: Progress
) -> tuple[DatasetEvidence, int]:
    """Read every image once; return the evidence for the rules, and how many images Ctrl-C left unread.

    Args:
        least_alike: smallest share of common edges of a similar pair.
    """
    listed = _list(folders, against, progress)
    table, broken = ImageTable(), UnreadableImages()
    started = time.perf_counter()
    looks = progress.track(_looks(listed.files), "images", len(listed.files))
    with deferred() as is_interrupted:
        for number, look in enumerate(looks):
            table.add(look)
            if look.kind:
                broken.take(number, [UnreadableImage(number, listed.files[number].name, look.kind)])
            if is_interrupted():
                break
    is_whole = len(table) == len(listed.files)
    speed = len(table) / max(time.perf_counter() - started, 1e-9)
    good = table.good().tolist()
    identical, alike = _find_copies(table, listed, least_alike)
    groups = _Groups(listed, identical, alike)
    labels = [listed.label(n) for n in range(len(table))]
    classes = Counter(filter(None, labels[: listed.n_first])), Counter(filter(None, labels[listed.n_first :]))
    if not is_whole:
        classes[1].clear()  # a class may be among the images that were not read
    report = DatasetReport(
        folders=tuple(folders),
        against=tuple(against),
        images=len(table),
        against_images=max(len(table) - listed.n_first, 0),
        broken=broken.kinds(),
        identical=tuple(groups.on_one_side(identical)),
        alike=tuple(groups.on_one_side(alike)),
        leaks=tuple(groups.leaks()),
        conflicts=tuple(groups.conflicts()),
        width=spread_of(table.width[n] for n in good),
        height=spread_of(table.height[n] for n in good),
        images_per_second=round(speed, 1),
    )
    evidence = DatasetEvidence(
        report=report,
        names=_Names(listed.files, good),
        **{name: array(column.typecode, (column[n] for n in good)) for name, column in table.figures()},
        has_labels=any(classes),
        classes=classes,
        readable=(bisect_left(good, listed.n_first), len(good) - bisect_left(good, listed.n_first)),
    )
    return evidence, len(listed.files) - len(table)


class _Names(Sequence[str]):
    """The names of some files, computed on access."""

    def __init__(self, files: FileList, numbers: Sequence[int]) -> None:
        self._files, self._numbers = files, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self._files[number].name for number in self._numbers[at]]
        return self._files[self._numbers[at]].name


def _list(folders: Sequence[str], against: Sequence[str], progress: Progress) -> _Listed:
    files: list[ListedImage] = []
    roots: list[tuple[Path | None, int]] = []
    n_first = 0
    for n, word in enumerate((*folders, *against)):
        listing = find_images([word])
        tell(progress, listing.notes)
        files += listing.files
        roots.append((Path(word) if os.path.isdir(word) else None, len(files)))
        n_first = len(files) if n < len(folders) else n_first
    return _Listed(FileList(files), n_first, tuple(roots))


def _looks(files: FileList) -> Iterator[ImageFacts]:
    """Yield the facts of the images in order, computed by several threads."""
    n_threads = min(_MOST_THREADS, os.cpu_count() or 1)
    each = iter(files)
    with strict_pillow(), ThreadPoolExecutor(n_threads) as pool:
        while window := list(islice(each, _WINDOW)):
            yield from pool.map(look_at, window)


def _find_copies(table: ImageTable, listed: _Listed, least: float) -> tuple[list[ImagePair], list[ImagePair]]:
    """Return the pairs of images with the same pixels, and the pairs that are only similar."""
    good = table.good()
    same = equal_rows(table.rows("sha256")[good], good)
    identical = [ImagePair(group[0], other, 1.0, BYTES) for group in same for other in group[1:]]
    copies = {pair.second for pair in identical}
    firsts = good[[n not in copies and table.contrast[n] >= _PLAIN for n in good.tolist()]]
    alike: list[ImagePair] = []

    @cache
    def pixels_sha256(number: int) -> bytes:
        try:
            pixels = decode(listed.files[number], "RGB").tobytes()
        except UnreadableImageError:  # changed since it was examined
            pixels = os.urandom(16)
        return hashlib.sha256(pixels).digest()

    for pair in find_alike(table, firsts, least):
        a, b = pair.first, pair.second
        is_one_size = (table.width[a], table.height[a]) == (table.width[b], table.height[b])
        if is_one_size and pair.alike >= _SAME_PIXELS and pixels_sha256(a) == pixels_sha256(b):
            identical.append(replace(pair, alike=1.0, how=PIXELS))
        else:
            alike.append(pair)
    return identical, alike


class _Groups:
    """Turns pairs of numbers into groups of names."""

    def __init__(self, listed: _Listed, identical: Sequence[ImagePair], alike: Sequence[ImagePair]) -> None:
        self._listed = listed
        self._every = groups_of([*identical, *alike])

    def on_one_side(self, pairs: Sequence[ImagePair]) -> Iterator[CopyGroup]:
        """Yield the groups of two or more images on the same side."""
        for group in groups_of(pairs):
            numbers = _numbers(group)
            for side in (True, False):
                members = [n for n in numbers if (n < self._listed.n_first) == side]
                if len(members) > 1:
                    yield self._group(group, members)

    def leaks(self) -> Iterator[CopyGroup]:
        """Yield the groups with images on both sides: the first of the first side, then those of the second."""
        for group in self._every:
            first, *others = _numbers(group)
            others.sort(key=lambda n: (n < self._listed.n_first, n))
            if first < self._listed.n_first <= others[0]:
                yield self._group(group, [first, *others])

    def conflicts(self) -> Iterator[CopyGroup]:
        """Yield the groups whose images are in folders of different classes."""
        for group in self._every:
            copies = self._group(group, _numbers(group))
            if len(copies.labels) > 1:
                yield copies

    def _group(self, pairs: Sequence[ImagePair], numbers: Sequence[int]) -> CopyGroup:
        files = self._listed.files
        least = min(pair.alike for pair in pairs)
        labels = dict.fromkeys(label for n in numbers if (label := self._listed.label(n)) is not None)
        how = max((pair.how for pair in pairs), key=(BYTES, PIXELS, ALIKE).index)
        return CopyGroup(how, tuple(files[n].name for n in numbers), round(least, 3), tuple(labels))


def _numbers(pairs: Sequence[ImagePair]) -> list[int]:
    return sorted({n for pair in pairs for n in (pair.first, pair.second)})


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
        images: folders, globs or lists (`@files.txt`).
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
            "image", (), tuple(evidence.names[:_MOST_FILES]), n_files=report.images, broken=report.broken
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
