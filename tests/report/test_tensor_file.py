"""Tensors as a safetensors file, whatever memory they lie in."""

import json

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from modelscope_cli.tensor_file import write_tensors


def test_what_shares_memory_or_lies_across_it_comes_back_the_same(tmp_path):
    whole = torch.arange(12.0, requires_grad=True)
    tensors = {
        "whole": whole,
        "part": whole[3:7],
        "across": whole.view(3, 4).T,
        "again": whole,
        "nothing": torch.empty(0, 3),
        "nothing more": torch.empty(0),
        "number": torch.tensor(3),
    }
    path = tmp_path / "a.safetensors"
    assert write_tensors(path, tensors, categories=["a", "b"]) == path.stat().st_size
    found = load_file(path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor.detach())
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["format"] == "pt"
        assert json.loads(file.metadata()["categories"]) == ["a", "b"]
