"""The evidence for the rules of `check`: all measurements of a model, as plain records."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from modelscope_cli.records.check import Accuracy, DatasetEvidence
from modelscope_cli.records.grads import ActivationGradient, ParameterGradient, zero_layers
from modelscope_cli.records.run import Shape, Share
from modelscope_cli.records.stats import ActivationStats, BatchNormDrift, InputStats
from modelscope_cli.records.summary import LayerShape, SummaryTotals
from modelscope_cli.records.weights import Safety


@dataclass(frozen=True, slots=True)
class TensorHealth:
    """One parameter or buffer of `layer`, with how many of its values are NaN or infinite."""

    name: str
    layer: str
    numel: int
    nan_count: int
    inf_count: int


@dataclass(frozen=True, slots=True)
class BatchNormState:
    """The running variance of one batch norm.

    Attributes:
        negative, zero: channels whose running variance is below zero, or exactly zero.
        is_fresh: mean 0 and variance 1 in every channel, as initialised.
        batches: in train mode, that it has counted; 0 where it does not count.
        start_share: share of the initial variance in the running one, (1 - momentum)^batches over its mean; 0
            where it does not count, or where a variance is below (1 - momentum)^batches.
    """

    name: str
    channels: int
    negative: int
    zero: int
    is_fresh: bool
    batches: int = 0
    start_share: float = 0.0


@dataclass(frozen=True, slots=True)
class NormParameters:
    """The parameters of one norm that has a scale and a shift.

    Attributes:
        is_as_made: the scale is the same in every channel and every shift is 0, as initialised.
        is_trained: the shifts differ; no usual initialisation does that.
    """

    name: str
    is_as_made: bool
    is_trained: bool


@dataclass(frozen=True, slots=True)
class CallFlow:
    """The effect of one call on its input, over all batches.

    Attributes:
        depth: number of enclosing calls.
        produces: in some batch its inputs were finite and its output was not.
        is_finite: its output was finite in every batch.
        saturated_fraction: of a sigmoid or tanh, the share of outputs where the derivative is below one hundredth
            of its maximum; None for other layers.
        relative_change: |output - input| / |input| of a layer with trained layers inside it; None for others, or
            where it changes its input in place or the shape.
    """

    name: str
    type: str
    order: int
    call: int
    depth: int
    produces: bool
    is_finite: bool
    saturated_fraction: float | None = None
    relative_change: float | None = None


@dataclass(frozen=True, slots=True)
class NormInput:
    """What enters one call of a batch norm in eval mode, as its running statistics normalise it.

    With statistics of these inputs both are 1 on average, whatever the inputs are.

    Attributes:
        square: mean over channels of the mean square of (x - running mean) / running std.
        variance: mean over channels of the variance of the same; None if there is one value in each channel.
    """

    name: str
    type: str
    order: int
    call: int
    square: float
    variance: float | None


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward pass over all images.

    Attributes:
        activations: of the innermost calls, with the share of |x| < `near_zero`.
        flow: of every call, in execution order.
        answers: the predicted class of every image, in words; None if the model is not a classifier.
        is_input_finite: whether the input of the model is finite.
        output_spread: the largest difference between the outputs for two different images; None without such
            images, or if the output is not one row per image.
        norms: what enters every batch norm that normalises by running statistics.
        score_std: standard deviation of the scores over the classes, as root mean square over the images of a
            batch, the largest of all batches; None as `answers`.
        lost: the layer after which nothing depends on the image, and what was seen there; None if none is known.
    """

    activations: tuple[ActivationStats, ...]
    flow: tuple[CallFlow, ...]
    near_zero: float
    images: int
    answers: tuple[str, ...] | None
    is_input_finite: bool
    output_spread: float | None = None
    norms: tuple[NormInput, ...] = ()
    score_std: float | None = None
    lost: tuple[str, str] | None = None

    @property
    def is_finite(self) -> bool:
        return self.is_input_finite and all(call.is_finite for call in self.flow)


@dataclass(frozen=True, slots=True)
class Structure:
    """Shapes and costs of one forward of a single image. `outputs`: of the model itself."""

    layers: tuple[LayerShape, ...]
    totals: SummaryTotals
    outputs: tuple[Shape, ...]
    images: int = 1  # 1, or more if the model requires that batch size, as an exported program may


