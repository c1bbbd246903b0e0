"""The request for a training, checked before torch is imported. Standard library."""

import shlex
from dataclasses import dataclass
from os import PathLike
from typing import Any, cast

from modelscope_cli.errors import UsageError
from modelscope_cli.models.request import Model, as_request
from modelscope_cli.records.keywords import DEFAULTS, ClassifierKeywords, LearningKeywords, ModelKeywords
from modelscope_cli.records.naming import LONGEST_RUN
from modelscope_cli.records.refusals import check_range, check_word

OPTIMIZERS = ("sgd", "momentum", "nesterov", "adamw")
SCHEDULES = ("constant", "one-cycle", "cosine")


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """How to train."""

    steps: int = 100  # optimizer steps
    batch: int = 32  # images in each
    optimizer: str = "momentum"
    lr: float = 0.05  # the constant learning rate, or the peak of the schedule
    schedule: str = "constant"
    clip_norm: float | None = None  # largest global norm of the gradients; None for no clipping
    every: int | None = None  # record every this many steps; None for the steps that `watch` records
    seed: int = 0

    def __post_init__(self) -> None:
        check_range("steps", self.steps, least=1, most=LONGEST_RUN)
        check_range("batch", self.batch, least=1)
        check_range("every", self.every, least=1, most=LONGEST_RUN)
        check_range("lr", self.lr, above=0)
        check_range("clip_norm", self.clip_norm, above=0)
        check_word("optimizer", self.optimizer, OPTIMIZERS)
        check_word("schedule", self.schedule, SCHEDULES)


def request_of(keywords: ClassifierKeywords, **options: Any) -> TrainRequest:
    """Return the request made of the keywords that all trainings share and those of one function."""
    merged = {**DEFAULTS, **keywords}
    patterns = {"freeze", "train_only"}  # resolved with the model
    shared = LearningKeywords.__annotations__.keys() - patterns
    return TrainRequest(**{name: merged[name] for name in shared}, **options)


def name_model(model: "Model", weights: str, keywords: ClassifierKeywords) -> "Model":
    """Return the request for a named model; a module is returned unchanged."""
    if not isinstance(model, str | PathLike):
        return model
    return as_request(model, cast("ModelKeywords", {**keywords, "weights": weights}))


def check_data(data: Any, loaders: str | None, pictures: int, size: int) -> None:
    """Refuse two sources of data, and drawn shapes that are too few, too small or too large (exit 2)."""
    check_range("pictures", pictures, least=20)
    check_range("size", size, least=8, most=4096)
    if loaders is not None and data is not None:
        source = f"the folder '{data}'" if isinstance(data, str | PathLike) else "the data passed in"
        raise UsageError(
            f"'--loaders {loaders}' and {source} cannot be combined",
            f"leave out --loaders {shlex.quote(loaders)}",
        )
