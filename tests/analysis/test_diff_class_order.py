"""`diff` of two classifiers that have the same classes in another order."""

import pytest
import torch

from modelscope_cli.analysis.comparison.predictions import Predictions
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.inputs.files import FileList

TRUE = torch.arange(5).repeat(8)


def outputs(classes, wrong=0, width=5):
    """Scores of classifiers that are right but for `wrong` images."""
    classes = classes.clone()
    classes[:wrong] = (classes[:wrong] + 1) % width
    return torch.nn.functional.one_hot(classes, width).float() * 9


def compared(a, b, names=(None, None)):
    predictions = Predictions(*names, FileList(()))
    for n in (0, 20):
        files = tuple(f"{i}.png" for i in range(n, n + 20))
        predictions.add(a[n : n + 20], b[n : n + 20], Batch((), 20, files))
    return [one.kind for one in predictions.other_order()], len(predictions.changed)


@pytest.mark.parametrize("order", [(1, 2, 3, 4, 0), (4, 3, 2, 1, 0), (0, 1, 4, 3, 2), (0, 2, 1, 3, 4)])
def test_another_order_is_told_by_name_or_by_predictions(order):
    there = torch.tensor(order)[TRUE]
    names = list("abcde")
    theirs = [names[order.index(n)] for n in range(5)]
    assert compared(outputs(TRUE, 2), outputs(there), (names, theirs)) == (["class_names"], 2)
    for known in ((None, None), (names, None), (names, names)):
        kinds, n_changed = compared(outputs(TRUE, 2), outputs(there), known)
        assert (kinds, n_changed >= 14) == (["class_order"], True)
    assert compared(outputs(TRUE), outputs(there), (names, list("vwxyz")))[0] == ["class_order"]


@pytest.mark.parametrize("b", [
    outputs(TRUE),
    outputs(TRUE, 12),
    outputs(torch.zeros_like(TRUE)),
    outputs(torch.where(TRUE == 2, 3, TRUE)),  # one class is called another
    outputs(TRUE // 2),
    outputs(torch.randint(5, (40,), generator=torch.Generator().manual_seed(1))),
], ids=["same", "worse", "constant", "one class", "merged", "chance"])  # fmt: skip
def test_a_worse_classifier_has_no_other_order(b):
    assert compared(outputs(TRUE), b)[0] == []
