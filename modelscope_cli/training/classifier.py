"""The model to train: loaded or copied, with the number of classes of the data, changed and frozen as requested."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from torch import nn

from modelscope_cli.analysis.gradients.freezing import set_trainable
from modelscope_cli.analysis.subject import header, load
from modelscope_cli.analysis.supported import check_classifier, check_onnx
from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.layers import list_layers
from modelscope_cli.models.architecture import copied
from modelscope_cli.models.hubs import split_hub
from modelscope_cli.models.importspec import imported_architecture
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.models.model_of_checkpoint import recognise
from modelscope_cli.models.request import (
    Model,
    ModelRequest,
    is_checkpoint,
    is_import,
    is_program,
    parse_model_args,
)
from modelscope_cli.records.keywords import ClassifierKeywords, Keywords, as_tuple
from modelscope_cli.records.progress import Progress
from modelscope_cli.records.run import Invocation, Notice, Run, Shape
from modelscope_cli.training.callbacks import ModelPlace
from modelscope_cli.training.data import DataSource, TrainingData
from modelscope_cli.training.request import TrainRequest

_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True, slots=True)
class Classifier:
    """A model that may be changed: built for this training, or a copy of the caller's module."""

    loaded: LoadedModel
    shape: Shape  # of one batch of inputs
    warnings: tuple[Notice, ...]  # why the result may be unreliable

    @property
    def place(self) -> ModelPlace:
        return ModelPlace(self.loaded.device, self.loaded.dtype)

    def run(
        self, command: str, source: DataSource, seed: int, invoked: Invocation, progress: Progress
    ) -> Run:
        """Return the header of the record, and warn of the files that could not be read."""
        skipped = source.warnings()
        for warning in skipped:
            progress.warn(warning.message)
        input_info = source.input_info(self.shape)
        return header(command, self.loaded, input_info, seed, (*self.warnings, *skipped), invoked)


def open_classifier(
    model: "Model",
    weights: str,
    keywords: ClassifierKeywords,
    source: DataSource,
    request: TrainRequest,
    progress: Progress,
) -> Classifier:
    """Load or copy a classifier, and freeze it as requested.

    Args:
        model: a request, or the caller's module, which is not changed.
        weights: refused for a module, as some of `keywords` are.
    """
    if isinstance(model, ModelRequest) and is_program(model.model):
        check_onnx("train", model.model)
    model_keywords = {**keywords, **({} if weights == "none" else {"weights": weights})}
    loaded = load(_with_classes(model, source.n_classes), cast("Keywords", model_keywords), progress)
    check_classifier(loaded)
    if not isinstance(model, ModelRequest) or is_import(model.model):
        hint = "give 'path/to/file.py:Class', which is built again each time"
        module = copied(loaded.module, "your model cannot be copied for training", hint)
        loaded = replace(loaded, module=module)
    if isinstance(source, TrainingData):
        convolution = next((one for one in loaded.module.modules() if isinstance(one, nn.Conv2d)), None)
        is_gray = convolution is not None and convolution.in_channels == 1
        source.training.is_gray = source.held_out.is_gray = is_gray
        if source.n_training < request.batch:
            progress.note(f"batch: all {source.n_training} training images, fewer than {request.batch}")
    with source.as_found():
        inputs, _ = next(iter(source.batches(request.batch, request.seed)))
    frozen, trained = as_tuple(keywords.get("freeze")), as_tuple(keywords.get("train_only"))
    notices = freeze_layers(loaded.module, frozen, trained)
    for notice in notices:
        progress.warn(notice.message)
    return Classifier(loaded, tuple(inputs.shape), (*loaded.warnings, *notices))


def _with_classes(model: "Model", n_classes: int | None) -> "Model":
    """Request the number of classes of the data, if the model accepts `num_classes`."""
    if not isinstance(model, ModelRequest) or n_classes is None:
        return model
    takes_classes = not is_checkpoint(recognise(model)[0].model)  # not one that was saved whole
    if is_import(model.model) and not split_hub(model.model)[0]:
        architecture = imported_architecture(model.model, parse_model_args(model.model_args), model.seed)
        takes_classes = architecture.takes_num_classes
    return replace(model, num_classes=n_classes if takes_classes else None)


def freeze_layers(
    model: nn.Module, freeze: Sequence[str] = (), train_only: Sequence[str] = ()
) -> tuple[Notice, ...]:
    """Freeze as requested, in place.

    Warn of batch norms whose parameters are frozen: their running statistics move in train mode all the same.
    """
    set_trainable(model, freeze, train_only)
    if not trainable(model):
        hint = "leave out --freeze" if freeze else "--train-only '*'   trains them anyway"
        state = "every parameter is frozen" if list(model.parameters()) else "the model has no parameters"
        raise UsageError(f"{state}, so there is nothing to train", hint)
    frozen = [
        layer.name
        for layer, module in list_layers(model)
        if isinstance(module, _BATCH_NORM)
        and module.affine
        and not any(parameter.requires_grad for parameter in module.parameters())
    ]
    if not frozen:
        return ()
    message = f"{len(frozen)} frozen batch norms ({frozen[0]} ...) still update their running statistics"
    return (Notice("frozen_statistics", message),)


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters to optimize."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
