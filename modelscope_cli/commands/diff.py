"""`modelscope diff`."""

import shlex

import modelscope_cli as ms
from modelscope_cli.errors import UsageError
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.output import check_plot, emit, save_plot

DIFFERENT = 1

PLACE = 44  # in `modelscope --help`


@command
def diff(call: CommandCall) -> int:
    """Compare two checkpoints, two models, or one model under two settings; exit with 1 if they differ.

    Without an input, the weights are compared: tensors that were added, removed, renamed, reshaped, retyped or
    changed. With images or --input-shape, the outputs of all layers are compared call by call, and the first that
    diverges is named: both models run side by side, on the input as A expects it, with one activation of each in
    memory. Two saved results of one command (documents, pages or folders) are compared number by
    number, with the settings under which they were made.

    Examples:

      modelscope diff demo/tiny_resnet.safetensors demo/sick.safetensors

      modelscope diff demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors --b-dtype
        bfloat16

      modelscope diff resnet18 resnet34 --weights none --input-shape 1,3,224,224 --plot depth.png

      modelscope stats resnet18 demo/star.png --weights none -o here.json

      modelscope stats resnet18 demo/star.png --weights none --seed 1 -o there.json

      modelscope diff here.json there.json --html difference.html
    """
    from modelscope_cli.records.reading import is_result
    from modelscope_cli.report.diff.table import diff_columns, diff_sheet

    where = call.begin()
    where.view.check(diff_columns())
    a, b, images = _sides(call)
    inputs = call.inputs(images)
    if call["plot"] is not None:
        check_plot(call["plot"])
        if is_result(a) or (b is not None and is_result(b)):
            raise UsageError("'--plot' needs models to run, and these are saved results", "leave out --plot")
    record = ms.diff(call.model(a, is_checked=False), b, inputs, **call.keywords(), model=call["model"])
    if call["plot"] is not None:
        save_plot(record, call["plot"])
    emit(where, diff_sheet(record, show_all=call["all"]), record)
    return 0 if record.is_same else DIFFERENT


def _sides(call: CommandCall) -> tuple[str, str | None, list[str] | None]:
    """Return A, B and the images; A is that of --model if none is given by position."""
    from modelscope_cli.analysis.comparison.request import holds_weights, is_input

    a, b, images, model = call["a"], call["b"], call["images"] or [], call["model"]
    if a is None or (model and is_input(a)):
        if model is None:
            raise UsageError("missing argument 'A'", "modelscope diff --help")
        return model, a, [word for word in (b, *images) if word is not None]
    _refuse_third(a, b, images)
    sides = [side for side in (a, b) if side is not None and not is_input(side)]
    if model is not None and model not in sides and not any(map(holds_weights, sides)):
        raise UsageError(
            f"'{a}' and '--model {model}' are two models", f"leave out --model {shlex.quote(model)}"
        )
    return a, b, images


def _refuse_third(a: str, b: str | None, images: list[str]) -> None:
    """Refuse a checkpoint after A and B: after a model, two checkpoints were meant to be compared."""
    from modelscope_cli.models.weights_file import is_model_file, is_weights_file

    third = next(filter(is_model_file, images), None)
    if third is None:
        return
    hint = f"leave out {shlex.quote(third)}"
    if b is not None and is_weights_file(b) and not is_weights_file(a):
        hint = shlex.join(["modelscope", "diff", b, third])
    raise UsageError(f"'{third}' contains a model, not an image", hint)
