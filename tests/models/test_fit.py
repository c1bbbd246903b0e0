"""Checkpoints into architectures, through the front door."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torchvision import models

import modelscope_cli as ms
from modelscope_cli.analysis.subject import describe_module
from modelscope_cli.errors import CannotRunError, ModelscopeError
from modelscope_cli.models.architecture import seeded
from modelscope_cli.models.fit import load_state
from modelscope_cli.models.load import load_model, load_skeleton
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.models.request import ModelRequest

NAME = "squeezenet1_1"
State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def trained() -> State:
    with seeded(123):
        return dict(models.squeezenet1_1(num_classes=10).state_dict())


@pytest.fixture
def state(trained: State) -> State:
    return dict(trained)


def saved(folder: Path, state: Any) -> Path:
    torch.save(state, folder / "a.pt")
    return folder / "a.pt"


def load(checkpoint: Path, model: str = NAME, **kwargs: Any) -> LoadedModel:
    return load_model(ModelRequest(model, checkpoint=checkpoint, device="cpu", **kwargs))


def rejected(checkpoint: Path, model: str = NAME, **kwargs: Any) -> ModelscopeError:
    with pytest.raises(CannotRunError) as caught:
        load(checkpoint, model, **kwargs)
    error = caught.value
    assert f"'{checkpoint}'" in error.message
    assert "\n" not in error.message
    with pytest.raises(CannotRunError) as caught:  # a skeleton is checked as well
        load_skeleton(ModelRequest(model, checkpoint=checkpoint, **kwargs))
    assert caught.value.message == error.message
    return error


def codes(loaded: LoadedModel) -> list[str]:
    return [warning.code for warning in loaded.warnings]


def assert_holds(loaded: LoadedModel, state: State) -> None:
    torch.testing.assert_close(dict(loaded.module.state_dict()), state, rtol=0, atol=0)


def test_the_number_of_classes_is_recognised(tmp_path: Path, state: State) -> None:
    save_file(state, tmp_path / "a.safetensors", metadata={"categories": json.dumps(list("abcdefghij"))})
    loaded = load(tmp_path / "a.safetensors")
    assert_holds(loaded, state)
    assert "num classes: 10, as in the checkpoint" in loaded.notes
    assert loaded.categories == tuple("abcdefghij")
    info = loaded.info.weights
    file = tmp_path / "a.safetensors"
    assert (info.requested, info.resolved, info.origin) == (str(file), file.name, "checkpoint")
    assert info.sha256 is not None
    assert loaded.transforms is not None
    skeleton = load_skeleton(ModelRequest(NAME, checkpoint=tmp_path / "a.safetensors"))
    assert skeleton.module(torch.empty(2, 3, 64, 64, device="meta")).shape == (2, 10)
    assert not skeleton.warnings


@pytest.mark.parametrize(("name", "kwargs", "num_classes"), [
    ("fasterrcnn_mobilenet_v3_large_320_fpn", {"weights_backbone": None}, 6),
    ("ssdlite320_mobilenet_v3_large", {"weights_backbone": None}, 7),
    ("lraspp_mobilenet_v3_large", {"weights_backbone": None}, 4),
])  # fmt: skip
def test_heads_of_every_kind_are_recognised(tmp_path: Path, name: str, kwargs: Any, num_classes: int) -> None:
    builder = models.get_model_builder(name)
    state = builder(weights=None, num_classes=num_classes, **kwargs).state_dict()
    loaded = load(saved(tmp_path, state), name)
    assert f"num classes: {num_classes}, as in the checkpoint" in loaded.notes
    assert_holds(loaded, dict(state))


def test_another_number_of_classes_than_asked_for(tmp_path: Path, state: State) -> None:
    error = rejected(saved(tmp_path, state), num_classes=12)
    assert "has 10 classes, not '12'" in error.message
    assert error.hint == "--num-classes 10 or --no-strict   for a fresh head"
    assert_holds(load(tmp_path / "a.pt", num_classes=10), state)


def test_a_fresh_head_for_other_classes(tmp_path: Path, state: State) -> None:
    save_file(state, tmp_path / "a.safetensors", metadata={"categories": json.dumps(list("abcdefghij"))})
    loaded, again = (load(tmp_path / "a.safetensors", num_classes=12, strict=False, seed=3) for _ in range(2))
    assert (codes(loaded), loaded.categories) == (["misshaped_keys", "untrained_weights"], None)
    own = dict(loaded.module.state_dict())
    assert_holds(again, own)
    assert own["classifier.1.weight"].shape == (12, 512, 1, 1)
    assert {
        name for name in state if own[name].shape != state[name].shape or own[name].ne(state[name]).any()
    } == {"classifier.1.weight", "classifier.1.bias"}


@pytest.mark.parametrize(
    "prefix", ["module.", "model.", "_orig_mod.", "module._orig_mod.", "model.module._orig_mod."]
)
def test_prefixes_are_removed_and_it_is_said(tmp_path: Path, state: State, prefix: str) -> None:
    loaded = load(saved(tmp_path, {"state_dict": {prefix + key: value for key, value in state.items()}}))
    assert_holds(loaded, state)
    assert f"checkpoint: prefix '{prefix}' removed from its keys" in loaded.notes
    assert "checkpoint: using 'state_dict'" in loaded.notes


def test_keys_that_do_not_fit_are_named(tmp_path: Path, state: State) -> None:
    del state["features.0.weight"]
    state["extra.weight"] = torch.ones(2)
    state["features.3.squeeze.weight"] = torch.ones(3)
    error = rejected(saved(tmp_path, state), num_classes=10)
    assert "1 key is missing (features.0.weight)" in error.message
    assert "1 key is unexpected (extra.weight)" in error.message
    assert "1 key is misshaped (features.3.squeeze.weight 3, not 16×64×1×1)" in error.message
    assert (error.hint or "").startswith("modelscope weights")  # as these stay random


class TwoHeads(nn.Module):
    """A head, one that only a training uses, a norm, and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.fc = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)
        self.aux_head, self.tied = nn.Linear(4, 3), nn.Linear(4, 4)
        self.tied.weight = self.body.weight


