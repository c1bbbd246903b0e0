"""Every row of the pattern table, on a real resnet34 without data."""

from functools import cache

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torchvision.models import resnet34

from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.layers import list_layers
from modelscope_cli.hooks.patterns import Layer, explain, match_layers, parse_pattern, pick_calls
from modelscope_cli.hooks.selection import select, trace_calls


@cache
def resnet() -> torch.nn.Module:
    with torch.device("meta"):
        return resnet34()


@cache
def layers() -> tuple[Layer, ...]:
    return tuple(layer for layer, _ in list_layers(resnet()))


@cache
def calls() -> tuple[tuple[str, int], ...]:
    traced = trace_calls(resnet(), (torch.empty(1, 3, 64, 64, device="meta"),))
    return tuple((call.name, call.index) for call in traced or [])


def matched(text: str) -> list[Layer]:
    return match_layers(parse_pattern(text), layers())


def picked(text: str) -> list[tuple[str, int]]:
    return pick_calls(parse_pattern(text), layers(), calls())


@pytest.mark.parametrize(("pattern", "n", "types"), [
    ("conv", 36, {"Conv2d"}),
    ("CONV", 36, {"Conv2d"}),
    ("type:ReLU", 17, {"ReLU"}),
    ("relu", 1, {"ReLU"}),  # resnets have a layer of that name
    ("max", 1, {"MaxPool2d"}),
    ("linear", 1, {"Linear"}),
    ("batch", 36, {"BatchNorm2d"}),
    ("layer1.0.conv1", 1, {"Conv2d"}),
    ("layer3", 1, {"Sequential"}),
    ("conv1", 1, {"Conv2d"}),  # a name wins over a class name that starts with it
    ("layer1.*", 18, {"BasicBlock", "Conv2d", "BatchNorm2d", "ReLU"}),
    ("*.bn?", 32, {"BatchNorm2d"}),
    ("*.bn[1]", 16, {"BatchNorm2d"}),
    ("type:Conv2d", 36, {"Conv2d"}),
    ("type:Basic*", 16, {"BasicBlock"}),
    ("type:*Norm2d", 36, {"BatchNorm2d"}),
    (r"re:^layer[12]\.\d$", 7, {"BasicBlock"}),
    (r"re:downsample\.0", 3, {"Conv2d"}),
    ("re:^[[c]onv1$", 1, {"Conv2d"}),  # python warns of nested sets; that is no one's concern here
    ("conv@16", 36, {"Conv2d"}),
])  # fmt: skip
def test_each_form_matches_what_the_design_says(pattern: str, n: int, types: set[str]) -> None:
    found = matched(pattern)
    assert len(found) == n
    assert {layer.type for layer in found} == types


def test_a_bare_word_never_means_a_container() -> None:
    container = Layer("block", "Conv2dNormActivation", is_leaf=False)
    leaf = Layer("block.0", "Conv2d", is_leaf=True)
    assert match_layers(parse_pattern("conv"), [container, leaf]) == [leaf]


