"""What `attack` returns."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from modelscope_cli.records.display import Row, column, share, words
from modelscope_cli.records.predict import Guess
from modelscope_cli.records.run import HookReport, Record


@dataclass(frozen=True, slots=True)
class Answer:
    """The predictions for one image: the top ones, likeliest first, and the best of them in words."""

    top: tuple[Guess, ...]
    said: str


@dataclass(frozen=True, slots=True)
class ClassShift(Row):
    """The probability of one class for the image, the adversarial one, and the same read back from its file."""

    index: Annotated[int, column(rank=2, key="class")]
    label: Annotated[str | None, words(rank=0)]
    before: Annotated[float, share(rank=0)]
    after: Annotated[float, share(rank=0)]
    saved: Annotated[float, share("saved as PNG")]


@dataclass(frozen=True, slots=True)
class AttackRecord(Record):
    """What `attack` returns. Lengths and distances are of pixels in 0..1 as the model sees them, not normalised.

    Attributes:
        image: the file.
        method: `fgsm`, `ifgsm` or `pgd`; `norm`: `linf` or `l2`.
        epsilon: bound on the change in that norm; `step_size`: the same for one of `steps`. For the smallest change
            both are those of the run that found it.
        target, target_label: the class to be mistaken for; None for any other.
        before, after, after_saved: predictions for the image, the adversarial image, and its 8-bit file, read back.
        after_prepared: for the file resized and cropped once more, as in the model's preprocessing.
        classes: every class among the best of the first three, and the target.
        linf, l2: distance of the adversarial image from the image, as the largest change of a value and as the
            Euclidean length; `linf_saved`, `l2_saved`: of the file.
        success: whether the model was fooled: another prediction, or the target; `success_saved`: by the file;
            `success_prepared`: by the file resized and cropped once more.
        iterations: gradient steps from the start of run `best_run` (from 0) to the adversarial image.
        losses: of each run, before its first step and after every one, the cross-entropy in nats. `loss_before`: of
            the image itself.
        forward_passes, backward_passes: in all runs.
        stuck_runs: number of runs that ended early because the gradient was exactly zero.
        magnification: of the change in `perturbation.png`, around middle gray (128).
        files: names inside `out_dir`; None and empty where nothing was saved.
        smallest: whether the smallest change was searched for, by bisection over epsilon, instead of any change
            within epsilon.
        not_within: the largest epsilon within which that search found none; 0 if it always found one.
    """

    document: ClassVar[str] = "attack"
    image: str
    method: str
    norm: str
    epsilon: float
    steps: int
    step_size: float
    targeted: bool
    target: int | None
    target_label: str | None
    before: Answer
    after: Answer
    after_saved: Answer
    after_prepared: Answer
    classes: tuple[ClassShift, ...]
    linf: float
    l2: float
    linf_saved: float
    l2_saved: float
    success: bool
    success_saved: bool
    success_prepared: bool
    iterations: int
    best_run: int
    loss_before: float
    losses: tuple[tuple[float, ...], ...]
    forward_passes: int
    backward_passes: int
    stuck_runs: int
    magnification: int
    out_dir: str | None
    files: tuple[str, ...]
    hooks: tuple[HookReport, ...] = ()
    smallest: bool = False
    not_within: float | None = None


@dataclass(frozen=True, slots=True)
class KeptImages:
    """What a record keeps to draw an attack. Tensors are `(C, H, W)` uint8."""

    before: Any  # the image as the model sees it
    after: Any  # the adversarial image, read back from `png`
    png: bytes  # its file
