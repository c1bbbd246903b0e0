import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.inputs.from_files import _read

TENSOR = torch.arange(5 * 3 * 4 * 4, dtype=torch.float32).reshape(5, 3, 4, 4)


@pytest.fixture(params=["pt", "npy", "safetensors"])
def tensor_file(request, tmp_path):
    path = tmp_path / f"input.{request.param}"
    match request.param:
        case "pt":
            torch.save(TENSOR.requires_grad_(False), path)
        case "npy":
            np.save(path, TENSOR.numpy().astype(">f8"))
        case _:
            save_file({"x": TENSOR}, path)
    return path


def test_every_format_gives_the_tensor(opened, tensor_file):
    inputs = opened(tensor_file)
    (batch,) = inputs
    assert torch.equal(batch.args[0], TENSOR)
    assert batch.args[0].dtype == torch.float32
    assert (inputs.n_images, inputs.n_batches, batch.pictures, batch.names) == (5, 1, (), ())
    assert inputs.info.source == "tensor"
    assert inputs.info.shape == ((5, 3, 4, 4),)
    assert inputs.info.files == (str(tensor_file),)


def test_batch_cuts_the_first_dimension(opened, tensor_file):
    inputs = opened(tensor_file, batch=2)
    batches = list(inputs)
    assert [batch.n_images for batch in batches] == [2, 2, 1]
    assert torch.equal(torch.cat([batch.args[0] for batch in batches]), TENSOR)
    assert (inputs.n_images, inputs.n_batches) == (5, 3)


def test_a_model_that_writes_into_its_input_changes_nothing(opened, tensor_file):
    inputs = opened(tensor_file)
    for _ in range(2):
        (batch,) = inputs
        assert torch.equal(batch.args[0], TENSOR)
        batch.args[0].zero_()


def test_safetensors_are_inputs_in_the_order_of_their_names(opened, tmp_path):
    save_file({"b": torch.ones(1, 2), "a": torch.zeros(1, 3, dtype=torch.int64)}, tmp_path / "x.safetensors")
    (batch,) = opened(tmp_path / "x.safetensors", dtype=torch.float16)
    assert [tuple(x.shape) for x in batch.args] == [(1, 3), (1, 2)]
    assert [x.dtype for x in batch.args] == [torch.int64, torch.float16]


def test_a_list_in_a_pt_file_is_several_inputs(opened, tmp_path):
    torch.save([torch.ones(2, 2), torch.ones(3)], tmp_path / "x.pt")
    (batch,) = opened(tmp_path / "x.pt")
    assert len(batch.args) == 2
    with pytest.raises(UsageError, match="--batch 1"):
        opened(tmp_path / "x.pt", batch=1)


def test_detection_gets_its_list(opened, tensor_file):
    batch = next(iter(opened(tensor_file, family="detection", batch=3)))
    assert [tuple(image.shape) for image in batch.args[0]] == [(3, 4, 4)] * 3


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('this pickle was executed')",))


def write_bad(path, kind):
    match kind:
        case "empty":
            path.write_bytes(b"")
        case "text":
            path.write_text("this is no tensor\n" * 20)
        case "code":
            path.write_bytes(pickle.dumps(Bomb()))
        case "state dict":
            torch.save({"conv.weight": TENSOR}, path)
        case "no number":
            torch.save(torch.zeros(0, 3), path)
        case "scalar":
            torch.save(torch.tensor(3.0), path)
        case "objects":
            np.save(path, np.array([{}], dtype=object), allow_pickle=True)
        case "strings":
            np.save(path, np.array(["a", "b"]))
        case "lying header":
            path.write_bytes((2**40).to_bytes(8, "little") + b"{}")
        case "no tensors":
            save_file({}, path)
        case "folder":
            path.mkdir()


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [(s, k) for s in (".pt", ".npy", ".safetensors") for k in ("missing", "folder", "empty", "text")]
    + [(".pt", kind) for kind in ("code", "state dict", "no number", "scalar")]
    + [(".npy", kind) for kind in ("objects", "strings")]
    + [(".safetensors", kind) for kind in ("lying header", "no tensors")],
)
def test_a_bad_tensor_file_is_one_line_that_quotes_it(opened, tmp_path, suffix, kind):
    path = tmp_path / f"input{suffix}"
    write_bad(path, kind)
    with pytest.raises(CannotRunError) as caught:
        opened(path)
    assert f"'{path}'" in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_truncated_tensor_files_are_refused(opened, tensor_file):
    whole = tensor_file.read_bytes()
    for keep in (len(whole) // 2, len(whole) - 1, 9):
        tensor_file.write_bytes(whole[:keep])
        with pytest.raises(CannotRunError, match=r"cannot be read|might run code"):
            opened(tensor_file)


@pytest.mark.parametrize("options", [{"size": "9"}, {"mean": "0"}, {"mean": "0", "std": "1"}])
def test_how_images_are_prepared_does_not_matter_to_tensors(opened, tensor_file, options):
    (plain,), (same,) = (next(iter(opened(tensor_file, **one))).args for one in ({}, options))
    assert torch.equal(plain, same)


def test_a_tensor_file_stands_alone(opened, tensor_file, make_picture):
    with pytest.raises(UsageError, match="must be the only input"):
        opened(tensor_file, make_picture())
    with pytest.raises(UsageError, match="both give an input"):
        opened(tensor_file, shapes=("1,3,8,8",))


@pytest.mark.parametrize("stored", [(TENSOR, TENSOR), [TENSOR, TENSOR], {"a": TENSOR, "b": TENSOR}], ids=type)
def test_a_named_input_may_hold_several_tensors(stored, tmp_path):
    torch.save(stored, tmp_path / "x.pt")
    read = _read("batch", str(tmp_path / "x.pt"))
    assert type(read) is (dict if isinstance(stored, dict) else tuple)
    assert [tensor.tolist() for _, tensor in tensors_in(read)] == [TENSOR.tolist()] * 2