@pytest.mark.parametrize(("typed", "hint"), [
    ("conv,linear", "--layer conv --layer linear"),
    ("conv@4..1", "try conv@1..4"),
])  # fmt: skip
def test_the_hint_is_the_pattern_that_was_meant(typed: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        picked(typed)
    assert (caught.value.hint or "").startswith(hint)
    for pattern in hint.replace("--layer", "").replace("try ", "").replace("'", "").split():
        assert picked(pattern)


def test_a_range_beyond_the_calls_takes_those_that_are_there_and_says_so() -> None:
    args = (torch.empty(1, 3, 64, 64, device="meta"),)
    selection = select(resnet(), ["linear@1..4", "conv@1..2"], [], args)
    assert selection.wanted == {("fc", 0), ("conv1", 0), ("layer1.0.conv1", 0)}
    assert selection.notes == ("layer 'linear@1..4' stops at the last call: 1 call in all",)


class ScaledStdConv2d(torch.nn.Conv2d):
    """Named as timm names it: not one that begins with the word."""


def test_a_word_means_derived_classes_but_not_the_weights_of_an_attention() -> None:
    model = torch.nn.Sequential(
        ScaledStdConv2d(3, 4, 3),
        torch.nn.Conv2d(4, 4, 1),
        torch.nn.MultiheadAttention(4, 1),
        torch.nn.Linear(4, 2),
    )
    found = [layer for layer, _ in list_layers(model)]
    assert [layer.name for layer in match_layers(parse_pattern("conv"), found)] == ["0", "1"]
    assert [layer.name for layer in match_layers(parse_pattern("linear"), found)] == ["3"]
    assert [layer.name for layer in match_layers(parse_pattern("type:Conv2d"), found)] == ["1"]


def test_a_word_that_begins_no_class_name_means_those_that_have_it_inside() -> None:
    assert {layer.type for layer in matched("norm")} == {"BatchNorm2d"}
    assert {layer.type for layer in matched("pool")} == {"MaxPool2d", "AdaptiveAvgPool2d"}
    assert "BatchNorm2d" in (explain(parse_pattern("norm"), layers()) or "")
    with pytest.raises(UsageError, match="matches no layer"):
        matched("ol")


def test_an_alias_is_as_good_as_the_first_name() -> None:
    shared = Layer("a", "ReLU", is_leaf=True, aliases=("b.act",))
    for text in ("a", "b.act", "b.*", "re:act$", "relu"):
        assert match_layers(parse_pattern(text), [shared]) == [shared]


@pytest.mark.parametrize(("pattern", "expected"), [
    ("conv@1", [("conv1", 0)]),
    ("conv@16", [("layer2.3.conv2", 0)]),
    ("conv@-1", [("layer4.2.conv2", 0)]),
    ("type:ReLU@1..3", [("relu", 0), ("layer1.0.relu", 0), ("layer1.0.relu", 1)]),
    ("type:ReLU@-2..-1", [("layer4.2.relu", 0), ("layer4.2.relu", 1)]),
    ("layer1.0.relu#1", [("layer1.0.relu", 1)]),
    ("layer1.0.relu", [("layer1.0.relu", 0), ("layer1.0.relu", 1)]),
    ("type:ReLU#1@1", [("layer1.0.relu", 1)]),
    ("layer1.?.relu#1@-1", [("layer1.2.relu", 1)]),
    ("layer3", [("layer3", 0)]),
    ("@1", [("conv1", 0)]),
    ("@3", [("relu", 0)]),
    ("@-1", [("fc", 0)]),
    ("linear@1..9", [("fc", 0)]),
    ("linear@-9..-1", [("fc", 0)]),
    ("conv@35..50", [("layer4.2.conv1", 0), ("layer4.2.conv2", 0)]),
])  # fmt: skip
def test_positions_count_calls_in_execution_order(pattern: str, expected: list[tuple[str, int]]) -> None:
    assert picked(pattern) == expected


@pytest.mark.parametrize("pattern", [
    *("", "type:", "re:", "@0", "#1", "@999", "conv@", "conv@x", "conv@0", "conv@1..0", "conv@00", "conv@1.."),
    *("re:(", "re:*", "re:a{99999999999999999999}", "conv@37", "conv@-37", "conv@3..2", "relu#2"),
    *("conv@37..40", "conv@-40..-37", "1", "conv@1,16", "conv,linear", "conv@1,x"),
    "conv@" + "9" * 5000,
])  # fmt: skip
def test_what_means_nothing_is_a_usage_error_that_quotes_it(pattern: str) -> None:
    with pytest.raises(UsageError) as caught:
        picked(pattern)
    assert f"'{pattern}'" in caught.value.message
    assert "\n" not in caught.value.message
    assert not caught.value.message.endswith(".")
    assert caught.value.hint


def suffixed(body: str, call: int | None, place: str) -> str:
    return body + ("" if call is None else f"#{call}") + place


PLACES = st.one_of(
    st.just(""),
    st.integers(1, 50).map(lambda k: f"@{k}"),
    st.integers(-50, -1).map(lambda k: f"@{k}"),
    st.tuples(st.integers(1, 9), st.integers(1, 9)).map(lambda p: f"@{p[0]}..{p[1]}"),
)
BODIES = st.sampled_from(["conv", "layer1.*", "type:Conv2d", "re:^a|b$", "a.0.b"])
TEXTS = st.builds(suffixed, BODIES, st.none() | st.integers(0, 99), PLACES)


@given(TEXTS)
def test_a_pattern_reads_back_as_typed(text: str) -> None:
    pattern = parse_pattern(text)
    assert str(pattern) == text
    place = "" if pattern.first is None else f"@{pattern.first}"
    place += "" if pattern.last == pattern.first else f"..{pattern.last}"
    again = parse_pattern(suffixed(pattern.body, pattern.call, place))
    assert (again.body, again.call, again.first, again.last) == (
        pattern.body, pattern.call, pattern.first, pattern.last,
    )  # fmt: skip


@example(",")
@given(st.text() | st.text(alphabet="cortyperl:*?[]()#@.-+\\^$|{}&~0123456789 \n"))
def test_arbitrary_text_matches_or_is_a_usage_error(text: str) -> None:
    try:
        picked(text)
    except UsageError as error:
        assert error.hint  # noqa: PT017 - that nothing was raised is as good
