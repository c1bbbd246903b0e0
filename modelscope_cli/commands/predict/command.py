"""`modelscope predict`."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from modelscope_cli.analysis.interventions import HookFindings, read_hooks
from modelscope_cli.errors import UsageError
from modelscope_cli.shell import console as _console
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.output import destination, emit, emit_parts, is_streamed
from modelscope_cli.shell.run import bind, conclude, load, make_run, open_for, read_options, set_up


class Activation(StrEnum):
    """What turns logits into scores."""

    softmax = "softmax"
    sigmoid = "sigmoid"


def predict(
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE",
            help="Image files, folders, globs, '-' for standard input, or one tensor file (.pt, .npy, "
            ".safetensors).",
        ),
    ],
    top: Annotated[int, typer.Option("--top", min=1, metavar="K", help="How many classes an image.")] = 5,
    labels: Annotated[
        Path | None,
        typer.Option(
            "--labels",
            metavar="FILE",
            help="Names of the classes, instead of those of the weights: one a line, a JSON list, or JSON "
            "{index: label}.",
        ),
    ] = None,
    activation: Annotated[
        Activation,
        typer.Option(
            "--activation",
            help="softmax: exactly one class a picture, the scores add up to 1. sigmoid: several classes or "
            "none, each scored on its own.",
        ),
    ] = Activation.softmax,
    threshold: Annotated[
        float | None,
        typer.Option(
            "--threshold",
            min=0.0,
            max=1.0,
            metavar="P",
            help="With sigmoid: a class is on from this score, else from 0.5.",
        ),
    ] = None,
    temperature: Annotated[
        float,
        typer.Option("--temperature", metavar="T", help="Divide the logits by this; above 1 is less sure."),
    ] = 1.0,
    hook: opt.HookOpt = None,
    model: opt.ModelOpt = "resnet34",
    weights: opt.WeightsOpt = "auto",
    checkpoint: opt.CheckpointOpt = None,
    strict: opt.StrictOpt = True,
    num_classes: opt.NumClassesOpt = None,
    model_arg: opt.ModelArgsOpt = None,
    device: opt.DeviceOpt = "auto",
    dtype: opt.DtypeOpt = "float32",
    seed: opt.SeedOpt = 0,
    offline: opt.OfflineOpt = False,
    size: opt.SizeOpt = None,
    mean: opt.MeanOpt = None,
    std: opt.StdOpt = None,
    normalize: opt.NormalizeOpt = True,
    batch: opt.BatchOpt = None,
    columns: opt.ColumnsOpt = None,
    format: opt.FormatOpt = "auto",
    json: opt.JsonOpt = False,
    output: opt.OutputOpt = None,
    quiet: opt.QuietOpt = False,
    debug: opt.DebugOpt = False,
) -> None:
    """Print what a classifier says about pictures: the likeliest classes of each, one row a class.

    Any number of pictures goes through in batches; tsv and csv are written row by row as the answers come.

    Examples:

      modelscope predict samples/star.png -m squeezenet1_1 -c samples/shapes_squeezenet1_1.safetensors

      modelscope predict 'photos/*.jpg' --top 1 --columns image,label,score

      modelscope predict samples/composition.jpg -m samples/tiny_resnet.py:TinyResNet --activation sigmoid
    """
    options = {**locals(), "input_shape": None}
    from modelscope_cli.commands.predict.table import predict_columns, predict_sheet
    from modelscope_cli.inputs.labels import read_labels
    from modelscope_cli.records.predict import Prediction, PredictRecord
    from modelscope_cli.report.sheet import choose_columns

    set_up(quiet, debug)
    where = destination(format, json, output)
    request, given = read_options(options)
    hooks = read_hooks(hook, "predict")
    choose_columns(predict_columns(), columns)
    if not 0 < temperature < float("inf"):
        raise UsageError(f"'--temperature {temperature:g}' is no number above 0", "--temperature 2")
    is_sigmoid = activation == Activation.sigmoid
    if threshold is not None and not is_sigmoid:
        raise UsageError(f"'--threshold {threshold:g}' is for sigmoid", "--activation sigmoid")
    named = read_labels(labels) if labels is not None else None

    from modelscope_cli.analysis.predictions.scores import (
        check_labels,
        name_guesses,
        stream_logits,
        top_guesses,
    )

    loaded = load(request)
    inputs = open_for(given, loaded)
    bound = bind(hooks, loaded, next(iter(inputs)).args, seed)
    n_classes = 0

    def predictions() -> Iterator[tuple[Prediction, ...]]:
        nonlocal n_classes
        n_done = 0
        images = _console.track("images", inputs, inputs.n_batches)
        for part, logits in stream_logits(loaded.module, images, bound.interventions):
            n_classes = logits.shape[1]
            if named is not None:
                check_labels(named, n_classes, str(labels))
            guesses = top_guesses(logits, top, named or loaded.categories, activation.value, temperature)
            yield name_guesses(guesses, part, n_done)
            n_done += len(guesses)

    def record(some: tuple[Prediction, ...], found: HookFindings = ((), ())) -> PredictRecord:
        reports, warnings = found
        return PredictRecord(
            run=make_run(
                "predict", loaded, inputs.info, seed, (*loaded.warnings, *inputs.warnings, *warnings)
            ),
            predictions=some,
            activation=activation.value,
            temperature=temperature,
            classes=n_classes,
            threshold=(0.5 if threshold is None else threshold) if is_sigmoid else None,
            hooks=reports,
        )

    if is_streamed(where):
        emit_parts(where, (predict_sheet(record(some), columns) for some in predictions()))
        conclude(bound)
        return
    whole = tuple(prediction for some in predictions() for prediction in some)
    result = record(whole, conclude(bound))
    emit(where, predict_sheet(result, columns), result.to_dict())
