"""What the rules of `check` judge: everything that was measured of a model, as plain records."""

from dataclasses import dataclass, field

from modelscope_cli.records.check import DatasetEvidence
from modelscope_cli.records.grads import ActivationGradient, ParameterGradient
from modelscope_cli.records.run import Shape
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
        is_fresh: mean 0 and variance 1 in every channel: the statistics of a layer that has seen nothing.
    """

    name: str
    channels: int
    negative: int
    zero: int
    is_fresh: bool


@dataclass(frozen=True, slots=True)
class CallFlow:
    """What one call made of its input, over all batches.

    Attributes:
        depth: how many calls were open around it.
        produces: in some batch its inputs were finite and its output was not.
        is_finite: its output was finite in every batch.
        saturated_fraction: of a sigmoid or tanh, the share of outputs where the derivative is below one hundredth
            of its maximum; None for other layers.
    """

    name: str
    type: str
    order: int
    call: int
    depth: int
    produces: bool
    is_finite: bool
    saturated_fraction: float | None = None


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward pass over all images.

    Attributes:
        activations: of the innermost calls, with the share of |x| < `near_zero`.
        flow: of every call, in execution order.
        answers: the predicted class of every image; None where the model is not a classifier.
        is_input_finite: whether what the model was given is.
        output_spread: the largest difference between the outputs for two images that differ; None where none do,
            or where the output is not one row per image.
    """

    activations: tuple[ActivationStats, ...]
    flow: tuple[CallFlow, ...]
    near_zero: float
    images: int
    answers: tuple[int, ...] | None
    is_input_finite: bool
    output_spread: float | None = None

    @property
    def is_finite(self) -> bool:
        return self.is_input_finite and all(call.is_finite for call in self.flow)


@dataclass(frozen=True, slots=True)
class Structure:
    """Shapes and costs of one forward of a single image. `outputs`: of the model itself.

    Attributes:
        images: more than 1 where the model runs on no other number, as an exported program may.
    """

    layers: tuple[LayerShape, ...]
    totals: SummaryTotals
    outputs: tuple[Shape, ...]
    images: int = 1


@dataclass(frozen=True, slots=True)
class Backward:
    """One backward pass; the fields are those of `GradsRecord`.

    Attributes:
        parameters: `unused` is one that no output of the model depends on.
        is_partial: the loss is that of a detection model on a synthetic object, which few of its heads see.
        used: the layers whose parameters take part in an output, called or not, and those around them.
    """

    parameters: tuple[ParameterGradient, ...]
    activations: tuple[ActivationGradient, ...]
    output_grad_norm: float
    used: frozenset[str] = frozenset()
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class TrainMode:
    """One forward in train mode beside the one in eval mode.

    Attributes:
        output_gap: |train - eval| / |eval| over the output of the first batch; None where the two are of another
            shape (auxiliary heads, losses) or the output is zero.
    """

    batch_norm: tuple[BatchNormDrift, ...]
    output_gap: float | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was gathered; None where no selected rule needed it, or where `missing` says why it could not be.

    Attributes:
        inputs: what enters the model.
        first_rms: root mean square of what enters its first weights, which may be prepared inside; only known where
            that of an input is large, and None where a norm is the first layer.
        repeat_gap: |second - first| / |first| over the outputs of two runs on the same input in eval mode.
        draws: what the model draws at random in eval mode, `torch.rand at net.py:12`.
        awake: the forward pass as it is once training has moved what begins as nothing on purpose; None where there
            is no such thing. `backward` is of that model, too.
        is_real: the input was images or a tensor file, not noise.
        safety: what the file of the checkpoint would run; None where there is no file.
        dataset: what the images themselves are like; only of a data set without a model, and then nothing else.
        missing: by name of the field, why it is None.
    """

    tensors: tuple[TensorHealth, ...] = ()
    inputs: tuple[InputStats, ...] = ()
    first_rms: float | None = None
    batch_norms: tuple[BatchNormState, ...] = ()
    forward: Forward | None = None
    structure: Structure | None = None
    backward: Backward | None = None
    train: TrainMode | None = None
    repeat_gap: float | None = None
    draws: tuple[str, ...] = ()
    awake: Forward | None = None
    is_real: bool = False
    safety: Safety | None = None
    dataset: DatasetEvidence | None = None
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def settled(self) -> Forward | None:
        """The forward pass by which a signal that is missing is judged."""
        return self.awake or self.forward

    @property
    def is_fresh(self) -> bool:
        """Whether there are batch norms and none of them has ever seen a batch."""
        return bool(self.batch_norms) and all(one.is_fresh for one in self.batch_norms)
