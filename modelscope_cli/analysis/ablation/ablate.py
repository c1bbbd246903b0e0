"""`ablate`: the public function."""

from collections.abc import Sequence
from typing import Any, Unpack

from modelscope_cli.analysis.ablation.ablating import Ablating, AblationRequest
from modelscope_cli.analysis.outputs.target_spec import PREDICTED, parse_aim
from modelscope_cli.analysis.predictions.folder_truth import find_truth, guessed_classes
from modelscope_cli.analysis.predictions.preprocessing_check import tell_of_size
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.models.request import Model
from modelscope_cli.records.ablate import AblateRecord
from modelscope_cli.records.keywords import LabelledKeywords, spelled_out
from modelscope_cli.records.naming import some
from modelscope_cli.records.progress import Progress
from modelscope_cli.records.refusals import check_word, refuse_without


@spelled_out
def ablate(
    model: "Model" = "resnet34",
    inputs: Any = None,
    *,
    layer: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    by_channel: bool = False,
    method: str = "zero",
    target: str | int = PREDICTED,
    hook: str | Sequence[str] = (),
    progress: Progress | None = None,
    **keywords: Unpack[LabelledKeywords],
) -> AblateRecord:
    """Ablate the layers of a model one by one, and return how the prediction changes. Only the layers after the
    ablated one are computed again. Over several images, all numbers are means. The model has to output scores of
    classes, of images or of pixels.

    Args:
        model: a name or file as on the command line, an `nn.Module`, or the result of `load`.
        inputs: paths, PIL images, tensors, a dict of arguments by name, a `DataLoader`; None for seeded noise of
            the model's input size.
        layer, exclude: layer patterns.
        by_channel: ablate the channels of each `layer` one by one.
        method: what replaces the output: zeros; the mean of each channel over its positions; or the same values at
            shuffled positions (seeded). If a channel has a single value, channels are averaged or shuffled instead.
        target: which output value to follow: a class index or label, predicted, or mask:CLASS.
        hook: changes to values during the pass, in the syntax of `--hook`.

    Raises:
        UsageError: a keyword, a pattern, a class or a combination that is not valid (exit 2 on the command line).
        CannotRunError: the model cannot be loaded, raises an error, or has no output to explain, or a file cannot
            be read (exit 4).
    """
    check_word("method", method, ("zero", "mean", "shuffle"))
    if by_channel and not layer:
        refuse_without("by_channel", True, "layer", "conv@-1")
    subject = Subject(
        "ablate", model, inputs, keywords, hook=hook, labels=keywords.get("labels"), progress=progress
    )
    subject.open()
    tell_of_size(subject)
    find_truth(subject)
    selection = subject.select(layer, exclude)
    request = AblationRequest(method, by_channel, parse_aim(str(target)), subject.seed)
    ablations = Ablating(subject.loaded, selection, request, subject.bind().interventions)
    ablations.run(subject.inputs, subject.progress)
    if ablations.output_note is not None:
        subject.progress.note(ablations.output_note)
    if name := ablations.spared:
        why = "it turns the logits into probabilities"
        subject.progress.note(f"{name} is not ablated: {why}; --layer {name} ablates it")
    if ablations.blocks:
        words = "also loses its residual path, if it has one; the layers inside it show what it adds"
        subject.progress.note(f"{some(ablations.blocks, 3)}: a block {words}")
    if ablations.why_whole:
        subject.progress.note(f"every pass runs the whole model, because it {ablations.why_whole}")
    subject.warn(ablations.warnings)
    best = [index for _, index in guessed_classes(subject.inputs.files, ablations.baseline.predictions)]
    subject.tell_if_degenerate(ablations.degenerate, best)
    hooks = subject.conclude()
    return AblateRecord(
        run=subject.run(),
        baseline=ablations.baseline,
        rows=ablations.rows,
        unranked=ablations.unranked,
        mode=method,
        images=ablations.images,
        classes=ablations.classes,
        output=ablations.output,
        is_independent=ablations.is_independent,
        score_name=ablations.score_name,
        not_called=subject.uncalled(selection, ablations.called),
        hooks=hooks,
    )
