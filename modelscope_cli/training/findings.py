"""What the curves of a training show to be wrong: pure functions of numbers. Standard library."""

import statistics
from collections.abc import Iterator, Sequence

from modelscope_cli.records.train import LayerCurves, Onset

_DEAD_SHARE = 0.5
_RISE, _MIN_STEPS = 2.0, 8
_RECTIFIERS = ("ReLU", "ReLU6")


def find_onsets(
    losses: Sequence[float | None], layers: Sequence[LayerCurves], variant: str = ""
) -> tuple[Onset, ...]:
    """Judge a training by its losses and layers.

    Dead: more than half of the channels of a ReLU are zero everywhere, and stay so to the end (the threshold of
    SageMaker Debugger's DeadRelu). Diverging: the median of the last quarter of the losses is more than twice the
    least median of as many in a row.
    """
    return (*_judge_loss(losses, variant), *_judge_layers(layers, variant))


def _judge_loss(losses: Sequence[float | None], variant: str) -> Iterator[Onset]:
    strange = next((step for step, loss in enumerate(losses) if loss is None), None)
    if strange is not None:
        yield Onset(
            code="MS701",
            rule="loss-not-finite",
            severity="error",
            layer=None,
            since_step=strange,
            value=None,
            threshold=None,
            message=f"the loss is NaN or infinite at step {strange}",
            hint="a lower --lr, --clip-norm 1, or modelscope lrfind for a rate that holds",
            variant=variant,
        )
        return
    values = [loss for loss in losses if loss is not None]
    if len(values) < _MIN_STEPS:
        return
    quarter = max(len(values) // 4, 2)
    least = min(statistics.median(values[i : i + quarter]) for i in range(len(values) - quarter + 1))
    last = statistics.median(values[-quarter:])
    limit = _RISE * max(least, 1e-3)
    if last > limit:
        lowest = values.index(min(values))
        yield Onset(
            code="MS704",
            rule="loss-diverges",
            severity="error",
            layer=None,
            since_step=next((i for i in range(lowest, len(values)) if values[i] > limit), lowest),
            value=last / max(least, 1e-3),
            threshold=_RISE,
            message=f"the loss was {least:.3g} and is {last:.3g} at the end",
            hint="a lower --lr, or modelscope lrfind for a rate that holds",
            variant=variant,
        )


def _judge_layers(layers: Sequence[LayerCurves], variant: str) -> Iterator[Onset]:
    for layer in layers:
        shares = layer.series.dead_fraction
        if layer.type not in _RECTIFIERS or not shares or not _is_dead(shares[-1]):
            continue
        alive = [i for i, share in enumerate(shares) if not _is_dead(share)]
        first = alive[-1] + 1 if alive else 0
        name = layer.name + (f"#{layer.call}" if layer.call else "")
        share = shares[-1]
        assert share is not None
        yield Onset(
            code="MS202",
            rule="dead-channels",
            severity="warning",
            layer=name,
            since_step=layer.series.step[first],
            value=share,
            threshold=_DEAD_SHARE,
            message=f"{share:.0%} of the channels are zero for every picture of the batch",
            hint="a lower --lr, a --norm, --schedule one-cycle, or --activation leaky",
            variant=variant,
        )


def _is_dead(share: float | None) -> bool:
    return share is not None and share > _DEAD_SHARE
