"""Where values that are not finite begin in a training."""

from dataclasses import dataclass

from modelscope_cli.records.naming import label

LOSS, INPUT, OUTPUT = "loss", "input", "output"
BETWEEN, GRADIENT, PARAMETER = "between", "gradient", "parameter"
"""Where NaN and infinite values begin; `BETWEEN` is what a module computes between its layers."""


@dataclass(frozen=True, slots=True)
class Birth:
    """What was not finite first, where all before it was.

    Attributes:
        what: one of `LOSS`, `INPUT`, `OUTPUT`, `BETWEEN`, `GRADIENT`, and `PARAMETER`: the step has made it so.
        name: of the layer or the parameter in the model; empty for the model itself, and for the loss.
        call: which call of the layer.
    """

    what: str
    step: int
    model: str
    name: str
    call: int

    @property
    def words(self) -> str:
        """Say it: `conv2 is not finite`."""
        name = label(self.name or self.model, self.call)
        return {
            LOSS: "the loss is not finite, though the output of every layer is",
            INPUT: f"the input of {name} is not finite",
            OUTPUT: f"{name} is not finite",
            BETWEEN: f"what {name} computes between its layers is not finite",
            GRADIENT: f"the gradient of {name} is not finite",
            PARAMETER: f"{name} is not finite after step {self.step}, whose gradients were",
        }[self.what]
