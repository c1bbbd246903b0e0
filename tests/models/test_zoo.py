"""Every name, without weights."""

import socket

import pytest
import torch
from kinds import KINDS, SWEEP, kind_of
from torch import nn
from torchvision import models

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.models.load import load_model, load_skeleton
from modelscope_cli.models.names import model_names
from modelscope_cli.models.request import ModelRequest
from modelscope_cli.models.zoo import weights_of


def test_every_model_is_of_one_kind() -> None:
    assert sorted(name for least, others in KINDS.items() for name in (least, *others)) == list(model_names())


@pytest.mark.parametrize("least", SWEEP)
def test_every_name_and_its_weights_build_on_meta_with_the_published_parameters(least: str) -> None:
    kinds = set()
    for name in (least, *KINDS[least]):
        for weights in set(weights_of(name).values()):
            skeleton = load_skeleton(ModelRequest(name, weights.name))
            assert not skeleton.warnings, weights
            assert skeleton.device.type == "meta"
            assert all(tensor.is_meta for tensor in skeleton.module.state_dict().values()), weights
            assert not skeleton.module.training
            assert skeleton.transforms is not None
            kinds.add(kind_of(skeleton.module))
            # googlenet's published count leaves out its auxiliary heads, detection's the frozen layers.
            if skeleton.family not in ("detection", "quantization") and name != "googlenet":
                n_parameters = sum(parameter.numel() for parameter in skeleton.module.parameters())
                assert n_parameters == weights.meta["num_params"], weights
    assert len(kinds) == 1


@pytest.mark.parametrize(("name", "family"), [
    ("mnasnet0_5", "classification"),
    ("lraspp_mobilenet_v3_large", "segmentation"),
    ("ssdlite320_mobilenet_v3_large", "detection"),
    ("r2plus1d_18", "video"),
    ("raft_small", "optical_flow"),
    ("quantized_shufflenet_v2_x0_5", "quantization"),
])  # fmt: skip
def test_families_with_random_weights_and_no_network(
    name: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "create_connection", lambda *args, **kwargs: pytest.fail("asks the network"))
    loaded = load_model(ModelRequest(name, "none", device="cpu"))
    assert loaded.family == family
    assert (loaded.info.source, loaded.info.name) == ("zoo", name)
    assert loaded.info.class_name == type(loaded.module).__name__
    assert loaded.info.weights.resolved == "random"


def test_the_seed_decides_and_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    first, second, other = (
        load_model(ModelRequest("mnasnet0_5", "none", device="cpu", seed=seed)).module for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert _flat(first).equal(_flat(second))
    assert not _flat(first).equal(_flat(other))


def _flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.flatten() for parameter in module.parameters()])


def test_random_weights_are_torchvisions_own() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        expected = models.mnasnet0_5()
    assert _flat(load_model(ModelRequest("mnasnet0_5", "none", device="cpu", seed=5)).module).equal(
        _flat(expected)
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtype_is_applied(dtype: str) -> None:
    loaded = load_model(ModelRequest("mnasnet0_5", "none", device="cpu", dtype=dtype))
    assert {parameter.dtype for parameter in loaded.module.parameters()} == {getattr(torch, dtype)}
    assert loaded.dtype == getattr(torch, dtype)
    skeleton = load_skeleton(ModelRequest("mnasnet0_5", dtype=dtype))
    assert {parameter.dtype for parameter in skeleton.module.parameters()} == {getattr(torch, dtype)}


@pytest.mark.parametrize(("typed", "said"), [
    ("width_per_grop=3", "'width_per_grop=3'"),
    ("norm_layer=3", "'norm_layer=3'"),
    ("weights=DEFAULT", "'weights' is a separate option"),
    ("num_classes=3", "'num_classes' is a separate option"),
    ("weights_backbone=DEFAULT", "'weights_backbone' is a separate option"),
])  # fmt: skip
def test_model_arguments_it_does_not_take(typed: str, said: str) -> None:
    for load in (load_model, load_skeleton):
        with pytest.raises(UsageError) as caught:
            load(ModelRequest("resnet18", "none", model_args=(typed,)))
        assert said in caught.value.message
        assert caught.value.hint


def test_a_model_too_large_for_this_machine() -> None:
    with pytest.raises(CannotRunError, match=r"'mnasnet0_5' cannot be built here: .*memory"):
        load_model(ModelRequest("mnasnet0_5", "none", num_classes=10**12))
