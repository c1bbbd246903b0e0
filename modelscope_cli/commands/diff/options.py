"""The options that only `diff` has: of both sides, and of B where it is not as A."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from modelscope_cli.errors import UsageError
from modelscope_cli.records.bounds import LAST_SEED
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.numbers import whole

_B = "B, where it differs from A"


@dataclass(frozen=True, slots=True)
class BothOptions(groups.LoadOptions):
    """The models as they are said for both sides."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            help="The model that a checkpoint is loaded into; without another model or checkpoint, A.",
            rich_help_panel="Model",
        ),
    ] = None

    def take(
        self, a: str | None, b: str | None, images: list[str] | None
    ) -> tuple[str, str | None, list[str] | None]:
        """Return A, B and the images; A is that of --model where none is named by position."""
        from modelscope_cli.analysis.comparison.request import holds_weights, is_input

        if a is None or (self.model and is_input(a)):
            if self.model is None:
                raise UsageError("missing argument 'A'", "modelscope diff --help")
            return self.model, a, [word for word in (b, *(images or ())) if word is not None]
        self._refuse_third(a, b, images or [])
        sides = [side for side in (a, b) if side is not None and not is_input(side)]
        if self.model is not None and self.model not in sides and not any(map(holds_weights, sides)):
            hint = f"leave out --model {shlex.quote(self.model)}"
            raise UsageError(f"'{a}' and '--model {self.model}' are two models", hint)
        return a, b, images

    def _refuse_third(self, a: str, b: str | None, images: list[str]) -> None:
        """Refuse a checkpoint behind A and B: with a model before them, the two are meant."""
        from modelscope_cli.models.weights_file import is_model_file, is_weights_file

        third = next(filter(is_model_file, images), None)
        if third is None:
            return
        hint = f"leave out {shlex.quote(third)}"
        if b is not None and is_weights_file(b) and not is_weights_file(a):
            hint = shlex.join(["modelscope", "diff", b, third])
        raise UsageError(f"'{third}' holds a model, not an image", hint)


@dataclass(frozen=True, slots=True)
class BOptions:
    """What is said of B alone."""

    b_weights: Annotated[
        str | None,
        typer.Option("--b-weights", metavar="WEIGHTS", help="The weights of B.", rich_help_panel=_B),
    ] = None
    b_checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--b-checkpoint", metavar="FILE", help="The checkpoint to load into B.", rich_help_panel=_B
        ),
    ] = None
    b_key: Annotated[
        str | None,
        typer.Option(
            "--b-key", metavar="NAME", help="The entry of B's checkpoint to load.", rich_help_panel=_B
        ),
    ] = None
    b_device: Annotated[
        str | None, typer.Option("--b-device", metavar="DEVICE", help="The device of B.", rich_help_panel=_B)
    ] = None
    b_dtype: Annotated[
        str | None, typer.Option("--b-dtype", metavar="DTYPE", help="The dtype of B.", rich_help_panel=_B)
    ] = None
    b_mode: Annotated[
        opt.Mode | None, typer.Option("--b-mode", help="The mode of B.", rich_help_panel=_B)
    ] = None
    b_seed: Annotated[
        int | None,
        whole(
            "--b-seed",
            metavar="N",
            most=LAST_SEED,
            min=0,
            help="The seed of B's random weights and of its dropout.",
            rich_help_panel=_B,
        ),
    ] = None
    b_hook: Annotated[
        list[str] | None,
        typer.Option(
            "--b-hook", metavar="HOOK", help="Change values inside B (repeatable).", rich_help_panel=_B
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class DiffOutputOptions(groups.OutputOptions):
    """How the result is shown; it leaves out what is the same, unless all is asked for."""

    all: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Show every row, including what is the same.",
            rich_help_panel="Output",
        ),
    ] = False


BOTH, B, OUTPUT = BothOptions(), BOptions(), DiffOutputOptions()
