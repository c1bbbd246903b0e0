"""Assertions for the tests of your own models; what they say where they fail reads like the terminal's verdict."""

from typing import Any

import modelscope_cli as ms
from modelscope_cli.errors import UsageError
from modelscope_cli.models.request import Model
from modelscope_cli.records.run import Record
from modelscope_cli.report.registry import view_of
from modelscope_cli.rules.rule import read_threshold


def assert_healthy(model: "Model", inputs: Any = None, **keywords: Any) -> None:
    """Assert that no rule is broken; `keywords` are those of `check`.

    Raises:
        AssertionError: names every finding with its layer and a hint.
        UsageError, CannotRunError: as `check`.
    """
    __tracebackhide__ = True
    ms.check(model, inputs, **keywords).assert_passed()


def assert_same(
    a: "Model | Record", b: "Model | Record | None" = None, inputs: Any = None, **keywords: Any
) -> None:
    """Assert that two sides do not differ beyond the tolerance; `keywords` are those of `diff`.

    Without inputs the weights are compared, with inputs what every layer gives.

    Raises:
        AssertionError: names where they part, and how far.
        UsageError, CannotRunError: as `diff`.
    """
    __tracebackhide__ = True
    record = ms.diff(a, b, inputs, **keywords)
    if not record.is_same:
        raise AssertionError(view_of(record).verdict(record))


def assert_budget(
    model: "Model",
    inputs: Any = None,
    *,
    params: int | str | None = None,
    macs: int | str | None = None,
    size_bytes: int | str | None = None,
    **keywords: Any,
) -> None:
    """Assert what a model may have and cost; `keywords` are those of `summary`.

    Args:
        inputs: costs are of one forward on these; None for one image of noise of the model's own size.
        params: parameters, `25_000_000` or `"25M"`.
        macs: multiply-adds, `"5G"`.
        size_bytes: of all weights and buffers, `"100MB"`.

    Raises:
        AssertionError: names every budget that is exceeded.
        UsageError: no budget, or one that means nothing (exit 2 on the command line).
        CannotRunError: as `summary`.
    """
    __tracebackhide__ = True
    budgets = {"params": params, "macs": macs, "size_bytes": size_bytes}
    limits = {name: _limit(name, budget) for name, budget in budgets.items() if budget is not None}
    if not limits:
        raise UsageError(
            "there is no budget to check the model against", "assert_budget(model, params='25M')"
        )
    record = ms.summary(model, inputs, **keywords)
    totals = record.totals
    costs = {
        "params": totals.params,
        "macs": totals.macs,
        "size_bytes": totals.param_bytes + totals.buffer_bytes,
    }
    exceeded = [
        f"{costs[name]:,} {what}, {limits[name]:,.0f} allowed"
        for name, (_, what) in _BUDGETS.items()
        if name in limits and costs[name] > limits[name]
    ]
    if exceeded:
        raise AssertionError(f"{record.run.model.name}: " + "; ".join(exceeded))


_BUDGETS = {
    "params": ("count", "parameters"),
    "macs": ("count", "multiply-adds"),
    "size_bytes": ("bytes", "bytes of weights and buffers"),
}


def _limit(name: str, budget: int | str) -> float:
    return float(read_threshold(budget, _BUDGETS[name][0], f"{name}="))
