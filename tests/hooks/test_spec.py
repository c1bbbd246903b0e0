"""The grammar of `--hook`: what it means, that it prints back, and where it says it went wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.spec import ACTIONS, KINDS, HookSpec, parse_hook

MEANINGS = {
    "zero@layer3": HookSpec("forward", "zero", (), (), "layer3"),
    "pre:add=10@linear1": HookSpec("pre", "add", (10.0,), (), "linear1"),
    "zero[3,7]@layer1.0.conv1": HookSpec("forward", "zero", (), ((3, 3), (7, 7)), "layer1.0.conv1"),
    "grad:clamp=-1,1@conv": HookSpec("grad", "clamp", (-1.0, 1.0), (), "conv"),
    "clamp=-inf,1e-3@conv": HookSpec("forward", "clamp", (float("-inf"), 0.001), (), "conv"),
    "grad:keep=5[0..15]@conv@16": HookSpec("grad", "keep", (5,), ((0, 15),), "conv@16"),
    "call=package.module:Class.method@re:a@b:c": HookSpec(
        "forward", "call", ("package.module:Class.method",), (), "re:a@b:c"
    ),
    "save=maps(1),x[2].safetensors[3]@conv": HookSpec(
        "forward", "save", ("maps(1),x[2].safetensors",), ((3, 3),), "conv"
    ),
    "forward:nan-to-num@conv@1..4": HookSpec("forward", "nan-to-num", (), (), "conv@1..4"),
}


@pytest.mark.parametrize("text", MEANINGS)
def test_it_means_what_it_says(text: str) -> None:
    spec = parse_hook(text)
    assert spec == MEANINGS[text]
    assert parse_hook(str(spec)) == spec


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("example", [action.example for action in ACTIONS.values()])
def test_every_kind_takes_every_action(kind: str, example: str) -> None:
    text = f"{kind}:{example}@conv"
    assert str(parse_hook(text)) == text.removeprefix("forward:")


number = st.floats(allow_nan=False)
size = st.floats(min_value=0, allow_infinity=False, allow_nan=False)
name = st.text("abcXYZ/_-.()[]=:,#é 0123", min_size=1, max_size=12)
ranges = st.tuples(st.integers(0, 999), st.integers(0, 999)).map(lambda pair: (min(pair), max(pair)))
pattern = st.sampled_from(["conv", "layer1.0.relu#1", "conv@-1", "re:a@b", "type:*Norm@1..4", "*.bn?", "2"])


@st.composite
def specs(draw: st.DrawFn) -> HookSpec:
    action = draw(st.sampled_from(list(ACTIONS)))
    arguments = {
        "scale": st.tuples(number),
        "add": st.tuples(number),
        "clamp": st.tuples(number, number).map(lambda pair: tuple(sorted(pair))),
        "noise": st.tuples(size),
        "keep": st.tuples(st.integers(1, 999_999_999)),
        "save": st.tuples(name.map(lambda file: f"{file}.safetensors")),
        "call": st.tuples(st.sampled_from(["hooks.py:fn", "a/b(1)/c,d.py:A.b", "p.q:r"])),
    }.get(action, st.just(()))
    is_call = action == "call"
    return HookSpec(
        draw(st.sampled_from(KINDS)),
        action,
        draw(arguments),
        () if is_call else draw(st.lists(ranges, max_size=3).map(tuple)),
        draw(pattern),
    )


@given(specs())
def test_what_is_printed_parses_to_the_same(spec: HookSpec) -> None:
    assert parse_hook(str(spec)) == spec


@given(st.text("zeroadscl-mpint=[](),.:@#019", max_size=20) | st.text(max_size=8))
def test_any_text_is_a_hook_or_a_usage_error(text: str) -> None:
    try:
        spec = parse_hook(text)
    except UsageError:
        return
    assert parse_hook(str(spec)) == spec


# What is typed; the rest of the message behind what was typed; the hint.
WRONG = [
    ("", ": no '@LAYER' at the end", "--hook 'zero@LAYER'"),
    ("zero@", ": no layer after '@' at the end", "--hook 'zero@LAYER'"),
    ("@conv", ": unknown action '' at character 1: there are zero, scale", "--hook 'zero@conv'"),
    ("zreo@conv1", ": unknown action 'zreo' at character 1: did you mean zero", "--hook 'zero@conv1'"),
    ("grad:scal=2@c", ": unknown action 'scal' at character 6: did you mean scale", "--hook 'grad:scale=2@c'"),
    ("prr:zero@c", ": unknown kind 'prr' at character 1: did you mean pre", "--hook 'pre:zero@c'"),
    ("scale@c", ": scale takes 1 argument, not 0, at character 6", "--hook 'scale=2@c'"),
    ("clamp=1,2,3@c", ": clamp takes 2 arguments, not 3, at character 11", "--hook 'clamp=-1,1@c'"),
    ("scale=two@c", ": 'two' is not a number at character 7", "--hook 'scale=2@c'"),
    ("clamp=0,nan@c", ": 'nan' is not a number at character 9", "--hook 'clamp=-1,1@c'"),
    ("clamp=2,1@c", ": 2 is above 1 at character 7", "--hook 'clamp=1,2@c'"),
    ("noise=-1@c", ": '-1' is not a number of 0 or more at character 7", "--hook 'noise=0.1@c'"),
    ("keep=0@c", ": '0' is not a whole number above 0 at character 6", "--hook 'keep=5@c'"),
    ("save=x.pt@c", ": 'x.pt' is not a file that ends in .safetensors at character 6", "--hook 'save=FILE."),
    ("call=fn@c", ": 'fn' is not of the form path/to/file.py:function at character 6", "--hook 'call=path"),
    ("call=a.py:f[3]@c", ": call does not take '[3]': its function receives the whole tensor at", "--hook 'call="),
    ("zero[3@c", ": '[' is not closed at character 5", "--hook 'zero@c'"),
    ("scale[3]=2@c", ": the argument of scale comes before '[3]' at character 9", "--hook 'scale=2[3]@c'"),
    ("zero[]@c", ": '' is not a channel such as 3 or 0..15 at character 6", "--hook 'zero[0]@c'"),
    ("zero[5..3]@c", ": '5..3' counts backwards at character 6", "--hook 'zero[3..5]@c'"),
    ("zero[1][2]@c", ": '[2]' follows the channels at character 8", "--hook 'zero[1]@c'"),
    ("zero(0)@c", ": unknown action 'zero(0)' at character 1: did you mean zero", "--hook 'zero@c'"),
    ("zero@conv@0", " at character 6: layer pattern 'conv@0': positions", "try conv@1"),
    ("zero[1]@conv@x", " at character 9: layer pattern 'conv@x': what follows '@'", "try conv@1"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "rest", "hint"), WRONG, ids=[text for text, _, _ in WRONG])
def test_what_is_wrong_is_pointed_at(text: str, rest: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_hook(text)
    error = caught.value
    assert error.message.startswith(f"--hook '{text}'{rest}")
    assert "\n" not in error.message
    assert not error.message.endswith(".")
    assert error.hint is not None
    assert error.hint.startswith(hint)
    if error.hint.startswith("--hook") and "path/to" not in error.hint:
        parse_hook(error.hint.removeprefix("--hook '").removesuffix("'"))
