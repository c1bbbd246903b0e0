from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.models.check_request import check_request
from modelscope_cli.models.request import ModelRequest, parse_model_args


def rejected(request: ModelRequest) -> UsageError:
    with pytest.raises(UsageError) as caught:
        check_request(request)
    return caught.value


@pytest.mark.parametrize(("typed", "near", "hint"), [
    ("resnt34", "resnet34", "modelscope summary --list resnet"),
    ("efficentnet-b0", "efficientnet_b0", "modelscope summary --list efficientnet"),
    ("zzzzzz", "", "modelscope summary --list"),
    ("", "", "modelscope summary --list"),
])  # fmt: skip
def test_unknown_model_names_the_nearest(typed: str, near: str, hint: str) -> None:
    error = rejected(ModelRequest(typed))
    assert f"'{typed}'" in error.message
    assert near in error.message
    assert error.hint == hint


def test_names_are_read_in_any_case() -> None:
    check_request(ModelRequest("ResNet34"))


def test_any_file_as_model_is_taken_for_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "best").write_bytes(b"x")
    with pytest.raises(CannotRunError, match="is not a checkpoint"):
        check_request(ModelRequest(str(tmp_path / "best")))


def test_model_file_without_attribute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CannotRunError, match=r"no model file 'net\.py'") as caught:
        check_request(ModelRequest("net.py"))
    assert caught.value.hint == "ls ."
    Path("net.py").touch()
    assert rejected(ModelRequest("net.py")).hint == "--model net.py:NAME"
    Path("net.py").write_text("from torch import nn\nclass Net(nn.Module): pass\n")
    assert rejected(ModelRequest("net.py")).hint == "--model net.py:Net"


def test_weights_and_checkpoint_contradict_each_other() -> None:
    error = rejected(ModelRequest(weights="DEFAULT", checkpoint=Path("a.pt")))
    assert "'DEFAULT'" in error.message
    assert "'a.pt'" in error.message


@pytest.mark.parametrize("said", [{"num_classes": 0}, {"num_classes": -3}, {"seed": -1}, {"seed": 2**32}])
def test_numbers_out_of_range_are_refused_in_python_too(said: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=f"'{next(iter(said))}=.* is too (small|large)"):
        ms.load("resnet18", weights="none", **said)  # type: ignore[arg-type]


def test_model_args_are_literals_else_strings() -> None:
    typed = (
        "depth=18", "act=gelu", "sizes=(1, 2)", "on=true", "off=False", "no=none", "name='7'", "a-b=x=y",
        "e=",
    )  # fmt: skip
    assert parse_model_args(typed) == {
        "depth": 18,
        "act": "gelu",
        "sizes": (1, 2),
        "on": True,
        "off": False,
        "no": None,
        "name": "7",
        "a_b": "x=y",
        "e": "",
    }


@pytest.mark.parametrize("typed", [("depth",), ("=3",), ("1a=3",), ("a b=1",), ("depth=1", "depth=2")])
def test_malformed_model_args_are_quoted(typed: tuple[str, ...]) -> None:
    error = rejected(ModelRequest(model_args=typed))
    assert typed[-1].partition("=")[0] in error.message
    assert error.hint


@given(st.text(max_size=40))
def test_any_value_is_read_without_failing(value: str) -> None:
    assert parse_model_args((f"key={value}",)).keys() == {"key"}
