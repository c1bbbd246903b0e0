"""ONNX files as data: what they hold, told by the `onnx` package, and files that somebody made up."""

import builtins
import io
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from modelscope_cli.checkpoints.reading import read_contents, read_onnx
from modelscope_cli.checkpoints.tensors import read_values
from modelscope_cli.errors import CannotRunError, UsageError

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402


def model_of(
    *nodes: object, initialisers: list[object] | None = None, **keywords: object
) -> "onnx.ModelProto":
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(list(nodes), "g", [x], [y], initializer=initialisers or [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9, **keywords)


def identity() -> "onnx.NodeProto":
    return helper.make_node("Identity", ["x"], ["y"], name="same")


def external(location: str, shape: tuple[int, ...] = (2, 2), **places: object) -> "onnx.TensorProto":
    tensor = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL
    )
    for key, value in {"location": location, **places}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def saved(path: Path, *tensors: object, nodes: tuple[object, ...] = ()) -> Path:
    path.write_bytes(model_of(*(nodes or (identity(),)), initialisers=list(tensors)).SerializeToString())
    return path


def refused(path: Path) -> str:
    with pytest.raises(CannotRunError) as caught:
        read_onnx(path)
    return caught.value.message


RANDOM = np.random.default_rng(0)
ARRAYS = {
    "float": RANDOM.normal(size=(2, 3)).astype("f4"),
    "double": RANDOM.normal(size=(3,)),
    "half": RANDOM.normal(size=(4, 1)).astype("f2"),
    "long": np.array([-1, 2**40, -(2**62)]),
    "int": np.array([[-7, 2**31 - 1]], "i4"),
    "byte": np.arange(5, dtype="u1"),
    "signed": np.array([-128, 127], "i1"),
    "short": np.array([-3], "i2"),
    "flag": np.array([True, False]),
    "unsigned": np.array([2**63 + 5], "u8"),
    "scalar": np.array(1.5, "f4"),
    "empty": np.zeros((0, 3), "f4"),
    "complex": np.array([1 + 2j], "c8"),
}


@pytest.mark.parametrize("is_raw", [True, False])
def test_values_are_those_that_the_package_reads(tmp_path: Path, is_raw: bool) -> None:
    tensors = []
    for name, array in ARRAYS.items():
        tensor = numpy_helper.from_array(array, name)
        if not is_raw:
            values = array.view("u2").ravel().tolist() if array.dtype == "f2" else array.ravel().tolist()
            tensor = (
                helper.make_tensor(name, tensor.data_type, array.shape, values) if name != "half" else tensor
            )
        tensors.append(tensor)
    model = read_onnx(saved(tmp_path / "a.onnx", *tensors))
    assert [entry.name for entry in model.initialisers] == list(ARRAYS)
    for entry in model.initialisers:
        values = read_values(entry).numpy()
        assert values.dtype == ARRAYS[entry.name].dtype
        assert np.array_equal(values, ARRAYS[entry.name]), entry.name


def test_the_graph_is_that_of_the_package(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["inner"])],
        "body",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)],
    )
    branch = helper.make_node("If", ["c"], ["a"], name="if", then_branch=body, else_branch=body)
    own = helper.make_node("Twice", ["a"], ["y"], domain="mine", alpha=0.5, axes=[1, -2], mode="up")
    own.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'layer1', 'layer1.0', 'relu']")
    model = read_onnx(
        saved(tmp_path / "a.onnx", numpy_helper.from_array(np.ones(4, "f4"), "w"), nodes=(branch, own))
    )
    assert (model.ir_version, model.opsets) == (9, {"": 17})
    assert [(one.name, one.dtype, one.shape) for one in model.inputs] == [("x", "float32", ("batch", 4))]
    assert [one.name for one in model.outputs] == ["y"]
    assert model.nodes[0].captured == ("w", "x")
    assert model.nodes[1].attributes == {"alpha": 0.5, "axes": [1, -2], "mode": "up"}
    assert model.nodes[1].module == "layer1.0"
    assert model.custom_operators == ("mine:Twice",)


def test_external_data_is_read_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "values").mkdir()
    np.arange(6, dtype="f4").tofile(tmp_path / "values" / "w.bin")
    path = saved(tmp_path / "a.onnx", external("values/w.bin", offset=8, length=16))
    (entry,) = read_contents(path).tensors
    assert read_values(entry).tolist() == [[2.0, 3.0], [4.0, 5.0]]


OUTSIDE = (
    "../secret", "/etc/hostname", "a/../../secret", "", "C:\\secret", "..\\secret", "x\0y", "link",
    "folder/secret",
)  # fmt: skip


@pytest.mark.parametrize("location", OUTSIDE)
def test_nothing_outside_the_folder_is_read(
    tmp_path: Path, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_bytes(b"s" * 64)
    folder = tmp_path / "inside"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "folder").symlink_to(tmp_path)
    path = saved(folder / "a.onnx", external(location))
    opened: list[str] = []
    real = io.open

    def watched(file: object, *rest: object, **more: object) -> object:
        opened.append(Path(str(file)).name)
        return real(file, *rest, **more)

    monkeypatch.setattr(io, "open", watched)
    monkeypatch.setattr(builtins, "open", watched)
    message = refused(path)
    assert "out of its folder" in message or "outside its folder" in message
    assert opened == ["a.onnx", "a.onnx"]


