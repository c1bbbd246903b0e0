"""`train`: train a classifier briefly and record what happens inside it."""

from contextlib import nullcontext
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from modelscope_cli.models.request import Model, seed_of
from modelscope_cli.output_files import OutputFolder
from modelscope_cli.records.display import report
from modelscope_cli.records.keywords import ClassifierKeywords, spelled_out
from modelscope_cli.records.naming import NEAR_ZERO
from modelscope_cli.records.progress import SILENT, Progress, counting
from modelscope_cli.records.run import invocation
from modelscope_cli.records.train import TRAINED_WEIGHTS, TrainRecord
from modelscope_cli.training.request import check_data, name_model, request_of


@spelled_out
def train(
    model: "Model" = "resnet18",
    data: Any = None,
    *,
    loaders: str | None = None,
    pictures: int = 2000,
    size: int = 64,
    steps: int = 100,
    batch: int = 32,
    lr: float = 0.05,
    schedule: str = "constant",
    clip_norm: float | None = None,
    weights: str = "none",
    every: int | None = None,
    out: str | PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
    **keywords: Unpack[ClassifierKeywords],
) -> TrainRecord:
    """Train a classifier for a few steps and return what happens inside it.

    Your module does not change: a copy is trained. With `out`, the trained weights are saved.

    Args:
        model: a name or file as on the command line, an `nn.Module`, or the result of `load`.
        data: a folder with one folder of images per class; a `DataLoader` of `(images, labels)`, or a pair, whose
            second is for validation; None for drawn shapes.
        loaders: train on a DataLoader of your own. NAME may also be a function that returns one, or (train,
            validation).
        pictures: how many shapes to draw.
        size: width and height of each image, in pixels.
        steps: how many optimizer steps to take.
        batch: images per step. A loader keeps its own batches.
        lr: the learning rate, or its peak.
        schedule: constant, one-cycle, or cosine.
        clip_norm: scale all gradients to this norm.
        every: record every K-th step, instead of the first 16 and then five in each doubling, as `watch` does.
        out: folder for the report, the figure, the table and the weights; `force` allows one that is not empty.

    Raises:
        UsageError: a keyword, a pattern or a combination that is not valid (exit 2 on the command line).
        CannotRunError: model or data cannot be loaded, the forward raises an error, a file cannot be written (exit
            4).
    """
    invoked = invocation()
    progress = progress or SILENT
    model = name_model(model, weights, keywords)
    request = request_of(
        keywords,
        steps=steps,
        batch=batch,
        lr=lr,
        schedule=schedule,
        clip_norm=clip_norm,
        every=every,
        seed=seed_of(model, keywords),
    )
    check_data(data, loaders, pictures, size)
    folder = OutputFolder(Path(out), force) if out is not None else None
    if folder is not None:
        folder.check()

    from modelscope_cli.hooks.random_states import kept_random_states
    from modelscope_cli.tensor_file import write_tensors
    from modelscope_cli.training.classifier import open_classifier
    from modelscope_cli.training.data import open_data
    from modelscope_cli.training.fit import train_once

    with (
        kept_random_states(),
        folder.open() if folder is not None else nullcontext(Path()) as stage,
        counting(progress, "steps", steps) as advance,
    ):
        source = open_data(data, loaders, pictures, size, request.seed)
        classifier = open_classifier(model, weights, keywords, source, request, progress)
        trained = classifier.loaded.module
        training = train_once(trained, source, request, classifier.place, advance=advance)
        record = TrainRecord(
            run=classifier.run("train", source, request.seed, invoked, progress),
            training=training,
            data=source.info(classifier.shape),
            near_zero=NEAR_ZERO,
        )
        if folder is not None:
            write_tensors(stage / TRAINED_WEIGHTS, trained.state_dict(), categories=list(source.classes))
            record = report().save_within(record, stage, folder.path)
    if folder is not None:
        progress.note(f"wrote {folder.path} ({', '.join(record.files)})")
    return record
