"""The kinds of training in the bench, and for each the right answer.

A sick kind has the codes of the rules that name its cause. Several can be right, where two of them send the user to
the same line of the script; a symptom that another cause would have shown just as well is not among them.
"""

from dataclasses import dataclass

HEALTHY, SHORT, SICK = "healthy", "too short", "sick"


@dataclass(frozen=True, slots=True)
class Kind:
    """What is right to say of a training.

    Attributes:
        answer: HEALTHY: no warning and no error. SHORT: none either, and that it cannot tell yet. SICK: a finding.
        causes: codes of the rules of which the first finding has to be one.
        is_certain: the loop itself shows the fault, whether or not the model learns something nevertheless.
    """

    answer: str
    causes: frozenset[str] = frozenset()
    is_certain: bool = False


def _sick(*causes: str, certain: bool = False) -> Kind:
    return Kind(SICK, frozenset(causes), certain)


_HEALTHY = (
    "plain",
    "zero-initialised residual",
    "LayerScale",
    "LoRA",
    "zero head",
    "no norm",
    "functional activations",
    "small ViT",
    "autoencoder",
    "GAN",
    "frozen parts",
    "gradient accumulation",
    "clipping",
    "mixed precision",
    "warm-up",
    "cosine",
    "one-cycle",
    "steps of the learning rate",
    "label smoothing",
    "memorising 64 images",
    "fine-tuning",
    "other activations",
    "weight decay",
    "EMA copy",
    "evaluation in between",
    "recurrent",
    "per pixel",
    "regression",
    "multi-label",
    "metric learning",
    "stop-gradient on purpose",
    "negative loss",
    "log-softmax twice",
    "several losses",
    "raw scale, made up for",
    "imbalance, learnt",
)

KINDS = {
    **dict.fromkeys(_HEALTHY, Kind(HEALTHY)),
    "smoke run": Kind(SHORT),
    # The size of the steps.
    "learning rate far too high": _sick("MS709", "MS704", "MS701"),
    "learning rate too high late": _sick("MS709", "MS704", "MS701"),
    "learning rate far too low": _sick("MS710"),
    "learning rate decayed to nothing": _sick("MS719", "MS710"),
    # Who holds a parameter, who clears a gradient, which mode.
    "no step": _sick("MS711", certain=True),
    "no zero_grad": _sick("MS713", certain=True),
    "zero_grad before step": _sick("MS714", certain=True),
    "optimizer of another model": _sick("MS712", "MS737", certain=True),
    "optimizer holds the head only": _sick("MS712", certain=True),
    "head replaced after the optimizer": _sick("MS712", "MS737", certain=True),
    "branch detached": _sick("MS715", certain=True),
    "branch under no_grad": _sick("MS715", certain=True),
    "parameters never used": _sick("MS716", certain=True),
    "frozen by mistake": _sick("MS717", certain=True),
    "trained in evaluation mode": _sick("MS718", certain=True),
    "ranks see the same data": _sick("MS734", certain=True),
    "weights put back": _sick("MS747", certain=True),
    "blocks in a Python list": _sick("MS712", certain=True),
    "a function without slope": _sick("MS749", "MS715", certain=True),
    "the same output for all": _sick("MS755", certain=True),
    "samples mixed by softmax": _sick("MS759", certain=True),
    "schedule stepped by epoch": _sick("MS758", certain=True),
    # What is compared with what.
    "softmax before cross-entropy": _sick("MS720", certain=True),
    "ReLU on the logits": _sick("MS721", certain=True),
    "tanh on the logits": _sick("MS721", certain=True),
    "sigmoid on the logits": _sick("MS721", "MS720", certain=True),
    "loss in the wrong direction": _sick("MS722"),
    "loss summed, not averaged": _sick("MS723"),
    "loss divided once too often": _sick("MS723", "MS710"),
    "shapes that broadcast": _sick("MS724", certain=True),
    "labels shuffled": _sick("MS735"),
    "labels constant": _sick("MS725", certain=True),
    "class imbalance collapse": _sick("MS736"),
    # What comes in, and numbers that are not finite.
    "input not normalised": _sick("MS726"),
    "input constant": _sick("MS727"),
    "input NaN": _sick("MS728"),
    "NaN in the loss": _sick("MS701", "MS703"),
    "NaN in one layer": _sick("MS702", "MS703"),
    "NaN late in the loss": _sick("MS701", "MS703"),
    "NaN late in one layer": _sick("MS702", "MS703"),
    "half precision overflows": _sick("MS733"),
    # Layers.
    "saturated": _sick("MS730", "MS739"),
    "deep sigmoids": _sick("MS740", "MS730", "MS707"),
    "dead ReLU": _sick("MS705", "MS729"),
    "dead functional ReLU": _sick("MS705", "MS729"),
    "half of the channels dead": _sick("MS731", certain=True),
    "zero initialisation": _sick("MS729"),
    "constant initialisation": _sick("MS729"),
    "huge initialisation": _sick("MS739"),
    "batch norm over a batch of one": _sick("MS732", certain=True),
}
