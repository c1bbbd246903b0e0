"""`modelscope diff`."""

import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from typer import Argument, Option

import modelscope_cli as ms
from modelscope_cli.errors import UsageError
from modelscope_cli.records.naming import LAST_SEED
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.options import ImagesArgument, InputOptions, LayerOptions, Mode, ModelOptions
from modelscope_cli.shell.output import emit
from modelscope_cli.shell.output_options import OutputOptions
from modelscope_cli.shell.parameters import command

DIFFERENT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionsOfB:
    """The settings of B, where they are not those of A."""

    panel: ClassVar[str] = "B, where it differs from A"

    b_weights: Annotated[str | None, Option(metavar="WEIGHTS", help="The weights of B.")] = None
    b_checkpoint: Annotated[Path | None, Option(metavar="FILE", help="The checkpoint to load into B.")] = None
    b_key: Annotated[str | None, Option(metavar="NAME", help="The entry of B's checkpoint to load.")] = None
    b_device: Annotated[str | None, Option(metavar="DEVICE", help="The device of B.")] = None
    b_dtype: Annotated[str | None, Option(metavar="DTYPE", help="The dtype of B.")] = None
    b_mode: Annotated[Literal["auto", "eval", "train"] | None, Option(help="The mode of B.")] = None
    b_seed: Annotated[
        int | None,
        Option(metavar="N", min=0, max=LAST_SEED, help="The seed of B's random weights and of its dropout."),
    ] = None


@command
def diff(
    a: Annotated[
        str | None,
        Argument(metavar="A", help="A model, a checkpoint file, or a saved result.", show_default=False),
    ] = None,
    b: Annotated[
        str | None,
        Argument(metavar="B", help="What to compare A with; by default, A with the --b-... settings."),
    ] = None,
    images: ImagesArgument = None,
    tolerance: Annotated[
        float | None,
        Option(
            "--tolerance",
            "-t",
            metavar="T",
            min=0,
            help="The largest relative L2 (for results: relative difference) that counts as equal.",
            show_default="0 for tensors and results, the rounding of the dtype for statistics, 1.3e-6 for "
            "activations; in float16 and bfloat16, 4 roundoffs times the square root of the number of layers",
        ),
    ] = None,
    mode: Mode = "auto",
    model: Annotated[
        str | None,
        Option(
            "--model",
            "-m",
            metavar="MODEL",
            rich_help_panel="Model",
            help="The model to load a checkpoint into; or A, if it is the only model or checkpoint given.",
        ),
    ] = None,
    all: Annotated[
        bool, Option("--all", rich_help_panel="Output", help="Show every row, including equal ones.")
    ] = False,
    *,
    of_b: OptionsOfB,
    on: ModelOptions,
    data: InputOptions,
    layers: LayerOptions,
    show: OutputOptions,
) -> int:
    """Compare two models or checkpoints; exit with 1 if they differ.

    Without an input, the weights are compared: tensors that were added, removed, renamed, reshaped, retyped or
    changed. With images or --input-shape, the outputs of all layers are compared call by call, and the first
    that diverges is named. Both models run side by side on the input that A expects, with one activation of each
    in memory. Layers with different names are matched by weights, shape and value; if architectures differ, only
    the outputs are compared. Two saved results of the same command (documents, pages or folders) are compared
    number by number, and so are their settings.
    Options such as --b-dtype compare one model under two settings.

    Examples:

      modelscope diff demo/tiny_resnet.safetensors demo/sick.safetensors

      modelscope diff demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors --b-dtype
        bfloat16

      modelscope diff resnet18 --weights none --b-seed 1 --input-shape 1,3,224,224

      modelscope stats resnet18 demo/star.png --weights none -o here.json

      modelscope stats resnet18 demo/star.png --weights none --seed 1 -o there.json

      modelscope diff here.json there.json --html difference.html
    """
    from modelscope_cli.report.diff.table import EVERY_COLUMN, diff_sheet

    where = replace(show, all=all).begin()
    where.layout.check(EVERY_COLUMN)
    side_a, side_b, files = _sides(a, b, images or [], model)
    record = ms.diff(
        on.request(side_a),
        side_b,
        data.request(files, on.seed),
        layer=layers.layer or (),
        exclude=layers.exclude or (),
        tolerance=tolerance,
        mode=mode,
        model=model,
        **asdict(of_b),
        progress=PROGRESS,
    )
    emit(where, diff_sheet(record, show_all=all), record)
    return 0 if record.is_same else DIFFERENT


def _sides(
    a: str | None, b: str | None, images: list[str], model: str | None
) -> tuple[str, str | None, list[str]]:
    """Return A, B and the images; A is that of --model if none is given by position."""
    from modelscope_cli.analysis.comparison.request import holds_weights, is_input
    from modelscope_cli.models.weights_file import is_model_file, is_weights_file

    if a is None or (model and is_input(a)):
        if model is None:
            raise UsageError("missing argument 'A'", "modelscope diff --help")
        return model, a, [word for word in (b, *images) if word is not None]
    third = next(filter(is_model_file, images), None)
    if third is not None:  # after a model, two checkpoints were meant to be compared
        are_two = b is not None and is_weights_file(b) and not is_weights_file(a)
        hint = shlex.join(["modelscope", "diff", b or "", third]) if are_two else ""
        hint = hint or f"leave out {shlex.quote(third)}"
        raise UsageError(f"'{third}' contains a model, not an image", hint)
    sides = [side for side in (a, b) if side is not None and not is_input(side)]
    if model is not None and model not in sides and not any(map(holds_weights, sides)):
        raise UsageError(
            f"'{a}' and '--model {model}' both name a model", f"leave out --model {shlex.quote(model)}"
        )
    return a, b, images
