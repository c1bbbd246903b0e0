"""`grads`: the gradients of one loss in a model."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Unpack

from modelscope_cli.analysis.gradients.request import AUTO, PREDICTED, GradsRequest, LossRequest, check_loss
from modelscope_cli.analysis.outputs.target_spec import parse_aim
from modelscope_cli.errors import UsageError
from modelscope_cli.models.request import Model
from modelscope_cli.records.grads import ClipInfo, GradsRecord
from modelscope_cli.records.keywords import MODES, LabelledKeywords, as_tuple, spelled_out
from modelscope_cli.records.progress import Progress
from modelscope_cli.records.refusals import check_range, check_word, refuse_both


@spelled_out
def grads(
    model: "Model" = "resnet34",
    inputs: Any = None,
    *,
    layer: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    hook: str | Sequence[str] = (),
    loss: str | Callable[..., Any] = "auto",
    target: Any = "auto",
    clip: float | None = None,
    clip_norm: float | None = None,
    freeze: str | Sequence[str] = (),
    train_only: str | Sequence[str] = (),
    mode: str = "auto",
    progress: Progress | None = None,
    **keywords: Unpack[LabelledKeywords],
) -> GradsRecord:
    """Return the gradient of every parameter and activation after forward and backward passes; nothing is trained.

    Args:
        model: a name or file as on the command line, an `nn.Module`, or the result of `load`.
        inputs: paths, PIL images, tensors, a dict of arguments by name, a `DataLoader`; None for seeded noise of
            the model's input size. Each image is a pass of its own unless `batch` says otherwise; a loader's
            batches stay as they are, and a dict is one pass.
        layer, exclude: layer patterns.
        hook: changes to values in the forward and backward pass, in the syntax of `--hook`.
        loss: the loss: auto, cross-entropy, nll, bce, mse, mean, logit, or FILE.py:fn. auto chooses by the output;
            bce allows several labels or none; your function is called as fn(output) or fn(output, target). In
            Python, a function is also accepted, and called in the same way.
        target: a class: its index, its label, or predicted. auto: the class that the folder of each image is named
            after, else predicted. box:N or mask:CLASS: an output value instead of a loss. In Python
            also a list or a tensor `(N,)` of one class per image.
        clip: clamp the gradients of the parameters to [-V, V].
        clip_norm: scale all gradients down to this norm.
        freeze: do not train these layers (repeatable).
        train_only: train only these layers (repeatable).
        mode: `eval`, `train`, or `auto`: eval, but train for the loss of a detection model.

    Raises:
        UsageError: a keyword, a pattern or a combination that is not valid (exit 2 on the command line).
        CannotRunError: the model cannot be loaded, run or differentiated (exit 4).
    """
    check_word("mode", mode, MODES)
    check_range("clip", clip, above=0)
    check_range("clip_norm", clip_norm, above=0)
    if clip is not None and clip_norm is not None:
        refuse_both("clip", clip, "clip_norm", clip_norm)
    given = target.tolist() if hasattr(target, "tolist") else target
    classes = [*given] if isinstance(given, list | tuple) else None
    is_auto = classes is None and given == AUTO
    if not isinstance(loss, str) and not callable(loss):
        message = f"a loss of type {type(loss).__name__} is neither a name nor a function"
        raise UsageError(message, "give loss='cross-entropy', or a function of the output")
    aim = parse_aim(PREDICTED if is_auto or classes is not None else given)
    loss_request = LossRequest(
        loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__),
        aim.typed,
        None if isinstance(loss, str) else loss,
    )
    is_class = aim.is_class
    limits = {"value": clip, "norm": clip_norm}
    check_loss(loss_request)

    from modelscope_cli.analysis.gradients.measure import GradientMeasurement
    from modelscope_cli.analysis.predictions.folder_truth import find_truth, give_truth
    from modelscope_cli.analysis.predictions.preprocessing_check import tell_of_size
    from modelscope_cli.analysis.subject import Subject

    labels = keywords.get("labels")
    subject = Subject(
        "grads", model, inputs, keywords, hook=hook, labels=labels, has_backward=True, progress=progress
    )
    has_own_loss = subject.loaded.family == "detection" and loss == "auto" and is_class
    is_training = mode == "train" or (mode == "auto" and has_own_loss)
    if has_own_loss and mode == "auto":
        subject.progress.note("mode: train (auto; detection models have a loss only in train mode)")
    subject.open(is_training=is_training, batch=None if is_training else 1)
    tell_of_size(subject)
    if classes is not None:
        give_truth(subject, classes)
    elif is_auto:
        find_truth(subject, "target: not taken from the folders")
    selection = subject.select(layer, exclude)
    bound = subject.bind()
    gradients = GradientMeasurement(
        subject.loaded,
        selection,
        GradsRequest(
            loss=loss_request,
            clip=next((ClipInfo(kind, limit) for kind, limit in limits.items() if limit is not None), None),
            freeze=as_tuple(freeze),
            train_only=as_tuple(train_only),
            is_training=is_training,
        ),
        aim=None if is_class else aim,
        interventions=bound.interventions,
    ).run(subject.inputs, subject.track)
    subject.warn(gradients.warnings)
    subject.tell_if_degenerate(gradients.degenerate)
    hooks = subject.conclude()
    names = {one.name for one in fields(gradients)} & {one.name for one in fields(GradsRecord)}
    return GradsRecord(
        **{name: getattr(gradients, name) for name in names},
        run=subject.run(),
        mode="train" if is_training else "eval",
        images=subject.inputs.n_images,
        not_called=subject.uncalled(selection, [row.name for row in gradients.activations]),
        hooks=hooks,
    )
