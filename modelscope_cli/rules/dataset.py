"""MS8xx: the images of a data set, whatever model they are for."""

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from modelscope_cli.records.check import CopyGroup, DatasetEvidence
from modelscope_cli.records.check_evidence import Evidence
from modelscope_cli.records.findings import ERROR, WARNING
from modelscope_cli.records.naming import counted, some
from modelscope_cli.rules.rule import Sighting, rule

MOST_TOLD = 20  # findings per rule; one more gives the number of the rest


def _data(evidence: Evidence) -> DatasetEvidence:
    assert evidence.dataset is not None
    return evidence.dataset


def _told(sightings: Sequence[Sighting]) -> Iterator[Sighting]:
    """Yield the first sightings, then one for the number of the rest."""
    yield from sightings[:MOST_TOLD]
    if (n_left := len(sightings) - MOST_TOLD) > 0:
        yield Sighting(None, n_left, f"... and {n_left:,} more (--json lists all)", is_rest=True)


_NEEDS = frozenset({"dataset"})
_NOTHING_READ = "no image could be read"
_NO_CLASSES = "the images are not in one folder per class"


def _without_classes(evidence: Evidence, threshold: Any) -> str | None:
    classes = [classes for _, classes in _data(evidence).sets if classes]
    if any(0 in counts.values() for counts in classes):
        return None
    return _not_held_against(evidence, threshold) or (None if len(classes) > 1 else _NO_CLASSES)


def _without_labels(evidence: Evidence, threshold: Any) -> str | None:
    is_labelled = any(classes for _, classes in _data(evidence).sets)
    return _nothing_read(evidence, threshold) if is_labelled else _NO_CLASSES


def _nothing_read(evidence: Evidence, threshold: Any) -> str | None:
    return None if _data(evidence).readable else _NOTHING_READ


@rule("MS801", "unreadable-images", ERROR, 0, needs=_NEEDS)
def _unreadable(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """Images cannot be decoded.

    Measure: images with one kind of damage
    Source: Pillow in strict mode: the file must be complete
    Hint: remove them from the folder, or restore the files
    Why: every run stops at them, or continues with fewer images than you think
    """
    for kind in _data(evidence).report.broken:
        if kind.count > threshold:
            named = some(kind.names, len(kind.names), kind.count)
            several = f"{counted(kind.count, 'file')} are {kind.kind}: {named}"
            yield Sighting(kind.names[0], kind.count, several if kind.count > 1 else f"is {kind.kind}")


def _copies(groups: Iterable[CopyGroup], threshold: float, folders: Sequence[str] = ()) -> Iterator[Sighting]:
    """Return the sightings of copies; those in several of `folders` are told with their names."""
    found = []
    for group in groups:
        around = [one for one in folders if any(Path(name).is_relative_to(one) for name in group.images)]
        found.append(_of(group, len(group.images) - 1, f"in {some(around)}: " if len(around) > 1 else ""))
    return _told([one for one in found if (one.value or 0) > threshold])


def _of(group: CopyGroup, value: float, where: str = "", looks: str = "the same pixels as") -> Sighting:
    """Return the sighting of a group of copies, at its first image."""
    return Sighting(group.images[0], value, f"{where}{looks} {some(group.images[1:])}")


def _not_held_against(evidence: Evidence, threshold: Any) -> str | None:
    report = _data(evidence).report
    if not report.against and len(report.folders) > 1 and all(map(os.path.isdir, report.folders)):
        first, *others = map(shlex.quote, report.folders)
        compared = " ".join(["modelscope check", first, *(f"--against {other}" for other in others)])
        return f"{some(report.folders)} are taken as one data set; to compare them: {compared}"
    if not report.against:
        return "there is only one data set: --against names another"
    return None if _data(evidence).readable > 1 else _NOTHING_READ


@rule("MS805", "conflicting-labels", ERROR, 1, needs=_NEEDS, excuse=_without_labels)
def _conflict(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """Copies of the same image are in the folders of different classes.

    Measure: classes that contain the same image
    Source: our reasoning: if an image has one class, at most one folder can be right
    Hint: keep the copy in the right class, and remove the others
    Why: the model is trained on two labels for one image, and at least one of them is wrong
    """
    groups = [group for group in _data(evidence).report.conflicts if len(group.labels) > threshold]
    return _told([_of(group, len(group.labels), f"in {some(group.labels)}: ") for group in groups])


@rule("MS811", "missing-class", WARNING, 0, needs=_NEEDS, excuse=_without_classes)
def _missing_classes(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """A class has no image: its folder is empty, or the class is only in other data sets.

    Measure: images of the class in the other data sets, for a class without a folder
    Source: certain: the folders of the classes are compared; torchvision.datasets.ImageFolder refuses empty ones
    Hint: add images of the class, or remove its folder; check the spelling of the folders
    Why: a class without training images cannot be predicted, and one without validation images is not measured
    Error if: its folder is there, but empty
    """
    sets = [one for one in _data(evidence).sets if one[1]]
    for folders, classes in sets:
        for label in sorted(label for label, n in classes.items() if not n):
            yield Sighting(label, 0, f"the folder '{label}' in {some(folders)} has no image", ERROR)
    for label in sorted({label for _, classes in sets for label in classes}):
        n = sum(classes.get(label, 0) for _, classes in sets)
        there = [name for folders, classes in sets if classes.get(label) for name in folders]
        missing = [name for folders, classes in sets if label not in classes for name in folders]
        if missing and n > threshold:
            words = f"{counted(n, 'image')} of class '{label}' in {some(there)}, none in {some(missing)}"
            yield Sighting(label, n, words)


@rule("MS802", "identical-images", WARNING, 0, needs=_NEEDS, yields_to=("MS805",), excuse=_nothing_read)
def _identical(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """An image occurs several times, with identical pixels.

    Measure: copies of the same image beyond the first
    Source: SHA-256 of the decoded pixels
    Hint: keep one of each group, unless the repetition is intended
    Why: they count twice in training and in every metric, and one of them may have another label
    """
    report = _data(evidence).report
    return _copies(report.identical, threshold, () if report.against else report.folders)


@rule("MS804", "leak", ERROR, 0, needs=_NEEDS, excuse=_not_held_against)
def _leaked(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """Images of one data set are also in another.

    Measure: copies of the same image beyond the first
    Source: the same as for MS802
    Hint: keep each in one data set: accuracy on images seen in training measures memorisation
    Why: accuracy on training images does not measure accuracy on new images
    """
    return _copies(_data(evidence).report.leaks, threshold)


@rule("MS813", "near-copies", WARNING, 0, needs=_NEEDS, excuse=_not_held_against)
def _near_copies(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """Images look like those of another data set: resized, compressed, brighter or gray copies.

    Measure: near copies of one image
    Source: thumbnails of 16 x 16 pixels, wrong for 1 of 747,000 synthetic pairs
    Hint: look at both; keep each image in one data set
    Why: accuracy on images seen in training measures memorisation
    """
    counts = [(one, len(one.images) - 1) for one in _data(evidence).report.near]
    return _told([_of(one, n, looks="looks like") for one, n in counts if n > threshold])


@rule("MS812", "one-colour", WARNING, 0, needs=_NEEDS, excuse=_nothing_read)
def _one_colour(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """All pixels of an image have the same colour, as in a black one.

    Measure: images of one colour
    Source: certain: in each channel, the smallest value equals the largest
    Hint: look at the image; remove it unless it is intended
    Why: it shows nothing, and may come from a failed capture or conversion
    """
    return _told(
        [Sighting(name, 1, "all pixels are the same") for name in _data(evidence).one_colour if threshold < 1]
    )
