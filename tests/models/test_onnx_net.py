"""ONNX files as models, beside the torch module they were exported from and onnxruntime run by hand."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from collected import outputs_of
from torch import Tensor, nn

import modelscope_cli as ms
from modelscope_cli.checkpoints.reading import read_onnx
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.models.onnx_net import load_onnx

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from modelscope_cli.checkpoints.onnx_protos import for_runtime  # noqa: E402


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.conv(self.relu(x)) + x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, stride=2)
        self.body = nn.Sequential(Block(), Block())
        self.up = nn.ConvTranspose2d(4, 2, 2, stride=2)
        self.head = nn.Linear(2, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(self.body(self.stem(x)))
        return self.head(x.mean((2, 3)))


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def file(net: Net, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (torch.zeros(1, 3, 15, 15),), str(path), dynamo=True, verbose=False)
    return path


def is_leaf(net: nn.Module, name: str) -> bool:
    return not [*net.get_submodule(name).children()]


def test_layers_have_torchs_names_and_values(net: Net, file: Path) -> None:
    x = torch.randn(1, 3, 15, 15, generator=torch.Generator().manual_seed(1))
    expected = {key: one for key, one in outputs_of(net, x).items() if not key[0] or is_leaf(net, key[0])}
    ours = load_onnx(file)
    seen: dict[tuple[str, int], Tensor] = {}
    for name, module in ours.named_modules():

        def keep(module: nn.Module, given: Any, output: Any, name: str = name) -> None:
            seen[name, sum(1 for one in seen if one[0] == name)] = output

        module.register_forward_hook(keep)
    assert ours(x).allclose(expected["", 0], atol=1e-5)
    assert set(expected) <= set(seen)
    for key, output in expected.items():
        assert seen[key].shape == output.shape
        assert seen[key].allclose(output, atol=1e-5), key


@pytest.mark.parametrize("has_inputs", [False, True])
def test_the_runtime_is_given_large_values_without_a_copy(tmp_path: Path, has_inputs: bool) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)).eval(), torch.randn(2, 64)
    (tmp_path / "store").mkdir()
    path, link = tmp_path / "store" / "net.onnx", tmp_path / "link.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (x,), str(path), dynamo=False, keep_initializers_as_inputs=has_inputs)
    link.symlink_to(path)
    read = read_onnx(path)
    assert [entry.name for entry in read.detached] == ["0.weight"]
    assert (
        len(for_runtime(read, ["new"])[0]) < path.stat().st_size - 16_000
    )  # of the 16,384 bytes of this weight
    with torch.no_grad():
        for one in (path, link):
            assert load_onnx(one, has_values=False)(x).allclose(model(x), atol=1e-5)
    assert all(parameter.is_meta for parameter in load_onnx(path, has_values=False).parameters())


def test_a_batch_is_run_image_by_image(net: Net, file: Path) -> None:
    x = torch.randn(3, 3, 15, 15, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        assert load_onnx(file)(x).allclose(net(x), atol=1e-5)


def test_parameters_and_operations_are_those_of_the_module(net: Net, file: Path) -> None:
    ours, theirs = ms.summary(str(file)), ms.summary(net, torch.zeros(1, 3, 15, 15))
    assert ours.totals.params == theirs.totals.params
    assert ours.totals.macs == theirs.totals.macs
    rows = {(row.name, row.call): row for row in ours.layers}
    for row in theirs.layers:
        same = rows[row.name, row.call]
        assert (same.params, same.macs) == (row.params, row.macs), row.name
        assert same.output_shapes in ((), row.output_shapes)  # a part with several nodes is not called


def test_values_of_commands_are_those_of_the_runtime(file: Path) -> None:
    x = torch.randn(2, 3, 15, 15, generator=torch.Generator().manual_seed(3))
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    by_hand = np.concatenate([session.run(None, {name: x[n : n + 1].numpy()})[0] for n in range(2)])
    head = next(row for row in ms.stats(str(file), x).layers if row.name == "head")
    assert head.mean == pytest.approx(float(by_hand.mean()), abs=1e-6)
    predicted = ms.predict(str(file), x)
    assert [image.top[0].index for image in predicted.predictions] == by_hand.argmax(1).tolist()


@pytest.mark.parametrize("command", ["grads", "explain", "ablate", "check"])
def test_what_it_is_not_enough_for_is_said(file: Path, command: str) -> None:
    with pytest.raises(CannotRunError, match="onnxruntime, which runs"):
        getattr(ms, command)(str(file), torch.zeros(1, 3, 15, 15))


def test_a_hook_that_changes_a_value_is_refused(file: Path) -> None:
    with pytest.raises(CannotRunError, match="cannot be changed"):
        ms.stats(str(file), torch.zeros(1, 3, 15, 15), hook="zero@stem")


def test_other_options_of_a_model_are_refused(file: Path) -> None:
    for keywords in (
        {"num_classes": 3},
        {"dtype": "float16"},
        {"model_arg": ["a=1"]},
        {"weights": "DEFAULT"},
    ):
        with pytest.raises(UsageError, match="an exported program is run as it is"):
            ms.predict(str(file), torch.zeros(1, 3, 15, 15), **keywords)


def made(path: Path, *nodes: Any, inputs: Any = None, opset: int = 17, tensors: Any = ()) -> str:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(list(nodes), "g", inputs or [x], [y], initializer=list(tensors))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("mine", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    path.write_bytes(model.SerializeToString())
    return str(path)


def test_custom_operators_and_new_opsets_are_named(tmp_path: Path) -> None:
    own = made(tmp_path / "own.onnx", helper.make_node("Twice", ["x"], ["y"], domain="mine"))
    with pytest.raises(CannotRunError, match=r"operators that onnxruntime does not have: mine\.Twice"):
        ms.summary(own, torch.zeros(1, 4))
    new = made(tmp_path / "new.onnx", helper.make_node("Relu", ["x"], ["y"]), opset=999)
    with pytest.raises(CannotRunError, match="its opset is 999"):
        ms.summary(new, torch.zeros(1, 4))


def test_several_inputs_wrong_sizes_and_float16(tmp_path: Path) -> None:
    half = helper.make_tensor_value_info("x", TensorProto.FLOAT16, [1, 4])
    other = helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 4])
    cast = helper.make_node("Cast", ["x"], ["w"], to=TensorProto.FLOAT)
    path = made(tmp_path / "a.onnx", cast, helper.make_node("Add", ["w", "z"], ["y"]), inputs=[half, other])
    record = ms.summary(path, {"x": torch.ones(1, 4), "z": torch.ones(1, 4)})
    assert [row.type for row in record.layers] == ["OnnxNet", "Cast", "Add"]
    with pytest.raises(CannotRunError, match=r"takes the inputs x=1x4 float16, z=1x4 float32"):
        ms.stats(path, torch.ones(1, 4))
    with pytest.raises(CannotRunError, match="takes 1x4 float16 as 'x', but was given 1x5"):
        ms.stats(path, {"x": torch.ones(1, 5), "z": torch.ones(1, 4)})


def test_quantised_weights_are_parameters_and_said(tmp_path: Path) -> None:
    values = numpy_helper.from_array(np.ones((4, 3), "i1"), "w")
    scale = numpy_helper.from_array(np.array(0.5, "f4"), "scale")
    path = made(
        tmp_path / "q.onnx",
        helper.make_node("DequantizeLinear", ["w", "scale"], ["v"]),
        helper.make_node("MatMul", ["x", "v"], ["y"]),
        tensors=[values, scale],
    )
    record = ms.summary(path, torch.ones(2, 4))
    assert (record.totals.params, record.totals.macs) == (12, 24)
    assert any("quantised" in note for note in load_onnx(Path(path)).notes)
    assert "quantised" in (ms.weights(path).note or "")


def test_without_onnxruntime_the_weights_are_listed_and_a_run_says_what_to_install(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelscope_cli.models.onnx_net.find_spec", lambda name: None)
    assert ms.weights(file).totals.tensors
    with pytest.raises(UsageError) as caught:
        ms.stats(str(file), torch.zeros(1, 3, 15, 15))
    assert "modelscope-cli[onnx]" in (caught.value.hint or "")


def test_the_doctor_leaves_out_sizes_that_the_file_does_not_take(file: Path, tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (20, 20), "red").save(tmp_path / "red.png")
    record = ms.doctor(str(file), tmp_path / "red.png", size=15)
    assert record.images == 1
    assert not any(row.name.startswith("--size") for row in record.variations)
