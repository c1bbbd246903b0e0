"""Assertions for the tests of your own models; their failure messages read like the terminal's verdict."""

from typing import Any

import modelscope_cli as ms
from modelscope_cli.models.request import Model
from modelscope_cli.records.run import Record
from modelscope_cli.report.registry import view_of


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

    Without inputs, the weights are compared; with inputs, the outputs of every layer.

    Raises:
        AssertionError: names where they part, and how far.
        UsageError, CannotRunError: as `diff`.
    """
    __tracebackhide__ = True
    record = ms.diff(a, b, inputs, **keywords)
    if not record.is_same:
        raise AssertionError(view_of(record).verdict(record))
