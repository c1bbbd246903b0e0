"""What A and B of `diff` mean, before anything heavy is imported."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from modelscope_cli.checkpoints.file_type import CHECKPOINT_SUFFIXES
from modelscope_cli.errors import UsageError
from modelscope_cli.inputs.files import PICTURE_SUFFIXES
from modelscope_cli.models.names import model_names
from modelscope_cli.models.request import ModelRequest, is_import

# What torch.testing.assert_close allows two floats of a dtype to differ by, relative to each other: its `rtol`.
ROUNDING = {"float32": 1.3e-6, "float16": 1e-3, "bfloat16": 1.6e-2}
_INPUT_SUFFIXES = PICTURE_SUFFIXES | {".npy"}


@dataclass(frozen=True, slots=True)
class Named:
    """One of the two: a model, perhaps with a checkpoint, or (without a model) the tensors of a checkpoint."""

    model: str | None
    checkpoint: Path | None = None


@dataclass(frozen=True, slots=True)
class DiffRequest:
    """What is to be compared.

    Attributes:
        is_left_out: nobody named a B, so it is A once more.
        files: the input, as typed.
        is_run: there is an input, so both are run; otherwise their tensors are compared.
    """

    a: Named
    b: Named
    is_left_out: bool
    files: tuple[str, ...]
    is_run: bool


def read_names(
    a: str, b: str | None, inputs: Sequence[str], model: str | None, *, has_shape: bool
) -> DiffRequest:
    """Tell models, checkpoints and inputs apart.

    A checkpoint is run in `model`, or in what the other side names, or else in the architecture it is recognised
    as; without an input its tensors are compared as they are.
    """
    if b is not None and not holds_weights(b) and _is_input(b):
        inputs = (b, *inputs)
        b = None
    is_run = has_shape or bool(inputs)
    texts = (a, b or a)
    models = [text for text in texts if not holds_weights(text)] if is_run else []
    runs_in = model or next(iter(models), None)

    def named(text: str) -> Named:
        is_recognised = is_run and runs_in is None  # loading it names its architecture
        return Named(runs_in, Path(text)) if holds_weights(text) and not is_recognised else Named(text)

    return DiffRequest(named(texts[0]), named(texts[1]), b is None, tuple(inputs), is_run)


def holds_weights(text: str) -> bool:
    """Tell a checkpoint, a file or folder, from the name of a model and from a picture."""
    if is_import(text) or text.lower() in model_names():
        return False
    path = Path(text)
    is_set = text.endswith(".index.json") or (path / ".metadata").is_file()
    return is_set or path.suffix.lower() in CHECKPOINT_SUFFIXES


def _is_input(text: str) -> bool:
    """Tell a picture, a folder or a glob from the name of a model, perhaps a mistyped one."""
    if is_import(text) or text.lower() in model_names():
        return False
    suffix = Path(text).suffix.lower()
    return text == "-" or suffix in _INPUT_SUFFIXES or any(mark in text for mark in "*?[") or _is_there(text)


def _is_there(text: str) -> bool:
    path = Path(text)
    return path.exists() and path.suffix != ".py"


def request_b(
    a: ModelRequest,
    asked: DiffRequest,
    *,
    option: Path | None,
    checkpoint: Path | None,
    weights: str | None,
    device: str | None,
    dtype: str | None,
    seed: int | None,
) -> ModelRequest:
    """Return what B is: A, but for its name and what its own options say.

    Args:
        option: `--checkpoint`, which holds for both; what follows are the options of B.

    Raises:
        UsageError: two checkpoints for B (exit 2).
    """
    named = asked.b.checkpoint
    if named is not None and checkpoint is not None and not asked.is_left_out:
        message = f"'{named}' and '--b-checkpoint {checkpoint}' are two checkpoints for B"
        raise UsageError(message, f"leave out --b-checkpoint {checkpoint}")
    # Weights of B's own take the place of a checkpoint that was only meant for it because it was for A.
    inherited = None if weights else option
    own = checkpoint or (named if not (weights and asked.is_left_out) else None)
    assert asked.b.model is not None
    return replace(
        a,
        model=asked.b.model,
        weights=weights or ("auto" if own else a.weights),
        checkpoint=own or inherited,
        device=device or a.device,
        dtype=dtype or a.dtype,
        seed=a.seed if seed is None else seed,
    )


def check_tolerance(asked: float | None) -> None:
    """Find a tolerance that means nothing before anything runs.

    Raises:
        UsageError: not a number from 0 up (exit 2).
    """
    if asked is not None and not 0 <= asked < float("inf"):
        raise UsageError(f"'--tolerance {asked:g}' is no relative error", "--tolerance 1e-3")


def choose_tolerance(asked: float | None, dtypes: Sequence[str] | None) -> tuple[float, str]:
    """Return the tolerance on the relative L2, and where it comes from.

    Args:
        dtypes: both models run in; None where tensors are compared, between which nothing rounds.
    """
    if asked is not None:
        return asked, "asked for"
    if dtypes is None:
        return 0.0, "exact"
    coarsest = max(dtypes, key=lambda dtype: ROUNDING[dtype])
    return ROUNDING[coarsest], f"what torch.testing.assert_close allows {coarsest}"


def refuse_given(options: Mapping[str, object], reason: str, hint: str) -> None:
    """Refuse the first of these that was given: what is typed is obeyed or an error.

    Raises:
        UsageError: one is neither None nor False (exit 2).
    """
    for option, value in options.items():
        if value is not None and value is not False:
            first = value[0] if isinstance(value, list) else value
            typed = option if value is True else f"{option} {first}"
            raise UsageError(f"'{typed}' {reason}", hint)
