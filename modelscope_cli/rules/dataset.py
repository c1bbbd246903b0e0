"""MS8xx: the images of a data set, whatever model they are for."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median_low
from typing import Any

from modelscope_cli.records.check import ALIKE, ERROR, WARNING, CopyGroup, DatasetEvidence
from modelscope_cli.records.check_evidence import Evidence
from modelscope_cli.records.naming import counted, some
from modelscope_cli.rules.rule import Rule, Sighting

MOST_TOLD = 20  # findings per rule; one more gives the number of the rest
Figure = Callable[[DatasetEvidence], Sequence[float]]


def _data(evidence: Evidence) -> DatasetEvidence:
    assert evidence.dataset is not None
    return evidence.dataset


def _told(sightings: Sequence[Sighting]) -> Iterator[Sighting]:
    """Yield the first sightings, then one for the number of the rest."""
    yield from sightings[:MOST_TOLD]
    n_left = len(sightings) - MOST_TOLD
    if n_left > 0:
        yield Sighting(None, n_left, f"... and {n_left:,} more (--json lists all)", is_rest=True)


def _unreadable(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    for kind in _data(evidence).report.broken:
        if kind.count > threshold:
            named = some([*kind.names, *[""] * (kind.count - len(kind.names))], len(kind.names))
            files = counted(kind.count, "file") + (" is" if kind.count == 1 else " are")
            yield Sighting(kind.names[0], kind.count, f"{files} {kind.kind}: {named}")


def _copies(groups: Iterable[CopyGroup], threshold: float) -> Iterator[Sighting]:
    return _told([_of(group, n) for group in groups if (n := len(group.images) - 1) > threshold])


def _of(group: CopyGroup, value: float, where: str = "") -> Sighting:
    """Return the sighting of a group of copies, at its first image."""
    likeness = (
        f"{group.how} as" if group.how != ALIKE else f"{100 * group.alike:.0f} % of the edges in common with"
    )
    return Sighting(group.images[0], value, f"{where}{likeness} {some(group.images[1:])}")


def _alike(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    groups = sorted(_data(evidence).report.alike, key=lambda group: -group.alike)
    return _told([_of(group, group.alike) for group in groups])


def _not_held_against(evidence: Evidence, threshold: Any) -> str | None:
    if not _data(evidence).report.against:
        return "there is only one data set: --against names another"
    return None if all(_data(evidence).readable) else _NOTHING_READ


def _conflict(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    groups = [group for group in _data(evidence).report.conflicts if len(group.labels) > threshold]
    return _told([_of(group, len(group.labels), f"in {some(group.labels)}: ") for group in groups])


def _without_labels(evidence: Evidence, threshold: Any) -> str | None:
    is_labelled = _data(evidence).has_labels
    return _nothing_read(evidence, threshold) if is_labelled else _NO_CLASSES


def _missing_classes(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    data = _data(evidence)
    sides = tuple(zip(data.classes, (data.report.folders, data.report.against), strict=True))
    for (there, folders), (missing, others) in (sides, sides[::-1]):
        for label, n in sorted(there.items()):
            if n > threshold and label not in missing:
                words = f"{counted(n, 'image')} of class '{label}' in {some(folders)}, none in {some(others)}"
                yield Sighting(label, n, words)


def _without_classes(evidence: Evidence, threshold: Any) -> str | None:
    is_labelled = all(_data(evidence).classes)
    return _not_held_against(evidence, threshold) or (None if is_labelled else _NO_CLASSES)


def _nothing_read(evidence: Evidence, threshold: Any) -> str | None:
    return None if any(_data(evidence).readable) else _NOTHING_READ


def _sizes(evidence: DatasetEvidence) -> list[float]:
    """Return the ratio of each image's side to the median one, or its inverse, at least 1."""
    sides = [(w * h) ** 0.5 for w, h in zip(evidence.width, evidence.height, strict=True)]
    return _ratios(sides)


def _aspects(evidence: DatasetEvidence) -> list[float]:
    return _ratios([w / h for w, h in zip(evidence.width, evidence.height, strict=True)])


def _ratios(values: Sequence[float]) -> list[float]:
    usual = median_low(values) if values else 1.0
    return [max(value / usual, usual / value) for value in values]


def _sharpness(evidence: DatasetEvidence) -> list[float]:
    """Return the sharpness; 1 without contrast, where nothing could be sharp."""
    pairs = zip(evidence.contrast, evidence.sharpness, strict=True)
    return [1.0 if contrast < _PLAIN else sharpness for contrast, sharpness in pairs]


