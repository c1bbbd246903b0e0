"""Gather the evidence that `check` judges, and the source lines of the layers."""

import inspect
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from torch.nn import Module

from modelscope_cli.analysis.activations.batch_norm import never_saw_a_batch
from modelscope_cli.analysis.health.checkup import gather
from modelscope_cli.analysis.predictions.folder_truth import find_truth
from modelscope_cli.analysis.predictions.preprocessing_check import tell_of_size
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.hooks.layers import refuse_layouts
from modelscope_cli.models.request import Model
from modelscope_cli.paths import in_repository
from modelscope_cli.records.check_evidence import Evidence
from modelscope_cli.records.findings import SourceLine
from modelscope_cli.records.keywords import LabelledKeywords
from modelscope_cli.records.progress import Progress
from modelscope_cli.records.run import Run


class Sources:
    """The source lines of a model's layers, in the current repository or below the current folder."""

    def __init__(self, model: Module) -> None:
        self._modules = dict(model.named_modules(remove_duplicate=False))

    def find(self, layer: str | None) -> SourceLine | None:
        """Return the line that creates a layer in its parent's class, or its class. None if neither is in
        the repository.

        Args:
            layer: as findings name it, `block1.relu#1`; None for the model.
        """
        name = (layer or "").partition("#")[0]
        child = ""
        while True:
            line = self._in_class(self._modules.get(name), child)
            if line is not None or not name:
                return line
            name, _, child = name.rpartition(".")

    def _in_class(self, module: Module | None, child: str) -> SourceLine | None:
        try:
            file = in_repository(inspect.getsourcefile(type(module)))
            lines, first = inspect.getsourcelines(type(module)) if file else ([], 0)
        except (TypeError, OSError):  # a class defined in C, or interactively
            return None
        if file is None:
            return None
        makes = re.compile(rf"\bself\.{re.escape(child)}\s*(:[^=]+)?=(?!=)")
        offset = next((i for i, line in enumerate(lines) if child and makes.search(line)), 0)
        return SourceLine(file, first + offset)


@dataclass(frozen=True, slots=True)
class Examined:
    """The evidence to judge, and the header of the record."""

    run: Run
    evidence: Evidence
    n_images: int = 0
    is_training: bool = False
    made_at: Callable[[str | None], SourceLine | None] = lambda layer: None


def _only_class(inputs: Any, files: Sequence[str], categories: Sequence[str] | None) -> str | None:
    """Return the one folder of all images, if it is named like a class or was found in a folder of folders."""
    folders = {os.path.dirname(os.path.abspath(file)) for file in files}
    if len(folders) != 1:
        return None
    (folder,), given = folders, getattr(inputs, "files", inputs)
    words = [given] if isinstance(given, str | PathLike) else given if isinstance(given, list | tuple) else []
    is_below = any(
        isinstance(word, str | PathLike) and os.path.isdir(word) and os.path.abspath(word) != folder
        for word in words
    )
    name = os.path.basename(folder)
    return name if is_below or name.casefold() in {one.casefold() for one in categories or ()} else None


def examine(
    model: Model,
    inputs: Any,
    keywords: LabelledKeywords,
    needs: frozenset[str],
    mode: str,
    progress: Progress | None,
) -> Examined:
    """Run the model and gather the evidence that the rules need."""
    labels = keywords.get("labels")
    subject = Subject("check", model, inputs, keywords, labels=labels, needs_weights=True, progress=progress)
    refuse_layouts(subject.loaded.module, is_sparse_known=False)
    subject.open(is_training=True, is_shuffled=True)
    tell_of_size(subject)
    is_training = mode == "train"
    if mode == "auto" and never_saw_a_batch(subject.loaded.module)():
        subject.progress.note("mode: train (auto; no batch norm has seen a batch yet)")
        is_training = True
    unlabelled: list[str] = []  # why the accuracy is not computed
    if is_training or subject.loaded.info.weights.resolved == "random":
        unlabelled.append(f"accuracy {'in train mode' if is_training else 'of random weights'} means nothing")
    elif "accuracy" in needs:
        find_truth(subject, "the accuracy is not computed", unlabelled.append)

    evidence = gather(
        subject.loaded,
        subject.inputs,
        needs,
        is_training=is_training,
        is_real=subject.inputs.info.source != "noise",
        seed=subject.seed,
        track=subject.track,
    )
    only_class = _only_class(inputs, subject.inputs.info.files, subject.loaded.categories)
    if unlabelled and evidence.is_real and evidence.forward is not None and evidence.forward.answers:
        evidence.missing.setdefault("accuracy", unlabelled[0])
    evidence = replace(evidence, only_class=only_class)
    subject.conclude()
    sources = Sources(subject.loaded.module)
    return Examined(subject.run(), evidence, subject.inputs.n_images, is_training, sources.find)
