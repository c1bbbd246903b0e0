"""`lrfind`: suggest a learning rate by a range test; the model is restored."""

import math
from os import PathLike
from typing import TYPE_CHECKING, Any, Unpack

from modelscope_cli.analysis.results import Results
from modelscope_cli.errors import UsageError
from modelscope_cli.records.keywords import ClassifierKeywords, spelled_out
from modelscope_cli.records.progress import SILENT, Progress, counting
from modelscope_cli.records.run import invocation
from modelscope_cli.records.train import LrfindRecord
from modelscope_cli.training.request import (
    check_init,
    check_one_source,
    name_model,
    request_of,
    seed_of,
)

if TYPE_CHECKING:
    from modelscope_cli.models.request import Model


@spelled_out
def lrfind(
    model: "Model" = "resnet18",
    data: Any = None,
    *,
    loaders: str | None = None,
    pictures: int = 2000,
    size: int = 64,
    low: float = 1e-5,
    high: float = 10.0,
    steps: int = 100,
    linear: bool = False,
    smoothing: float = 0.9,
    diverged: float = 4.0,
    batch: int = 32,
    weights: str = "none",
    num_classes: int | None = None,
    out: str | PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
    **keywords: Unpack[ClassifierKeywords],
) -> LrfindRecord:
    """Sweep the learning rate while training, and return a suggestion; your module is restored.

    Args:
        model: a name or file as on the command line, a module of yours, or what `load` returned.
        data: a folder with one folder of images a class; a `DataLoader` of `(images, labels)`, or a pair, of which
            the first is used; None for drawn shapes.
        loaders: train on a DataLoader of your own. NAME may also be a function that returns one, or (train,
            validation).
        pictures: how many shapes to draw.
        size: width and height of each image, in pixels.
        low: the first learning rate.
        high: the last learning rate.
        steps: how many steps to make.
        linear: increase the rate linearly instead of exponentially.
        smoothing: smoothing of the loss, from 0 to below 1.
        diverged: stop when the smoothed loss is X times its lowest value.
        batch: images per step. A loader has its own batches.
        out: folder for the report and the figure; `force`: it need not be empty.

    Raises:
        UsageError: a keyword, a pattern or a combination that means nothing (exit 2 on the command line).
        CannotRunError: model or data cannot be loaded, the forward raised, a file cannot be written (exit 4).
    """
    invoked = invocation()
    progress = progress or SILENT
    _check_sweep(low, high)
    model = name_model(model, weights, keywords, num_classes)
    request = request_of(
        keywords,
        steps=steps,
        batch=batch,
        lr=low,
        seed=seed_of(model, keywords),
    )
    check_init(request, model)
    check_one_source(data, loaders)
    results = Results(out, force)

    from modelscope_cli.analysis.subject import header
    from modelscope_cli.hooks.session import HookSession
    from modelscope_cli.training.callbacks import EveryStep, ToDevice
    from modelscope_cli.training.classifier import open_classifier
    from modelscope_cli.training.data import open_data
    from modelscope_cli.training.fit import all_seeded, classification_loss, run_forward
    from modelscope_cli.training.loaders import import_loaders
    from modelscope_cli.training.lr_range import Sweep, find_lr
    from modelscope_cli.training.model import trainable
    from modelscope_cli.training.optim import make_optimizer
    from modelscope_cli.training.save_restore import kept_random_states

    with kept_random_states():
        source = import_loaders(loaders) if loaders else open_data(data, pictures, size, request.seed)
        classes = {} if num_classes is None else {"num_classes": num_classes}
        classifier = open_classifier(
            model,
            weights,
            {**keywords, **classes},  # type: ignore[typeddict-item]
            source,
            request,
            progress,
        )
        net, place = classifier.loaded.module, classifier.place
        with (
            source.as_found(),
            counting(progress, "steps", steps) as advance,
            all_seeded(request.seed, place.device),
            HookSession(net, is_restoring=False, with_gradients=True) as session,
        ):
            test = find_lr(
                net,
                make_optimizer(trainable(net), request),
                source.batches(batch, request.seed),
                classification_loss(request.label_smoothing, source.n_classes),
                Sweep(low, high, steps, linear, smoothing, diverged),
                [ToDevice(place), EveryStep(advance)],
                forward=lambda inputs: run_forward(session, inputs),
            )
        for warning in source.warnings():
            progress.warn(warning.message)
        input_info = source.input_info(classifier.shape)
        warnings = (*classifier.warnings, *source.warnings())
        record = LrfindRecord(
            run=header("lrfind", classifier.loaded, input_info, request.seed, warnings, invoked),
            lr=test.lr,
            loss=test.loss,
            smoothed=test.smoothed,
            suggestion=test.suggestion,
            stopped=test.stopped,
            restored=test.restored,
            hashes=test.hashes,
            optimizer=request.optimizer,
            sweep="linear" if linear else "exponential",
            data=source.source,
        )
    return results.write(record, progress)


def _check_sweep(low: float, high: float) -> None:
    if not (0 < low < high and math.isfinite(high)):
        raise UsageError(
            f"'--from {low:g} --to {high:g}' is not an increasing range above 0", "--from 1e-5 --to 10"
        )
