"""What a forward pass of `check` shows, of one batch and of all."""

from dataclasses import dataclass

from modelscope_cli.analysis.activations.activation import Activation, merge_into
from modelscope_cli.analysis.activations.observer import to_rows
from modelscope_cli.analysis.health.flow import Flowed
from modelscope_cli.analysis.health.spread import larger
from modelscope_cli.records.check_evidence import Forward


@dataclass(slots=True)
class Passed:
    """One batch, or several that were added up.

    Attributes:
        answers: the predicted class of every image; None where the model is not a classifier.
        apart: the largest difference of an output from that for the very first image.
    """

    n_images: int = 0
    outputs: tuple[Activation, ...] = ()
    flow: tuple[Flowed, ...] = ()
    answers: tuple[int, ...] | None = ()
    is_input_finite: bool = True
    apart: float | None = None

    def add(self, later: "Passed") -> None:
        """Take in the next batch."""
        self.n_images += later.n_images
        outputs = {activation.key: activation for activation in self.outputs}
        merge_into(outputs, later.outputs)
        flow = {(one.call.name, one.call.index): one for one in self.flow}
        for one in later.flow:
            key = one.call.name, one.call.index
            flow[key] = flow[key].merge(one) if key in flow else one
        self.outputs, self.flow = tuple(outputs.values()), tuple(flow.values())
        is_known = self.answers is not None and later.answers is not None
        self.answers = (*(self.answers or ()), *(later.answers or ())) if is_known else None
        self.is_input_finite &= later.is_input_finite
        self.apart = larger(self.apart, later.apart)

    def forward(self, near_zero: float) -> Forward:
        """Return the evidence, in execution order."""
        return Forward(
            activations=to_rows(sorted(self.outputs, key=lambda one: one.call.order)),
            flow=tuple(one.row() for one in sorted(self.flow, key=lambda one: one.call.order)),
            near_zero=near_zero,
            images=self.n_images,
            answers=self.answers,
            is_input_finite=self.is_input_finite,
            output_spread=self.apart,
        )
