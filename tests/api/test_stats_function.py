"""`ms.stats`: what the command gives, from Python, whatever is handed over, and the caller's module as it was."""

import pytest
import torch
from function_and_command import STAR, plain, tiny_resnet, without
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

import modelscope_cli as ms
from modelscope_cli.errors import UsageError


def test_an_image_is_what_its_file_is_and_a_tensor_what_its_array_is():
    model = tiny_resnet()
    as_file, as_image = ms.stats(model, STAR), ms.stats(model, Image.open(STAR))
    assert [row.mean for row in as_image] == [row.mean for row in as_file]
    x = torch.rand(4, 3, 32, 32)
    ways = [x, x.numpy(), list(x), DataLoader(TensorDataset(x, torch.arange(4)), batch_size=4, shuffle=True)]
    for way in ways:
        record = ms.stats(model, way, layer="head")
        assert record.images == 4
        assert record["head"].mean == pytest.approx(float(model(x).detach().mean()), rel=1e-5)


def test_a_loader_that_shuffles_gives_the_same_twice_and_leaves_the_random_state():
    x = torch.rand(6, 3, 32, 32)
    loader = DataLoader(TensorDataset(x, torch.arange(6)), batch_size=2, shuffle=True)
    model = tiny_resnet()
    state = torch.get_rng_state()
    one, two = (plain(ms.stats(model, loader).to_dict()) for _ in range(2))
    assert without(one) == without(two)
    assert torch.equal(torch.get_rng_state(), state)


def test_what_no_model_takes_is_refused():
    model = tiny_resnet()
    with pytest.raises(UsageError, match="can be iterated only once"):
        ms.stats(model, iter([torch.rand(1, 3, 32, 32)]))
    with pytest.raises(UsageError, match="none of the named inputs is a tensor"):
        ms.stats(model, {"x": 1})
    with pytest.raises(UsageError, match="'device' needs a model given by name"):
        ms.stats(model, device="cuda")
    with pytest.raises(TypeError, match="unexpected keyword argument 'layers': did you mean layer"):
        ms.stats(model, layers="conv")
    with pytest.raises(UsageError, match="'trian' is not a value of mode: did you mean train"):
        ms.stats(model, mode="trian")