@dataclass(frozen=True, slots=True)
class Backward:
    """One backward pass; the fields are those of `GradsRecord`.

    Attributes:
        parameters: those marked `unused` affect no output of the model.
        is_partial: the loss is that of a detection model on a synthetic object, which reaches few of its heads.
        used: the layers whose parameters take part in an output, called or not, and those around them.
    """

    parameters: tuple[ParameterGradient, ...]
    activations: tuple[ActivationGradient, ...]
    output_grad_norm: float
    used: frozenset[str] = frozenset()
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class TrainMode:
    """One forward in train mode, compared with eval mode.

    Attributes:
        output_gap: |train - eval| / |eval| over the output of the first batch; None if their shapes differ
            (auxiliary heads, losses) or the output is zero.
        images: those that ran.
        right: share of the predictions that are right in train mode; None where the classes are not known.
        norms_right, code_right: the same with only the norms, or only the modules whose code reads
            `self.training`, in train mode; None unless `right` is above the accuracy by more than chance.
        code: labels of these modules, with their classes.
    """

    batch_norm: tuple[BatchNormDrift, ...]
    output_gap: float | None
    images: int = 0
    right: Share | None = None
    norms_right: Share | None = None
    code_right: Share | None = None
    code: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence; a field is None if no selected rule needs it, or for the reason in `missing`.

    Attributes:
        inputs: statistics of the model's inputs. `flat_images`: how many images among them have one colour.
        forward_bytes, training_bytes: the most memory at once in a forward of one image, and in a training step
            with adamw of the smallest batch that the model takes; weights included.
        first_rms: root mean square of the input of the first layer with weights; measured only if that of a model
            input is large, None if the first layer is a norm.
        repeat_gap: |second - first| / |first| over the outputs of two runs on the same input in eval mode.
        draws: random functions that the model calls in eval mode, `torch.rand at net.py:12`.
        rescaled: the forward pass after zero-initialised parameters were rescaled; None if there are none.
            `backward` is of that model, too.
        is_real: the input was images or a tensor file, not noise. `is_loaded`: the weights are those of a file;
            `untrained`: which of them the file lacks, in words.
        only_class: the class folder that holds all images; None where there are several, or no class folders.
        accuracy: None where the folders of the images are not the labels of classes.
        safety: code that the checkpoint would run; None without a file.
        dataset: evidence about images; only for a data set without a model, then nothing else is set.
        missing: why a field is None, by its name.
    """

    tensors: tuple[TensorHealth, ...] = ()
    inputs: tuple[InputStats, ...] = ()
    flat_images: int = 0
    first_rms: float | None = None
    batch_norms: tuple[BatchNormState, ...] = ()
    norms: tuple[NormParameters, ...] = ()
    forward: Forward | None = None
    structure: Structure | None = None
    forward_bytes: int | None = None
    training_bytes: int | None = None
    backward: Backward | None = None
    train: TrainMode | None = None
    repeat_gap: float | None = None
    draws: tuple[str, ...] = ()
    rescaled: Forward | None = None
    is_real: bool = False
    is_loaded: bool = False
    untrained: tuple[str, ...] = ()
    only_class: str | None = None
    accuracy: Accuracy | None = None
    safety: Safety | None = None
    dataset: DatasetEvidence | None = None
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def settled(self) -> Forward | None:
        """The forward pass for judging a missing signal."""
        return self.rescaled or self.forward

    @property
    def is_fresh(self) -> bool:
        """Whether there are batch norms and all of them are as initialised."""
        return bool(self.batch_norms) and all(one.is_fresh for one in self.batch_norms)

    @property
    def is_trained(self) -> bool:
        """Whether a norm was changed by training."""
        has_seen = any(not norm.is_fresh for norm in self.batch_norms)
        return has_seen or any(norm.is_trained for norm in self.norms)

    @property
    def zero_layers(self) -> list[str]:
        return zero_layers(self.backward.parameters if self.backward else ())

    def silent_runs(self) -> Iterator[tuple[str, list[ActivationStats]]]:
        """Yield runs of layers that output only zeros, each with the layer of zero weights before it, if any."""
        cause, run, zero = "", list[ActivationStats](), self.zero_layers
        for row in self.settled.activations if self.settled else ():
            if row.name in zero or row.zero_fraction != 1:
                yield cause, run
                cause, run = row.name if row.name in zero else "", []
            else:
                run.append(row)
        yield cause, run
