"""`ms.list_rules` and `ms.list_models`: what `rules` and `models` print."""

import pytest
from function_and_command import plain, without

import modelscope_cli as ms
from modelscope_cli.errors import UsageError


def test_functions_and_commands_give_the_same_documents(both):
    assert without(plain(ms.list_rules().to_dict())) == without(both.typed("rules"))
    assert without(plain(ms.list_models("resnet").to_dict())) == without(both.typed("models resnet"))
    assert both.said() == ""


def test_a_pattern_that_matches_nothing():
    with pytest.raises(UsageError, match="no model matches 'nothing_like_it'"):
        ms.list_models("nothing_like_it")
