"""Rules about causes that were proved or excluded by running the script again with one thing changed."""

from collections.abc import Iterator

from modelscope_cli.records.findings import ERROR
from modelscope_cli.records.trials import DATA, GRADIENT, MODEL
from modelscope_cli.rules.training.rule_types import Case, Link, TrainingSighting, training_rule

CODES = "MS790", "MS791", "MS792", "MS793"
# Rules whose cause a trial takes away as a whole; the others name facts, or layers that it may not reach
_OF_THE_RECIPE = "MS709", "MS710", "MS719", "MS741", "MS744", "MS758"
REFUTABLE = frozenset((*_OF_THE_RECIPE, "MS704", "MS706", "MS722", "MS723", "MS726", "MS764"))


@training_rule("MS790", "proved-by-trial", ERROR, 0.5, Link.DATA)
def proved(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """A single change makes the model learn, with a second seed too.

    Measure: decrease of the loss without the change, relative to that with it
    Source: our choice: half; a tenth for changes that make most training runs better
    Hint: make this change in the script, and run it again
    Why: nothing else was changed, so this is the cause
    """
    fix = case.trials.fix
    if fix is not None:
        yield TrainingSighting(None, 0, fix.loss_last, fix.sentence, fix.source, hint=fix.write, proved=fix)


@training_rule("MS791", "wrong-gradient", ERROR, 0.05, Link.DATA)
def wrong_gradient(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """The gradient of a layer is not the derivative of its output.

    Measure: relative difference between autograd and finite differences along a random direction
    Source: derived: finite differences in float64 agree to six digits; 5 % leaves room for kinks
    Hint: correct the backward of its autograd.Function, or remove detach(), no_grad() or .data from its forward
    Why: its weights, and those of all layers before it, are updated in the wrong direction
    """
    yield from _examined(case, GRADIENT)


@training_rule("MS792", "nothing-to-learn-from-the-data", ERROR, 0.3, Link.DATA)
def unrelated_data(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """No change makes the model learn, but it can memorise eight samples: the labels do not follow from the inputs.

    Measure: final loss on eight samples, relative to the first
    Source: Karpathy 2019, "A recipe for training neural networks": overfit one batch; our choice: 0.3
    Hint: print a few inputs with their labels: do they belong together, and is the preprocessing right?
    Why: model, loss and optimizer work, so the cause must be in the data
    """
    yield from _examined(case, DATA)


@training_rule("MS793", "eight-samples-are-too-many", ERROR, 0.3, Link.DATA)
def unable(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """No change makes the model learn, and it cannot even memorise eight samples.

    Measure: final loss on eight samples, relative to the first
    Source: Karpathy 2019, "A recipe for training neural networks": overfit one batch; our choice: 0.3
    Hint: follow one sample through the model: does the output depend on it, and the loss on the output?
    Why: the fault is in the model or its loss, not in the data
    """
    yield from _examined(case, MODEL)


def _examined(case: Case, what: str) -> Iterator[TrainingSighting]:
    if case.trials.examined == what:
        yield TrainingSighting(None, 0, None, str(case.trials.outcome), case.trials.place)