def changed(**layers: nn.Module | None) -> State:
    model = TwoHeads()
    for name, layer in layers.items():
        delattr(model, name)
        if layer is not None:
            model.add_module(name, layer)
    return dict(model.state_dict())


OPTION = "--no-strict   leaves out keys that do not match"
COPY = "--key ema   loads that copy of the weights; --no-strict leaves it out"
LISTS = "modelscope weights a.pt   lists the layers of the file"
HEAD = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize(("state", "is_random", "hint"), [
    (changed(), False, None),
    (changed(fc=None), True, LISTS),
    (changed(fc=nn.Linear(4, 5)), True, "build the model for 5 classes"),
    (changed(fc=HEAD), True, "the head of the file is fc.0 Linear 4->8, fc.2 Linear 8->3: build it in a file"),
    (changed(fc=nn.Linear(9, 3)), True, LISTS),
    (changed(body=None), True, LISTS),
    (changed(aux_head=None), False, None),
    (changed(norm=nn.BatchNorm1d(4, track_running_stats=False)), False, OPTION),
    ({**changed(), "extra.weight": torch.ones(3)}, False, OPTION),
    (changed() | {f"ema.{key}": value for key, value in changed().items()}, False, COPY),
    ({key: value for key, value in changed().items() if key != "body.weight"}, False, OPTION),
    ({key: value for key, value in changed().items() if key != "tied.weight"}, False, OPTION),
])  # fmt: skip
def test_weights_that_stay_random_are_said_and_no_hint_leads_there(state, is_random, hint):
    if hint is not None:
        with pytest.raises(CannotRunError) as caught:
            load_state(state, TwoHeads(), strict=True, name="net", file="a.pt")
        assert caught.value.hint == hint
    _, notices = load_state(state, TwoHeads(), strict=False, name="net", file="a.pt")
    assert any(one.code == "untrained_weights" for one in notices) == is_random
    loaded = replace(describe_module(nn.Sequential(nn.Flatten(), nn.Linear(4, 3))), warnings=notices)
    findings = ms.check(loaded, torch.rand(4, 4), select=["MS209", "MS101"]).findings
    assert [(one.code, one.severity) for one in findings] == [("MS209", "error")] * is_random