@pytest.mark.parametrize("where", ["node", "branch", "function", "sparse", "training"])
def test_external_data_is_checked_wherever_it_is_named(tmp_path: Path, where: str) -> None:
    tensor = external("../secret")
    constant = helper.make_node("Constant", [], ["c"], value=tensor)
    model = model_of(identity())
    if where == "node":
        model.graph.node.append(constant)
    elif where == "branch":
        value = helper.make_tensor_value_info("c", TensorProto.FLOAT, None)
        body = helper.make_graph([], "body", [], [value], initializer=[tensor])
        model.graph.node.append(helper.make_node("If", ["c"], ["a"], then_branch=body, else_branch=body))
    elif where == "function":
        model.functions.append(helper.make_function("mine", "F", [], ["c"], [constant], []))
    elif where == "sparse":
        model.graph.sparse_initializer.add().values.CopyFrom(tensor)
    else:
        model.training_info.add().algorithm.node.append(constant)
    (tmp_path / "a.onnx").write_bytes(model.SerializeToString())
    assert "outside its folder" in refused(tmp_path / "a.onnx")


def field(number: int, payload: bytes) -> bytes:
    size, length = len(payload), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((number << 3 | 2, *length, size)) + payload


def nested(depth: int) -> bytes:
    """Return a model whose graph has a node with a graph with a node, ...; the package writes no such file."""
    graph = b""
    for _ in range(depth):
        graph = field(1, field(5, field(6, graph)))
    return b"\x08\x09" + field(7, graph) + field(8, b"\x10\x11")


def recursive() -> bytes:
    model = model_of(helper.make_node("F", ["x"], ["y"], domain="mine"))
    for name, other in (("F", "G"), ("G", "F")):
        call = helper.make_node(other, ["a"], ["b"], domain="mine")
        model.functions.append(helper.make_function("mine", name, ["a"], ["b"], [call], []))
    return model.SerializeToString()


MADE_UP: dict[str, tuple[Callable[[], bytes], str]] = {
    "too few bytes": (
        lambda: model_of(
            identity(), initialisers=[TensorProto(name="w", data_type=1, dims=[4], raw_data=b"\0" * 12)]
        ).SerializeToString(),
        "12 bytes for 'w', whose shape needs 16",
    ),
    "no values": (
        lambda: model_of(
            identity(), initialisers=[TensorProto(name="w", data_type=1, dims=[2**31, 2**31])]
        ).SerializeToString(),
        "more elements than fit",
    ),
    "a negative size": (
        lambda: model_of(identity(), initialisers=[TensorProto(data_type=1, dims=[-4])]).SerializeToString(),
        "not a number from 0",
    ),
    "an unknown type": (
        lambda: model_of(identity(), initialisers=[TensorProto(data_type=99, dims=[1])]).SerializeToString(),
        "the type 99",
    ),
    "graphs in graphs": (lambda: nested(60), "damaged or truncated"),
    "functions that call one another": (recursive, "calls itself"),
    "no graph": (lambda: b"\x08\x09\x12\x04test", "lacks a graph"),
    "text": (lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git-lfs pointer"),
    "a web page": (lambda: b"<!doctype html><html></html>", "a web page"),
    "a field without end": (lambda: b"\x08\x09\x12" + b"\xff" * 20, "damaged or truncated"),
    "a length that is not there": (lambda: b"\x08\x09\x3a\xff\xff\xff\xff\x0f", "damaged or truncated"),
}


@pytest.mark.parametrize("kind", MADE_UP)
def test_invented_files_are_refused_in_a_sentence(tmp_path: Path, kind: str) -> None:
    make, words = MADE_UP[kind]
    (tmp_path / "a.onnx").write_bytes(make())
    assert words in refused(tmp_path / "a.onnx")


def test_external_data_that_is_cut_short_or_missing(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 15)
    assert "is truncated: 'w' ends at byte 16 of 15" in refused(saved(tmp_path / "a.onnx", external("w.bin")))
    assert "is missing" in refused(saved(tmp_path / "a.onnx", external("other.bin")))
    assert "12 bytes of external data" in refused(saved(tmp_path / "a.onnx", external("w.bin", length=12)))
    assert "invalid offset of external data" in refused(
        saved(tmp_path / "a.onnx", external("w.bin", offset=-1))
    )
    assert "invalid offset of external data" in refused(
        saved(tmp_path / "a.onnx", external("w.bin", offset="x"))
    )
    os.mkfifo(tmp_path / "pipe")
    assert "is missing" in refused(saved(tmp_path / "a.onnx", external("pipe")))


def test_a_file_cut_anywhere_and_changed_anywhere_is_read_or_refused(tmp_path: Path) -> None:
    whole = saved(tmp_path / "a.onnx", numpy_helper.from_array(np.ones((2, 2), "f4"), "w")).read_bytes()
    path = tmp_path / "b.onnx"
    for n in range(1, len(whole)):
        path.write_bytes(whole[:n])
        with pytest.raises(CannotRunError):
            read_onnx(path)
    random = np.random.default_rng(1)
    for _ in range(400):
        changed = bytearray(whole)
        for at in random.integers(len(whole), size=3):
            changed[at] = random.integers(256)
        path.write_bytes(changed)
        with suppress(CannotRunError):
            read_onnx(path)


def test_without_onnx_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "a.onnx")
    monkeypatch.setattr("modelscope_cli.checkpoints.reading.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs onnx, which is not installed") as caught:
        read_contents(path)
    assert caught.value.hint == "pip install 'modelscope-cli[onnx]'"
