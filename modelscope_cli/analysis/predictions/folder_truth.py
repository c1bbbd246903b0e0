"""The truth that is found without asking: folders of images that are named after the classes of the model."""

import shlex
from collections.abc import Callable

import torch
from torch import Tensor

from modelscope_cli.analysis.predictions.metrics import ClassNames
from modelscope_cli.analysis.predictions.request import choose_activation
from modelscope_cli.analysis.predictions.scores import check_labels
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.inputs.truth import AUTO, Word, class_folder, class_folders, read_truth
from modelscope_cli.records.predict import Share

TruthOf = Callable[[Batch, int], Tensor | None]


def no_truth(batch: Batch, n_classes: int) -> None:
    """Return that the classes of the images are unknown."""


class FolderTruth:
    """The class of each image by the name of its folder, if all folders are labels of classes."""

    def __init__(self, subject: Subject, what: str = "accuracy: not computed") -> None:
        """`subject`: with open inputs. `what`: what a note says where only the names of the classes are missing."""
        self._subject, self._what = subject, what
        self._indices: dict[Word, int] | None = None  # by folder; None before the first batch

    def of(self, batch: Batch, n_classes: int) -> Tensor | None:
        """Return the class of each image of a batch, `(N,)` int64; None if the folders are not all classes."""
        if self._indices is None:
            self._indices = self._find(n_classes)
        found = [self._indices[class_folder(name)] for name in batch.names if self._indices]
        return torch.tensor(found) if found else None

    def _find(self, n_classes: int) -> dict[Word, int]:
        subject, truth = self._subject, read_truth(AUTO)
        labels, files = subject.loaded.categories or (), subject.inputs.files
        if subject.labels is not None:
            check_labels(subject.labels, n_classes, subject.source_of_labels)
        if truth.may_hold(files, labels, choose_activation("auto", None, subject.loaded.module)):
            return ClassNames(labels, n_classes).find(class_folders(files), truth.name)
        if not labels:
            tell_unnamed(subject, n_classes, self._what)
        return {}


def tell_unnamed(subject: Subject, n_classes: int, what: str) -> None:
    """Note `what` if there is a folder for each class, and the classes have no names."""
    folders = class_folders(subject.inputs.files)
    if len(folders) == n_classes > 1:
        order = f"if this is their order: --labels {shlex.quote(','.join(folders))}"
        subject.progress.note(f"{what}, as the classes of the model have no names; {order}")


class RightPredictions:
    """How many predictions are the true class; one that is NaN never is."""

    def __init__(self) -> None:
        self._n = self._n_right = 0

    def add(self, logits: Tensor, truth: Tensor | None) -> None:
        """Add the logits of some images, `(N, classes)`, and the class of each."""
        if truth is not None:
            self._n += len(truth)
            self._n_right += int((~logits.isnan().any(1) & (logits.argmax(1) == truth)).sum())

    def share(self) -> Share | None:
        return Share.of(self._n_right, self._n) if self._n else None