def test_no_strict_warns_and_loads_the_rest(tmp_path: Path, state: State) -> None:
    del state["features.0.weight"]
    state["extra.weight"] = torch.ones(2)
    state["features.3.squeeze.weight"] = torch.ones(3)
    loaded = load(saved(tmp_path, state), strict=False, num_classes=10)
    assert codes(loaded) == ["missing_keys", "unexpected_keys", "misshaped_keys", "untrained_weights"]
    own = loaded.module.state_dict()
    fresh = load_model(ModelRequest(NAME, "none", num_classes=10, device="cpu")).module.state_dict()
    assert torch.equal(own["features.0.weight"], fresh["features.0.weight"])
    assert torch.equal(own["features.3.squeeze.weight"], fresh["features.3.squeeze.weight"])
    assert torch.equal(own["features.3.squeeze.bias"], state["features.3.squeeze.bias"])


@pytest.mark.parametrize("strict", [True, False])
def test_another_architecture_is_said_in_one_line(tmp_path: Path, state: State, strict: bool) -> None:
    error = rejected(saved(tmp_path, state), "mnasnet0_5", strict=strict)
    said = "it is a checkpoint of 'squeezenet1_1'" if strict else "is for another architecture: 0 of"
    assert said in error.message
    assert strict or " of the file is not in the model, " in error.message
    assert len(error.message) < 200 + len(str(tmp_path))


@pytest.mark.parametrize("name", ["shufflenet_v2_x0_5", "timm:resnet10t"])
def test_a_sibling_of_the_architecture_does_not_fit_either(tmp_path: Path, name: str) -> None:
    if name.startswith("timm:"):
        pytest.importorskip("timm")
    path = saved(tmp_path, models.shufflenet_v2_x1_0().state_dict())
    hint = rejected(path, name).hint or ""
    assert hint.startswith("modelscope summary shufflenet_v2_x1_0 -c ")


def test_missing_batch_counters_are_not_a_difference(tmp_path: Path) -> None:
    state = models.mnasnet0_5().state_dict()
    lean = {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")}
    loaded = load(saved(tmp_path, lean), "mnasnet0_5")
    assert codes(loaded) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nonfinite_weights_load_with_a_warning(tmp_path: Path, state: State, value: float) -> None:
    for key in list(state)[:4]:
        state[key] = state[key].clone()
        state[key].view(-1)[-1] = value
    loaded = load(saved(tmp_path, state))
    assert codes(loaded) == ["nonfinite_weights"]
    first = ", ".join(list(state)[:3])
    assert loaded.warnings[0].message == f"NaN or infinite values in the weights: 4 ({first}, ...)"


def test_old_key_names_that_torchvision_renames(tmp_path: Path) -> None:
    """Published vision transformer weights call the MLP layers `linear_1`; torchvision's own hook knows."""
    state = models.vit_b_32(image_size=32).state_dict()
    old = {
        key.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): value
        for key, value in state.items()
    }
    assert old.keys() != state.keys()
    loaded = load(saved(tmp_path, old), "vit_b_32", model_args=("image_size=32",))
    assert codes(loaded) == []
    assert_holds(loaded, dict(state))


