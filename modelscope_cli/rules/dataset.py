"""MS8xx: the images of a data set, whatever model they are for."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median_low
from typing import Any

from modelscope_cli.records.check import ALIKE, ERROR, WARNING, CopyGroup, DatasetEvidence
from modelscope_cli.records.check_evidence import Evidence
from modelscope_cli.records.naming import counted, some
from modelscope_cli.rules.rule import Sighting, rule

MOST_TOLD = 20  # findings per rule; one more gives the number of the rest


def _data(evidence: Evidence) -> DatasetEvidence:
    assert evidence.dataset is not None
    return evidence.dataset


def _told(sightings: Sequence[Sighting]) -> Iterator[Sighting]:
    """Yield the first sightings, then one for the number of the rest."""
    yield from sightings[:MOST_TOLD]
    n_left = len(sightings) - MOST_TOLD
    if n_left > 0:
        yield Sighting(None, n_left, f"... and {n_left:,} more (--json lists all)", is_rest=True)


_NEEDS = frozenset({"dataset"})
_PLAIN, _NOTHING_READ = 0.02, "no image could be read"
_NO_CLASSES = "the images are not in one folder per class"


def _without_classes(evidence: Evidence, threshold: Any) -> str | None:
    is_labelled = all(_data(evidence).classes)
    return _not_held_against(evidence, threshold) or (None if is_labelled else _NO_CLASSES)


def _without_labels(evidence: Evidence, threshold: Any) -> str | None:
    is_labelled = _data(evidence).has_labels
    return _nothing_read(evidence, threshold) if is_labelled else _NO_CLASSES


def _nothing_read(evidence: Evidence, threshold: Any) -> str | None:
    return None if any(_data(evidence).readable) else _NOTHING_READ


@rule("MS801", "unreadable-images", ERROR, 0, needs=_NEEDS)
def _unreadable(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """Images cannot be decoded.

    Measure: images of one kind of damage
    Source: Pillow in strict mode: the whole file has to be there
    Hint: remove them from the folder, or download them again
    Why: every run stops at them, or continues with fewer images than you think
    """
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


@rule("MS803", "near-duplicates", WARNING, 0.5, most=1, needs=_NEEDS, excuse=_nothing_read)
def _alike(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """Images are the same except for compression, size, brightness or a narrow crop.

    Measure: share of the edges that two images have in common, of those that either has
    Source: own measurement, on drawn and photographed images: one of 45,000 pairs of distinct images is above it
    Hint: the JSON document (-f json) lists all groups; --set MS803=0.7 is stricter
    Why: they count twice like identical images, and a random split puts them into both sets
    """
    groups = sorted(_data(evidence).report.alike, key=lambda group: -group.alike)
    return _told([_of(group, group.alike) for group in groups])


def _not_held_against(evidence: Evidence, threshold: Any) -> str | None:
    if not _data(evidence).report.against:
        return "there is only one data set: --against names another"
    return None if all(_data(evidence).readable) else _NOTHING_READ


@rule("MS805", "conflicting-labels", ERROR, 1, needs=_NEEDS, excuse=_without_labels)
def _conflict(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """Copies of one image are in the folders of different classes.

    Measure: classes of one image
    Source: own reasoning: if an image has one class, at most one folder can be right
    Hint: keep the copy in the right class, and remove the others
    Why: the model is trained on two labels for one image, and at least one of them is wrong
    """
    groups = [group for group in _data(evidence).report.conflicts if len(group.labels) > threshold]
    return _told([_of(group, len(group.labels), f"in {some(group.labels)}: ") for group in groups])


@rule("MS811", "missing-class", WARNING, 0, needs=_NEEDS, excuse=_without_classes)
def _missing_classes(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """A class of one data set has no image in the other.

    Measure: images of the class
    Source: certain: the folders of the classes are compared
    Hint: add images of the class, or remove its folder; check the spelling of the folders
    Why: a model cannot predict a class without training images, and the accuracy does not cover a class
        without validation images
    """
    data = _data(evidence)
    sides = tuple(zip(data.classes, (data.report.folders, data.report.against), strict=True))
    for (there, folders), (missing, others) in (sides, sides[::-1]):
        for label, n in sorted(there.items()):
            if n > threshold and label not in missing:
                words = f"{counted(n, 'image')} of class '{label}' in {some(folders)}, none in {some(others)}"
                yield Sighting(label, n, words)


def _ratios(values: Sequence[float]) -> list[float]:
    usual = median_low(values) if values else 1.0
    return [max(value / usual, usual / value) for value in values]


def _beyond(
    data: DatasetEvidence,
    values: Sequence[float],
    threshold: float,
    words: Callable[[int], str],
    sign: int = 1,
) -> Iterator[Sighting]:
    """Yield the values above a threshold (`sign` 1) or below it (-1), the farthest first."""
    beyond = [n for n, value in enumerate(values) if sign * value > sign * threshold]
    beyond.sort(key=lambda n: -sign * values[n])
    return _told([Sighting(data.names[n], values[n], words(n)) for n in beyond])


def _odd(data: DatasetEvidence, values: Sequence[float], threshold: float, usual: str) -> Iterator[Sighting]:
    return _beyond(
        data,
        values,
        threshold,
        lambda n: f"{data.width[n]} x {data.height[n]}: {values[n]:.1f} times {usual}",
    )


def _low(data: DatasetEvidence, values: Sequence[float], threshold: float, words: str) -> Iterator[Sighting]:
    return _beyond(data, values, threshold, lambda n: f"{words} {values[n]:.3g}", -1)


@rule("MS802", "identical-images", WARNING, 0, needs=_NEEDS, excuse=_nothing_read)
def _identical(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """An image occurs several times, byte by byte or pixel by pixel.

    Measure: copies of one image beyond the first
    Source: SHA-256 of the files; for images that look alike, of the decoded pixels
    Hint: keep one of each group, unless the repetition is intended
    Why: they count twice in training and in every metric, and one of them may have another label
    """
    return _copies(_data(evidence).report.identical, threshold)


@rule("MS804", "leak", ERROR, 0, needs=_NEEDS, excuse=_not_held_against)
def _leaked(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """Images of one data set are in the other.

    Measure: copies of one image beyond the first
    Source: those of MS802 and MS803
    Hint: remove them from one of the two; accuracy on them only measures memorisation
    Why: accuracy on training images does not measure accuracy on new images
    """
    return _copies(_data(evidence).report.leaks, threshold)


@rule("MS806", "odd-sizes", WARNING, 4, needs=_NEEDS, excuse=_nothing_read)
def _odd_sizes(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """An image is far larger or smaller than the median image.

    Measure: ratio of the side to that of the median image, whichever is larger
    Source: own reasoning: an image enlarged fourfold has a sixteenth of the detail
    Hint: look at them; thumbnails and scans often get into a folder by mistake
    Why: an enlarged small image has no real detail; a huge one slows every run
    """
    data = _data(evidence)
    sides = [(w * h) ** 0.5 for w, h in zip(data.width, data.height, strict=True)]
    return _odd(data, _ratios(sides), threshold, "larger or smaller than the median image")


@rule("MS807", "odd-aspect-ratios", WARNING, 3, needs=_NEEDS, excuse=_nothing_read)
def _odd_aspects(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """An image is far wider or taller than the median image.

    Measure: ratio of the aspect ratio to the median one, whichever is larger
    Source: own reasoning: a centre crop keeps a third of it at most
    Hint: look at them; a resize distorts them, a crop loses most of the image
    Why: resizing distorts it and cropping loses most of it, so the model sees another image than you do
    """
    data = _data(evidence)
    aspects = [w / h for w, h in zip(data.width, data.height, strict=True)]
    return _odd(data, _ratios(aspects), threshold, "wider or taller than the median image")


@rule("MS808", "dark-images", WARNING, 0.2, most=1, needs=_NEEDS, excuse=_nothing_read)
def _dark(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """An image is dark everywhere.

    Measure: brightness that 99 % of the pixels do not exceed, 1 being white
    Source: own measurement, on drawn and photographed images
    Hint: look at them; the exposure or a lost gamma may be the cause
    Why: the model sees hardly more than noise, and memorises its label
    """
    return _low(_data(evidence), _data(evidence).light, threshold, "the brightest parts reach")


@rule("MS809", "flat-images", WARNING, _PLAIN, most=1, needs=_NEEDS, excuse=_nothing_read)
def _flat(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """The brightness of an image hardly varies: one colour, or several that are equally bright.

    Measure: standard deviation of the brightness, 1 being white
    Source: own reasoning: compression leaves five of 256 levels in an empty image
    Hint: look at them; a placeholder or a failed download looks like this
    Why: it shows nothing, so the model can only memorise its label
    """
    return _low(_data(evidence), _data(evidence).contrast, threshold, "its brightness varies by")


@rule("MS810", "blurred-images", WARNING, 0.06, needs=_NEEDS, excuse=_nothing_read)
def _blurred(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """An image has no sharp edge at 128 pixels.

    Measure: standard deviation of the Laplacian over that of the brightness, at a short side of 128 pixels
    Source: own measurement, on drawn and photographed images: 0.15 or more for sharp images, 0.03 to 0.06
        after a blur of 1/28 of their side
    Hint: look at them; a finer blur is invisible at this size, and to most models
    Why: the model sees shapes without texture or edges; if one class is blurred more, the model learns the
        blur
    """
    data = _data(evidence)
    # Without contrast nothing could be sharp.
    pairs = zip(data.contrast, data.sharpness, strict=True)
    sharpness = [1.0 if contrast < _PLAIN else sharp for contrast, sharp in pairs]
    return _low(data, sharpness, threshold, "its edges are soft: Laplacian over contrast")
