"""The hint for a layer behind a prefix selects that layer, not another one."""

import shlex

import pytest

from modelscope_cli.analysis.weights.weights import select_names
from modelscope_cli.errors import UsageError

NAMES = [f"module.{layer}.{tensor}" for layer in ("c1", "c2", "c3") for tensor in ("weight", "bias")]


@pytest.mark.parametrize(("typed", "meant"), [
    ("c3", {"module.c3.weight", "module.c3.bias"}),
    ("c3.*", {"module.c3.weight", "module.c3.bias"}),
    ("c2.bias", {"module.c2.bias"}),
])  # fmt: skip
def test_the_hint_selects_what_was_typed(typed, meant):
    with pytest.raises(UsageError) as raised:
        select_names(NAMES, [typed])
    option, pattern = shlex.split(raised.value.hint or "")
    assert option == "--layer"
    assert select_names(NAMES, [pattern]) == meant
