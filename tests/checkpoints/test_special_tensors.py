"""Tensors whose values are not the numbers in their storage: torch's values, or a clear word that they are not."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from modelscope_cli.analysis.weights.statistics import check_convertible
from modelscope_cli.checkpoints.reading import read_contents
from modelscope_cli.checkpoints.tensors import read_checkpoint, read_values
from modelscope_cli.errors import CannotRunError

pytestmark = pytest.mark.filterwarnings("ignore")


def saved(folder: Path, content: Any) -> Path:
    torch.save(content, folder / "a.pt")
    return folder / "a.pt"


def values_of(path: Path) -> dict[str, Tensor]:
    return {entry.name: read_values(entry) for entry in read_contents(path).tensors}


@pytest.mark.parametrize("change", [lambda z: z.conj(), lambda z: z.conj().imag])
def test_views_that_conjugate_or_negate_are_listed_and_refused(
    tmp_path: Path, change: Callable[[Tensor], Tensor]
) -> None:
    z = torch.ones(2, dtype=torch.complex64)
    (entry,) = read_contents(saved(tmp_path, {"view": change(z)})).tensors
    assert entry.special == "a conjugate or negative view"
    with pytest.raises(TypeError, match="values are not read"):
        read_values(entry)


SPECIAL = {
    "sparse (COO)": lambda: torch.eye(4).to_sparse(),
    "sparse (CSR)": lambda: torch.eye(4).to_sparse_csr(),
    "sparse (BSR)": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
}


@pytest.mark.parametrize("kind", [*SPECIAL, "by channel", "four bits"])
def test_others_are_listed_and_refused(tmp_path: Path, kind: str) -> None:
    more = {
        "by channel": lambda: torch.quantize_per_channel(
            torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, torch.qint8
        ),
        "four bits": lambda: torch.quantize_per_channel(
            torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, torch.quint4x2
        ),
    }
    tensor = {**SPECIAL, **more}[kind]()
    word = {"by channel": "quantized", "four bits": "quantized"}.get(kind, kind)
    path = saved(tmp_path, {"plain": torch.ones(2), "odd": tensor})
    contents = read_contents(path)
    entry = {entry.name: entry for entry in contents.tensors}["odd"]
    assert entry.special == word
    assert entry.dtype == str(tensor.dtype).removeprefix("torch.")
    if "sparse" in kind:
        assert entry.shape == tuple(tensor.shape)
    with pytest.raises(TypeError, match="values are not read"):
        read_values(entry)
    with pytest.raises(CannotRunError, match="'odd' is "):
        check_convertible(contents, contents.tensors, is_whole=True)


def test_packed_parameters_are_not_left_behind(tmp_path: Path) -> None:
    module = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(3, 2)), {nn.Linear})
    contents = read_contents(saved(tmp_path, module.state_dict()))
    assert contents.inside == ("0._packed_params._packed_params",)
    with pytest.raises(CannotRunError, match="holds unnamed tensors"):
        check_convertible(contents, contents.tensors, is_whole=True)
    check_convertible(contents, contents.tensors, is_whole=False)  # asked for by name


def test_keys_that_are_written_alike(tmp_path: Path) -> None:
    content = {1: [torch.zeros(1)], "1": [torch.ones(1)], "1.0": [torch.ones(2)]}
    found = values_of(saved(tmp_path, content))
    assert sorted(tensor.tolist() for tensor in found.values()) == [[0.0], [1.0], [1.0, 1.0]]


@pytest.fixture
def mesh(request: pytest.FixtureRequest) -> Iterator[DeviceMesh]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=request.param)
    yield init_device_mesh("cpu", (request.param,))
    dist.destroy_process_group()


@pytest.mark.parametrize("mesh", [1], indirect=True)
def test_a_dtensor_is_listed_and_refused(tmp_path: Path, mesh: DeviceMesh) -> None:
    path = saved(tmp_path, {"w": distribute_tensor(torch.randn(4, 3), mesh, [Shard(0)])})
    (entry,) = read_contents(path).tensors
    assert (entry.shape, entry.special) == ((4, 3), "of class torch.distributed.tensor.DTensor")
    with pytest.raises(CannotRunError, match="'w' is of class"):
        read_checkpoint(path)