def _beyond(
    figure: Figure, words: Callable[[DatasetEvidence, int, float], str], sign: int
) -> Callable[[Evidence, float], Iterator[Sighting]]:
    """Return a judge of values above a threshold (`sign` 1) or below it (-1), the farthest first."""

    def judge(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
        data = _data(evidence)
        values = figure(data)
        beyond = [n for n, value in enumerate(values) if sign * value > sign * threshold]
        beyond.sort(key=lambda n: -sign * values[n])
        return _told([Sighting(data.names[n], values[n], words(data, n, values[n])) for n in beyond])

    return judge


def _odd(figure: Figure, usual: str) -> Callable[[Evidence, float], Iterator[Sighting]]:
    return _beyond(
        figure, lambda data, n, value: f"{data.width[n]} x {data.height[n]}: {value:.1f} times {usual}", 1
    )


def _low(figure: Figure, words: str) -> Callable[[Evidence, float], Iterator[Sighting]]:
    return _beyond(figure, lambda data, n, value: f"{words} {value:.3g}", -1)


_PLAIN, _NOTHING_READ = 0.02, "no image could be read"
_NO_CLASSES = "the images are not in one folder per class"
_NEEDS = frozenset({"dataset"})
_OWN = "own measurement, on drawn and photographed images"

RULES = (
    Rule(
        code="MS801",
        name="unreadable-images",
        severity=ERROR,
        sentence="images cannot be decoded",
        threshold=0,
        measure="images of one kind of damage",
        source="Pillow in strict mode: the whole file has to be there",
        hint="remove them from the folder, or download them again",
        needs=_NEEDS,
        judge=_unreadable,
    ),
    Rule(
        code="MS802",
        name="identical-images",
        severity=WARNING,
        sentence="an image occurs several times, byte by byte or pixel by pixel",
        threshold=0,
        measure="copies of one image beyond the first",
        source="SHA-256 of the files; for images that look alike, of the decoded pixels",
        hint="keep one of each group, unless the repetition is intended",
        needs=_NEEDS,
        judge=lambda evidence, threshold: _copies(_data(evidence).report.identical, threshold),
        excuse=_nothing_read,
    ),
    Rule(
        code="MS803",
        name="near-duplicates",
        severity=WARNING,
        sentence="images are the same except for compression, size, brightness or a narrow crop",
        threshold=0.5,
        most=1,
        measure="share of the edges that two images have in common, of those that either has",
        source=_OWN + ": one of 45,000 pairs of distinct images is above it",
        hint="the JSON document (-f json) lists all groups; --set MS803=0.7 is stricter",
        needs=_NEEDS,
        judge=_alike,
        excuse=_nothing_read,
    ),
    Rule(
        code="MS804",
        name="leak",
        severity=ERROR,
        sentence="images of one data set are in the other",
        threshold=0,
        measure="copies of one image beyond the first",
        source="those of MS802 and MS803",
        hint="remove them from one of the two; accuracy on them only measures memorisation",
        needs=_NEEDS,
        judge=lambda evidence, threshold: _copies(_data(evidence).report.leaks, threshold),
        excuse=_not_held_against,
    ),
    Rule(
        code="MS805",
        name="conflicting-labels",
        severity=ERROR,
        sentence="copies of one image are in the folders of different classes",
        threshold=1,
        measure="classes of one image",
        source="own reasoning: if an image has one class, at most one folder can be right",
        hint="keep the copy in the right class, and remove the others",
        needs=_NEEDS,
        judge=_conflict,
        excuse=_without_labels,
    ),
    Rule(
        code="MS806",
        name="odd-sizes",
        severity=WARNING,
        sentence="an image is far larger or smaller than usual here",
        threshold=4,
        measure="ratio of the side to that of the median image, whichever is larger",
        source="own reasoning: an image enlarged fourfold has a sixteenth of the detail",
        hint="look at them; thumbnails and scans often get into a folder by mistake",
        needs=_NEEDS,
        judge=_odd(_sizes, "larger or smaller than usual"),
        excuse=_nothing_read,
    ),
    Rule(
        code="MS807",
        name="odd-aspect-ratios",
        severity=WARNING,
        sentence="an image is far wider or taller than usual here",
        threshold=3,
        measure="ratio of the aspect ratio to the median one, whichever is larger",
        source="own reasoning: a centre crop keeps a third of it at most",
        hint="look at them; a resize distorts them, a crop loses most of the image",
        needs=_NEEDS,
        judge=_odd(_aspects, "wider or taller than usual"),
        excuse=_nothing_read,
    ),
    Rule(
        code="MS808",
        name="dark-images",
        severity=WARNING,
        sentence="an image is dark everywhere",
        threshold=0.2,
        most=1,
        measure="brightness that 99 % of the pixels do not exceed, 1 being white",
        source=_OWN,
        hint="look at them; the exposure or a lost gamma may be the cause",
        needs=_NEEDS,
        judge=_low(lambda data: data.light, "the brightest parts reach"),
        excuse=_nothing_read,
    ),
    Rule(
        code="MS809",
        name="flat-images",
        severity=WARNING,
        sentence="the brightness of an image hardly varies: one colour, or several that are equally bright",
        threshold=_PLAIN,
        most=1,
        measure="standard deviation of the brightness, 1 being white",
        source="own reasoning: compression leaves five of 256 levels in an empty image",
        hint="look at them; a placeholder or a failed download looks like this",
        needs=_NEEDS,
        judge=_low(lambda data: data.contrast, "its brightness varies by"),
        excuse=_nothing_read,
    ),
    Rule(
        code="MS810",
        name="blurred-images",
        severity=WARNING,
        sentence="an image has no sharp edge at 128 pixels",
        threshold=0.06,
        measure="standard deviation of the Laplacian over that of the brightness, at a short side of 128 pixels",
        source=_OWN + ": 0.15 or more for sharp images, 0.03 to 0.06 after a blur of 1/28 of their side",
        hint="look at them; a finer blur is invisible at this size, and to most models",
        needs=_NEEDS,
        judge=_low(_sharpness, "its edges are soft: Laplacian over contrast"),
        excuse=_nothing_read,
    ),
    Rule(
        code="MS811",
        name="missing-class",
        severity=WARNING,
        sentence="a class of one data set has no image in the other",
        threshold=0,
        measure="images of the class",
        source="certain: the folders of the classes are compared",
        hint="add images of the class, or remove its folder; check the spelling of the folders",
        needs=_NEEDS,
        judge=_missing_classes,
        excuse=_without_classes,
    ),
)
