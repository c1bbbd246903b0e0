"""The truth that is found without asking: folders of images that are named after the classes of the model."""

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import islice

import torch
from torch import Tensor

from modelscope_cli.analysis.outputs.target_spec import class_index
from modelscope_cli.analysis.predictions.metrics import ClassNames
from modelscope_cli.analysis.predictions.scores import is_undecided
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.errors import UsageError
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.inputs.files import FileList
from modelscope_cli.inputs.truth import AUTO, Word, class_folders, labels_beside, read_truth
from modelscope_cli.records.check import Accuracy
from modelscope_cli.records.naming import counted, percent, some
from modelscope_cli.records.predict import Prediction
from modelscope_cli.records.run import Share

Tell = Callable[[str], None]
Guessed = Counter[tuple[str, int]]  # images by their folder and their likeliest class


def find_truth(subject: Subject, what: str = "accuracy: not computed", tell: Tell | None = None) -> None:
    """Give the batches of opened inputs their truth, if all folders of the images are labels of classes.

    `what`: what is said where the names of the classes are missing, or others; `tell`: where, else in a note.
    """
    inputs, indices = subject.inputs, cache(partial(_indices, subject, what, tell))
    class_of = inputs.files.class_of

    def truth(batch: Batch, n_classes: int) -> Tensor | None:
        by_folder = indices(n_classes)
        return torch.tensor([by_folder[class_of(name)] for name in batch.names]) if by_folder else None

    def batches() -> Iterator[Batch]:
        return (replace(batch, truth=partial(truth, batch)) for batch in inputs.make_batches())

    subject.inputs = replace(inputs, make_batches=batches)


def give_truth(subject: Subject, classes: Sequence[int | str]) -> None:
    """Give the batches of opened inputs the classes of their images, in the order of these."""
    inputs, categories = subject.inputs, subject.loaded.categories
    if len(classes) != inputs.n_listed:
        message = f"target has {len(classes)} classes for {counted(inputs.n_listed, 'image')}"
        raise UsageError(message, "give one class for each image, or leave out target")

    def truth(own: Sequence[str], n_classes: int) -> Tensor:
        return torch.tensor([class_index(one, n_classes, categories) for one in own])

    def batches() -> Iterator[Batch]:
        left = map(str, classes)
        for batch in inputs.make_batches():
            yield replace(batch, truth=partial(truth, [*islice(left, batch.n_images)]))

    subject.inputs = replace(inputs, make_batches=batches)


def _indices(subject: Subject, what: str, tell: Tell | None, n_classes: int) -> dict[Word, int]:
    """Return the class of each folder; empty if not all of them are labels."""
    truth, labels, files = read_truth(AUTO), subject.loaded.categories or (), subject.inputs.files
    subject.check_labels(n_classes)
    if truth.may_hold(files, labels, "softmax"):
        return ClassNames(labels, n_classes).find(class_folders(files), truth.name)
    folders = tell_no_truth(subject, n_classes, what, tell)
    return {folder: n for n, folder in enumerate(folders if tell is not None else ())}


def guessed_classes(files: FileList, predictions: Iterable[Prediction]) -> Iterator[tuple[str, int]]:
    """Yield the folder of each image and its likeliest class; boxes and scores of NaN are left out."""
    firsts = ((one.image, one.top[0]) for one in predictions if one.top and not math.isnan(one.top[0].score))
    return ((files.class_of(image), best.index) for image, best in firsts if best.box is None)


def tell_no_truth(
    subject: Subject, n_classes: int, what: str, tell: Tell | None = None, guessed: Guessed | None = None
) -> list[str]:
    """Tell `what`, and why, if folders seem to be those of classes, but the classes have other names or none.

    Returns:
        the folders if they can be the classes in alphabetical order, as `ImageFolder` of torchvision numbers them:
        the accuracy of `guessed` assumes that, and so does what is told to `tell`.
    """
    folders, labels = class_folders(subject.inputs.files), subject.loaded.categories or ()
    known = {label.casefold() for label in labels}
    strange = [folder for folder in folders if folder.casefold() not in known]
    named = None if labels else labels_beside(subject.inputs.files, n_classes)
    are_classes = not named and not labels and len(folders) == n_classes > 1
    if are_classes and guessed:
        share = f"{_accuracy_in(folders, guessed)} of {counted(guessed.total(), 'image')}"
        what = f"accuracy: {share} (assuming classes in alphabetical order)"
        if (likely := _likely_order(folders, guessed)) != folders:
            what += f", but {_accuracy_in(likely, guessed)} in the order that fits the predictions"
            folders = likely
    elif are_classes and tell is not None:
        what = "assuming classes in alphabetical order"
    if named or are_classes:
        order = f"if this is their order: --labels {shlex.quote(named or ','.join(folders))}"
        (tell or subject.progress.note)(f"{what}; the model has no class names; {order}")
    elif tell is not None and len(folders) > 1 and not labels:
        tell(f"{what}: the images are in {len(folders)} folders, but the model has {n_classes:,} classes")
    elif len(folders) > 1 and strange and (subject.labels is not None or len(strange) < len(folders)):
        (tell or subject.progress.note)(
            f"{what}: no label is named {some(strange, 4)} (labels: {some(labels, 4)})"
        )
    return folders if are_classes else []


def _accuracy_in(order: list[str], guessed: Guessed) -> str:
    return percent(sum(n for (name, at), n in guessed.items() if order[at] == name) / guessed.total(), 1)


def _likely_order(folders: list[str], guessed: Guessed) -> list[str]:
    """Return the folders in the order of the classes predicted most often for each, if these all differ."""
    most = {folder: max(range(len(folders)), key=lambda index: guessed[folder, index]) for folder in folders}
    return sorted(folders, key=most.__getitem__) if len({*most.values()}) == len(folders) else folders


EQUAL = "accuracy: not computed, as all scores of an image are equal"
NAN = "accuracy: not computed, as the scores of all images are NaN"


class RightPredictions:
    """How many predictions are the true class; where a score is NaN or all are equal, there is none."""

    def __init__(self) -> None:
        self._n_right, self._truth = 0, Counter[int]()
        self.unknown = {NAN, EQUAL}  # why no image so far has a prediction

    def add(self, logits: Tensor, truth: Tensor | None) -> Tensor | None:
        """Add the logits of some images, `(N, classes)`, and the class of each; return which are right, `(N,)`."""
        if truth is None:
            return None
        self._truth.update(truth.tolist())
        is_nan, is_equal = logits.isnan().any(1), is_undecided(logits)
        self.unknown &= {why for why, one in ((NAN, is_nan), (EQUAL, is_equal)) if one.all()}
        is_right = (logits.argmax(1) == truth.to(logits.device)) & ~is_nan & ~is_equal
        self._n_right += int(is_right.sum())
        return is_right

    def share(self) -> Share | None:
        return Share.of(self._n_right, self._truth.total()) if self._truth else None

    def accuracy(self, label: Callable[[int], str]) -> Accuracy | None:
        """Return the share with the number of images and the most frequent class, named by `label`."""
        share = self.share()
        if share is None or self.unknown:
            return None
        ((most_frequent, n),) = self._truth.most_common(1)
        return Accuracy(share, self._truth.total(), n / self._truth.total(), label(most_frequent))