def test_own_models_are_rebuilt_for_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from torch import nn\n"
        "def strict_net(num_classes=4):\n    return nn.Linear(3, num_classes)\n"
        "def any_net(**kwargs):\n    return nn.Linear(3, **{'out_features': 4, **kwargs})\n"
    )
    path = saved(tmp_path, {"weight": torch.ones(9, 3), "bias": torch.ones(9)})
    loaded = load(path, f"{tmp_path / 'own.py'}:strict_net")
    assert "num classes: 9, as in the checkpoint" in loaded.notes
    with pytest.raises(CannotRunError, match="architecture"):
        load(path, f"{tmp_path / 'own.py'}:any_net")


def test_a_checkpoint_of_other_sizes_names_two_of_its_shapes(tmp_path: Path, state: State) -> None:
    wider = {key: torch.cat([tensor, tensor]) if tensor.ndim else tensor for key, tensor in state.items()}
    error = rejected(saved(tmp_path, wider), NAME)
    key = min(state)
    assert f"; {key} {2 * len(state[key])}" in error.message
    assert error.message.count(", not ") == 2


CELLS = {
    nn.LSTM: "4 gates (LSTM)",
    nn.GRU: "3 gates (GRU)",
    nn.RNN: "1 gate (RNN)",
    nn.GRUCell: "3 gates (GRU)",
}


@pytest.mark.parametrize(("theirs", "own"), [(nn.GRU, nn.LSTM), (nn.LSTM, nn.RNN), (nn.LSTMCell, nn.GRUCell)])
def test_cells_of_another_kind_are_named_and_their_gates_are_not_classes(theirs, own):
    model = nn.ModuleDict({"rnn": own(4, 3), "fc": nn.Linear(3, 2)})
    state = {**model["fc"].state_dict(prefix="fc."), **theirs(4, 5).state_dict(prefix="rnn.")}
    with pytest.raises(CannotRunError) as caught:
        load_state(state, model, strict=True, name="net.py:Net", file="other.pt")
    ours, kind = CELLS[own], CELLS.get(theirs, CELLS[nn.LSTM])
    assert f" {kind}, not {ours}, rnn.bias_hh" in caught.value.message
    assert "classes" not in f"{caught.value.message} {caught.value.hint}"
    answer = str(ms.diff(state, model.state_dict()))
    assert f" has {kind} in A and {ours} in B; " in answer


@pytest.mark.parametrize(("width", "options"), [(5, {}), (5, {"proj_size": 2}), (4, {"bidirectional": True})])
def test_cells_of_another_size_are_not_another_kind(width, options):
    sides = [nn.LSTM(4, 6).state_dict(), nn.LSTM(4, width, **options).state_dict()]
    assert "gates" not in str(ms.diff(*sides))


def test_a_head_beside_recurrent_layers_may_have_other_classes():
    layers = [nn.ModuleDict({"rnn": nn.LSTM(4, 3), "fc": nn.Linear(3, n)}) for n in (2, 5)]
    with pytest.raises(CannotRunError, match="it has 5 classes, the model 2"):
        load_state(layers[1].state_dict(), layers[0], strict=True, name="net.py:Net", file="other.pt")


class Sized(nn.Module):
    def __init__(self, width: int = 4, num_classes: int = 10) -> None:
        super().__init__()
        self.body = nn.Linear(4, width)
        self.fc = nn.Linear(width, num_classes)


def test_the_argument_for_another_number_of_classes_is_named_whatever_was_typed():
    with pytest.raises(CannotRunError) as caught:
        load_state(dict(Sized().state_dict()), Sized(4, 7), strict=True, name="net.py:Sized", file="a.pt")
    assert caught.value.hint == "--model-arg num_classes=10"


def test_another_architecture_is_told_by_keys_that_only_one_side_has():
    state = {"fc.weight": torch.ones(10, 4)} | {f"layer{n}.weight": torch.ones(1) for n in range(9)}
    with pytest.raises(
        CannotRunError, match=r"; layer0\.weight of the file is not in the model, body\.weight of "
    ):
        load_state(state, Sized(), strict=True, name="net.py:Sized", file="a.pt")
