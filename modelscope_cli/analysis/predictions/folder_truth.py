"""The truth that is found without asking: folders of images that are named after the classes of the model."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
from modelscope_cli.inputs.truth import AUTO, Word, class_folder, class_folders, labels_beside, read_truth
from modelscope_cli.records.check import Accuracy
from modelscope_cli.records.naming import counted, some
from modelscope_cli.records.predict import Share

Tell = Callable[[str], None]


def find_truth(subject: Subject, what: str = "accuracy: not computed", tell: Tell | None = None) -> None:
    """Give the batches of opened inputs their truth, if all folders of the images are labels of classes.

    `what`: what is said where the names of the classes are missing, or others; `tell`: where, else in a note.
    """
    inputs, indices = subject.inputs, cache(partial(_indices, subject, what, tell))

    def truth(batch: Batch, n_classes: int) -> Tensor | None:
        by_folder = indices(n_classes)
        return torch.tensor([by_folder[class_folder(name)] for name in batch.names]) if by_folder else None

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
    tell_no_truth(subject, n_classes, what, tell)
    return {}


def tell_no_truth(subject: Subject, n_classes: int, what: str, tell: Tell | None = None) -> None:
    """Tell `what`, and why, if folders seem to be those of classes, but the classes have other names or none."""
    folders, labels = class_folders(subject.inputs.files), subject.loaded.categories or ()
    known = {label.casefold() for label in labels}
    strange = [folder for folder in folders if folder.casefold() not in known]
    named = None if labels else labels_beside(subject.inputs.files, n_classes)
    if named or (not labels and len(folders) == n_classes > 1):
        order = f"if this is their order: --labels {shlex.quote(named or ','.join(folders))}"
        (tell or subject.progress.note)(f"{what}, as the classes of the model have no names; {order}")
    elif len(folders) > 1 and strange and (subject.labels is not None or len(strange) < len(folders)):
        (tell or subject.progress.note)(
            f"{what}: no label is named {some(strange, 4)} (labels: {some(labels, 4)})"
        )


class RightPredictions:
    """How many predictions are the true class; where a score is NaN or all are equal, there is none."""

    def __init__(self) -> None:
        self._n_right, self._truth = 0, Counter[int]()
        self.is_nan = True  # whether the scores of all images are

    def add(self, logits: Tensor, truth: Tensor | None) -> Tensor | None:
        """Add the logits of some images, `(N, classes)`, and the class of each; return which are right, `(N,)`."""
        if truth is None:
            return None
        self._truth.update(truth.tolist())
        is_nan = logits.isnan().any(1)
        self.is_nan &= bool(is_nan.all())
        is_right = (logits.argmax(1) == truth.to(logits.device)) & ~is_nan & ~is_undecided(logits)
        self._n_right += int(is_right.sum())
        return is_right

    def share(self) -> Share | None:
        return Share.of(self._n_right, self._truth.total()) if self._truth else None

    def accuracy(self, label: Callable[[int], str]) -> Accuracy | None:
        """Return the share with the number of images and the most frequent class, named by `label`."""
        share = self.share()
        if share is None or self.is_nan:
            return None
        ((most_frequent, n),) = self._truth.most_common(1)
        return Accuracy(share, self._truth.total(), n / self._truth.total(), label(most_frequent))
