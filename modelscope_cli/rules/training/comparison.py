"""Which variant of a study is best, and whether by more than chance. Standard library only."""

from collections.abc import Sequence

from modelscope_cli.records.naming import percent, some
from modelscope_cli.records.train import Training
from modelscope_cli.rules.training.progress import LUCKY, luck_of

_CLEAR = 0.05  # probability of so large a difference between variants that are equally good


def compare(trainings: Sequence[Training]) -> str:
    """Return in one sentence which training predicts the validation images best, and by what margin.

    All are evaluated on the same images, so two are compared on those that only one predicts: the exact sign test
    (Dixon & Mood 1946), two-sided, and by Bonferroni for all pairs.
    """
    best, *others = sorted(trainings, key=lambda one: len(one.held_out_wrong))
    n, guessed = best.n_held_out, best.guessing
    if not n:
        return f"which of {len(trainings)} variants is best is not tested: there are no validation images"
    led = f"{best.name}, with an accuracy of {_accuracy(best)} on {n:,} validation images"
    if luck_of(n - len(best.held_out_wrong), n, guessed) > LUCKY:
        return (
            f"no variant is better than guessing ({percent(guessed, 1)}) by more than chance: first is {led}"
        )
    if others and len({len(one.held_out_wrong) for one in trainings}) == 1:
        accuracy = f"an accuracy of {_accuracy(best)} on {n:,} validation images"
        return (
            f"no variant is best: {'both' if len(others) == 1 else f'all {len(trainings)}'} have {accuracy}"
        )
    n_pairs = len(trainings) * len(others) / 2
    chances = [min(1.0, n_pairs * _chance_of_difference(best, one)) for one in others]
    close = [one for one, chance in zip(others, chances, strict=True) if chance > _CLEAR]
    if close:
        named = some([f"{one.name} ({_accuracy(one)})" for one in close])
        return f"no variant is best by more than chance: first is {led}; as good within chance: {named}"
    margin = 100 * (len(others[0].held_out_wrong) - len(best.held_out_wrong)) / n if others else 0.0
    ahead = f"; {margin:.1f} points ahead of {others[0].name}, more than chance (p = {max(chances):.2g})"
    return f"best is {led}{ahead if others else ''}"


def _accuracy(one: Training) -> str:
    return percent(1 - len(one.held_out_wrong) / one.n_held_out, 1)


def _chance_of_difference(better: Training, worse: Training) -> float:
    """Return the two-sided probability of at least this difference if both are equally good."""
    right_once, wrong_once = (
        len({*a.held_out_wrong} - {*b.held_out_wrong}) for a, b in ((worse, better), (better, worse))
    )
    return 2 * luck_of(right_once, right_once + wrong_once, 0.5)
