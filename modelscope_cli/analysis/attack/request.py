"""The options of `attack`, checked before anything heavy is imported. Standard library."""

import math
from dataclasses import dataclass, replace

from modelscope_cli.errors import UsageError
from modelscope_cli.records.naming import absurdity
from modelscope_cli.records.refusals import check_range, check_word

# Defaults of each method. The steps of `pgd` add up to 2.5 radii, so that a random start can reach every corner.
_STEPS = {"fgsm": 1, "ifgsm": 10, "pgd": 20}
_REACH = {"fgsm": 1.0, "ifgsm": 1.0, "pgd": 2.5}
# The radii most papers attack ImageNet models with; 3 in the Euclidean norm is about 2/255 a value at 224 x 224.
_LONGEST = 10_000  # from black to white in an image of 33 megapixels
_EPSILON = {"linf": "8/255", "l2": "3"}


@dataclass(frozen=True, slots=True)
class AttackRequest:
    """The options of an attack. Lengths are of pixels in 0..1."""

    method: str  # `fgsm`, `ifgsm` or `pgd`
    norm: str  # `linf`, the largest change of any value, or `l2`, the Euclidean length of the whole change
    epsilon: float  # radius in that norm; with `is_smallest`, where the search begins
    # steps, step_size: number and length of the gradient steps of one run
    steps: int
    step_size: float
    # A class index or label to be mistaken for; None for any but the predicted class
    target: str | None = None
    seed: int = 0  # the seed of the random start
    is_smallest: bool = False  # whether to search for the smallest change instead of any within epsilon

    def within(self, radius: float) -> "AttackRequest":
        """Return the request for another epsilon; the ratio of step size to epsilon stays."""
        return replace(self, epsilon=radius, step_size=self.step_size * radius / self.epsilon)


def make_request(
    *,
    method: str,
    norm: str,
    epsilon: str | None,
    steps: int | None,
    target: str | None,
    seed: int,
) -> AttackRequest:
    """Fill in defaults.

    The step is epsilon for `fgsm`; epsilon / steps for `ifgsm` (Dong et al. 2018, section 2: the last step reaches
    the edge of the ball); 2.5 epsilon / steps for `pgd` (Madry et al. 2018, section 5).
    """
    check_word("method", method, tuple(_STEPS))
    check_word("norm", norm, tuple(_EPSILON))
    check_range("steps", steps, least=1)
    if method == "fgsm" and steps is not None:
        raise UsageError(f"'--steps {steps}' does not apply: fgsm is one step of epsilon", "--method ifgsm")
    radius = _length(epsilon or _EPSILON[norm], _EPSILON[norm], norm)
    n_steps = steps or _STEPS[method]
    step = _REACH[method] * radius / n_steps
    return AttackRequest(method, norm, radius, n_steps, step, target, seed, is_smallest=epsilon is None)


def _length(text: str, example: str, norm: str) -> float:
    """Parse `8/255` or `0.03`."""
    numerator, slash, denominator = text.partition("/")
    try:
        value = float(numerator) / (float(denominator) if slash else 1.0)
    except (ValueError, ZeroDivisionError):
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"'--epsilon {text}' is neither a number nor a fraction", f"--epsilon {example}")
    wrong = absurdity(value)
    if wrong:
        raise UsageError(f"'--epsilon {text}' is {wrong}", f"--epsilon {example}")
    if value < 0:
        raise UsageError(f"'--epsilon {text}' is negative", f"--epsilon {example}")
    if norm == "linf" and value > 1:
        near = f"{value:g}/255" if value <= 255 else example
        raise UsageError(f"'--epsilon {text}' is above 1, and pixels go from 0 to 1", f"--epsilon {near}")
    if value > _LONGEST:
        raise UsageError(f"'--epsilon {text}' is above the largest possible change", f"--epsilon {example}")
    return value
