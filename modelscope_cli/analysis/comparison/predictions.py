"""What becomes of the predictions of A in B, whatever layers each has."""

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from modelscope_cli.analysis.predictions.folder_truth import RightPredictions
from modelscope_cli.analysis.predictions.scores import same_best, top_guesses
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.inputs.files import FileList
from modelscope_cli.inputs.truth import AUTO, folders_of_classes, read_truth
from modelscope_cli.records.diff import Cause, ChangedPrediction, ClassAccuracy, DiffAccuracy
from modelscope_cli.records.naming import some


class Predictions:
    """The predictions of two classifiers, compared batch by batch; other outputs are passed over.

    Args:
        labels, b_labels: of the classes; None if they have none. The same in another order are compared by name.
            If the images lie in as many folders as there are classes, these are taken to be the classes in
            alphabetical order, as `ImageFolder` of torchvision does.
        files: all images.
    """

    def __init__(self, labels: Sequence[str] | None, b_labels: Sequence[str] | None, files: FileList) -> None:
        ours, theirs = list(labels or ()), list(b_labels or ())
        is_other = ours != theirs and sorted(ours) == sorted({*theirs})
        self._order = [theirs.index(name) for name in ours] if is_other else []
        self._pairs: Counter[tuple[int, int]] = Counter()  # how many images have each class in A and in B
        self._labels, self._files, self._is_assumed = labels or b_labels, files, labels is b_labels is None
        # The class of each folder; empty where these are not classes
        self._index: dict[str, int] | None = None
        self._right, self.n_images = (RightPredictions(), RightPredictions()), 0
        self.changed: list[ChangedPrediction] = []
        self._only_a = self._only_b = 0  # images of which only one is right
        # Images by their class: all, those of which A is right, and B
        self._by_class: tuple[Counter[int], ...] = Counter(), Counter(), Counter()
        self.ties = 0  # images of which several classes have the highest score of B

    def accuracy(self) -> DiffAccuracy | None:
        a, b = (right.share() for right in self._right)
        if a is None or b is None:
            return None
        every, ours, theirs = self._by_class
        changed = [n for n in every if ours[n] != theirs[n]]
        changed.sort(key=lambda n: (theirs[n] - ours[n]) / every[n])
        labels = self._labels or ()
        classes = tuple(ClassAccuracy(labels[n], every[n], ours[n], theirs[n]) for n in changed)
        return DiffAccuracy(a, b, self._only_a, self._only_b, self._is_assumed, classes)

    def other_order(self) -> Iterator[Cause]:
        """Yield that B has the classes in another order, by name or as nine in ten of the predictions show."""
        if self._order:
            yield Cause("class_names", None, "B has the classes in a different order: compared by name", "")
        best = {x: (y, n) for (x, y), n in reversed(self._pairs.most_common()) if n > 2}
        n, moved = sum(n for _, n in best.values()), [(x, y) for x, (y, _) in sorted(best.items()) if x != y]
        is_one_to_one = len({y for y, _ in best.values()}) == len(best) > 2
        if is_one_to_one and len(moved) > 1 and n >= 0.9 * self.n_images:
            which = some((f"class {x} of A is {y} in B" for x, y in moved), 4)
            text = f"the classes of B are probably in a different order: for {n} of {self.n_images} images, {which}"
            yield Cause("class_order", None, text, "map the labels, or give B the head of A")

    def add(self, a: Tensor, b: Tensor, batch: Batch) -> None:
        """Compare two outputs for the same images."""
        if not (a.ndim == 2 and a.shape == b.shape and a.shape[1] > 1 and a.is_floating_point()):
            return
        b = b[:, self._order] if len(self._order) == b.shape[1] else b
        sides = [one.detach().float().cpu() for one in (a, b)]
        self._pairs.update(zip(*(one.argmax(1).tolist() for one in sides), strict=True))
        truth, is_same = self._truth(batch, a.shape[1]), same_best(a, b).cpu()
        ours, theirs = (right.add(one, truth) for right, one in zip(self._right, sides, strict=True))
        if truth is not None and ours is not None and theirs is not None:
            for counts, some_of in zip(self._by_class, (truth, truth[ours], truth[theirs]), strict=True):
                counts.update(some_of.tolist())
            self._only_a += int((ours & ~theirs & ~is_same).sum())
            self._only_b += int((theirs & ~ours & ~is_same).sum())
        self.ties += int(((sides[1] == sides[1].amax(1, keepdim=True)).sum(1) > 1).sum())
        logits = (
            one.log() if (one >= 0).all() and abs(one.sum(1) - 1).max() < 1e-3 else one for one in sides
        )
        firsts = [top_guesses(one, 1, self._labels) for one in logits]
        names = batch.names or [str(self.n_images + n) for n in range(len(a))]
        for n in (~is_same).nonzero()[:, 0].tolist():
            self.changed.append(ChangedPrediction(names[n], *(side[n][0] for side in firsts)))
        self.n_images += len(a)

    def _truth(self, batch: Batch, n_classes: int) -> Tensor | None:
        """Return the class of the folder of each image; None if the folders are not those of the classes."""
        if self._index is None:
            if self._is_assumed:
                self._labels = folders_of_classes(self._files, n_classes) or None
            may_hold = read_truth(AUTO).may_hold(self._files, self._labels, "softmax")
            labels = (self._labels or ()) if may_hold else ()
            self._index = {label.casefold(): n for n, label in enumerate(labels)}
        index, class_of = self._index, self._files.class_of
        return torch.tensor([index[class_of(one).casefold()] for one in batch.names]) if index else None
