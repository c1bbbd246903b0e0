"""Every torchvision state dict is recognised, whatever stands before its names and however many classes it has."""

import json
import lzma
import struct
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import architecture_index
import pytest
import torch
from torch import nn
from torchvision.models import MobileNetV2, mobilenet_v2, squeezenet1_1

from modelscope_cli.checkpoints.identify import _index, identify
from modelscope_cli.checkpoints.reading import read_contents
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.models.load import load_model, load_skeleton
from modelscope_cli.models.model_of_checkpoint import recognise
from modelscope_cli.models.request import ModelRequest
from modelscope_cli.models.zoo import default_weights, zoo_architecture

# These differ in the size of their pictures only.
LOOK_ALIKE = ("fasterrcnn_mobilenet_v3_large_320_fpn", "fasterrcnn_mobilenet_v3_large_fpn")


def skeleton(name: str, num_classes: int | None = None) -> nn.Module:
    return zoo_architecture(name, default_weights(name), {}, 0).on_meta().build(num_classes)


def shapes_of(module: nn.Module, prefix: str = "") -> dict[str, tuple[int, ...]]:
    return {f"{prefix}{key}": tuple(tensor.shape) for key, tensor in module.state_dict().items()}


@pytest.mark.slow
def test_the_index_is_that_of_this_torchvision_and_every_name_is_recognised(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built: dict[tuple[str, int | None], nn.Module] = {}

    def remembering(name: str, *rest: object) -> object:
        architecture = zoo_architecture(name, *rest)  # type: ignore[arg-type]
        build = architecture.build

        def remember(num_classes: int | None) -> nn.Module:
            return built.setdefault((name, num_classes), build(num_classes))

        object.__setattr__(architecture, "build", remember)
        return architecture

    monkeypatch.setattr(architecture_index, "zoo_architecture", remembering)
    assert lzma.decompress(architecture_index.FILE.read_bytes()).decode() == architecture_index.text()

    for at, ((name, num_classes), module) in enumerate(built.items()):
        prefix = ("", "module.", "_orig_mod.module.", "net.", "model.")[at % 5]
        expected = LOOK_ALIKE if name in LOOK_ALIKE else (name,)
        found = identify(shapes_of(module, prefix))
        assert found.candidates == expected
        assert (found.score, found.missing, found.unexpected, found.prefix) == (1.0, (), (), prefix)
        assert found.num_classes == num_classes
        assert found.name == (name if len(expected) == 1 else None)
        if at % 10 == 0:
            path = half_precision_file(tmp_path / "half.safetensors", module)
            assert identify(read_contents(path).shapes()).candidates == expected


def half_precision_file(path: Path, module: nn.Module) -> Path:
    """Write a safetensors file of float16 zeros, as a hole: it takes no room."""
    header, at = {}, 0
    for key, tensor in module.state_dict().items():
        end = at + 2 * tensor.numel()
        header[key] = {"dtype": "F16", "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    with path.open("r+b") as file:
        file.truncate(8 + len(text) + at)
    return path


def test_heads_for_training_may_be_missing() -> None:
    for name, head in [
        ("fcn_resnet50", "aux_classifier"),
        ("googlenet", "aux1"),
        ("inception_v3", "AuxLogits"),
    ]:
        shapes = {key: shape for key, shape in shapes_of(skeleton(name)).items() if not key.startswith(head)}
        assert identify(shapes).name == name


def test_a_near_miss_says_what_differs() -> None:
    shapes = shapes_of(skeleton("resnet18"))
    del shapes["layer1.0.conv1.weight"]
    shapes["extra.weight"] = (3,)
    shapes["layer2.0.bn1.bias"] = (7,)
    found = identify(shapes)
    assert (found.name, found.nearest, found.candidates) == (None, "resnet18", ())
    assert 0.9 < found.score < 1
    assert found.missing == ("layer1.0.conv1.weight",)
    assert found.unexpected == ("extra.weight",)
    assert found.misshaped == ("layer2.0.bn1.bias 7 for 128",)


def shapes_in_index(lines: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    sizes = {line.partition(" ")[0]: line.partition(" ")[2].split(",") for line in lines}
    return {
        name: tuple(
            7 * int(one[:-1] or 1) if one[-1] == "n" else int(one.replace("*", "9")) for one in row if one
        )
        for name, row in sizes.items()
    }


@pytest.mark.parametrize("prefix", ["", "encoder.", "module.encoder_q.", "model.backbone.body."])
@pytest.mark.parametrize(
    "name",
    [
        "convnext_tiny",
        "densenet121",
        "efficientnet_b0",
        "mobilenet_v3_small",
        "resnet18",
        "swin_t",
        "vit_b_16",
    ],
)
def test_a_body_is_told_from_what_is_beside_it(name: str, prefix: str) -> None:
    lines = next(tuple(tensors) for one, tensors in _index() if one == name)
    heads = {line.partition(".")[0] for line in lines if "n" in line.partition(" ")[2]}
    shapes = shapes_in_index(lines)
    body = {f"{prefix}{key}": one for key, one in shapes.items() if key.partition(".")[0] not in heads}
    named = {**body, "projector.weight": (3, 4), "queue": (2,)}
    for found, beside in (identify(body), ()), (identify(named), ("projector.weight", "queue")):
        assert (found.nearest, found.name, found.candidates, found.is_headless) == (name, None, (), True)
        assert {key.partition(".")[0] for key in found.missing} == heads
        assert (found.unexpected, found.prefix) == (beside, prefix)
    key = f" --key state_dict.{prefix[:-1]}" if prefix else ""
    loads = f"{name} --checkpoint 'a b.pth'{key} --no-strict"
    assert found.loads("a b.pth", "using 'state_dict'; not read: epoch") == loads
    whole = identify({f"{prefix}{key}": one for key, one in shapes.items()} | {"criterion.weight": (7,)})
    if prefix:
        assert (whole.nearest, whole.unexpected, whole.num_classes) == (name, ("criterion.weight",), 7)
        assert whole.loads("f", None) == f"{name} --checkpoint f --key {prefix[:-1]}"


@pytest.mark.parametrize("kind", ["torchvision", "timm"])
def test_the_hint_for_a_body_loads_it(tmp_path: Path, kind: str) -> None:
    """By a key below any entry of the file; nothing predicts without a head."""
    if kind == "timm":
        timm = pytest.importorskip("timm")
    inner = timm.create_model("resnet10t", num_classes=0) if kind == "timm" else skeleton("resnet18")
    inner.fc, file = nn.Identity(), tmp_path / "two.pth"
    state = {f"net.body.{key}": torch.ones(one.shape) for key, one in inner.state_dict().items()}
    torch.save({"student": {"head": torch.ones(2)}, "teacher": {**state, "queue": torch.ones(2)}}, file)
    with pytest.raises(CannotRunError, match="is not a torchvision or timm model: nearest is") as caught:
        recognise(ModelRequest(str(file), key="teacher"))
    name, options = ("timm:resnet10t", "") if kind == "timm" else ("resnet18", " --no-strict")
    assert caught.value.hint == f"--model {name} --checkpoint {file} --key teacher.net.body{options}"
    request = ModelRequest(name, checkpoint=file, key="teacher.net.body", strict=kind == "timm", device="cpu")
    loaded = load_model(request)
    assert all((tensor == 1).all() for key, tensor in loaded.module.state_dict().items() if "fc" not in key)
    told = " ".join((*loaded.notes, *(one.message for one in loaded.warnings)))
    assert (
        "the output is features, not class scores" if kind == "timm" else "predictions mean nothing"
    ) in told


@pytest.mark.parametrize(
    "shapes", [{}, {"a": (1,)}, {"conv1.weight": ()}, {f"n{n}.w": (1,) for n in range(9999)}]
)
def test_other_state_dicts_are_of_no_model(shapes: dict[str, tuple[int, ...]]) -> None:
    assert identify(shapes).name is None


def test_a_file_for_a_model_is_loaded_into_what_it_is_of(tmp_path: Path) -> None:
    module = zoo_architecture("squeezenet1_1", default_weights("squeezenet1_1"), {}, 3).build(5)
    state = {f"module.{key}": tensor for key, tensor in module.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 1}, tmp_path / "best.pth")
    request = ModelRequest(str(tmp_path / "best.pth"), device="cpu")
    for loaded in (load_model(request), load_skeleton(request)):
        assert loaded.info.name == "squeezenet1_1"
        assert (
            f"model: squeezenet1_1, recognised by the names and shapes in '{tmp_path / 'best.pth'}'"
            in loaded.notes
        )
        assert "num classes: 5, as in the checkpoint" in loaded.notes
    torch.testing.assert_close(load_model(request).module.state_dict(), module.state_dict())


def test_a_transformer_for_larger_pictures(tmp_path: Path) -> None:
    request = ModelRequest("vit_b_16", weights="none", model_args=("image_size=384",))
    path = half_precision_file(tmp_path / "large.safetensors", load_skeleton(request).module)
    recognised, _ = recognise(ModelRequest(str(path)))
    assert (recognised.model, recognised.model_args) == ("vit_b_16", ("image_size=384",))


def test_what_cannot_be_told_apart_is_asked_for(tmp_path: Path) -> None:
    path = half_precision_file(tmp_path / "a.safetensors", skeleton(LOOK_ALIKE[0], 91))
    with pytest.raises(UsageError) as caught:
        recognise(ModelRequest(str(path)))
    assert all(name in caught.value.message for name in LOOK_ALIKE)
    assert caught.value.hint == f"--model {LOOK_ALIKE[0]} --checkpoint {path}"


def test_metadata_decides_between_look_alikes(tmp_path: Path) -> None:
    path = half_precision_file(tmp_path / "a.safetensors", skeleton(LOOK_ALIKE[0], 91))
    whole = path.read_bytes()
    n = struct.unpack("<Q", whole[:8])[0]
    header = {"__metadata__": {"architecture": LOOK_ALIKE[1]}, **json.loads(whole[8 : 8 + n])}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + n :])
    assert recognise(ModelRequest(str(path)))[0].model == LOOK_ALIKE[1]


def test_of_no_model_and_of_nearly_one(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "own.pt")
    with pytest.raises(CannotRunError, match="does not hold the weights of a"):
        recognise(ModelRequest(str(tmp_path / "own.pt")))
    module = skeleton("resnet18")
    module.fc = nn.Identity()
    path = half_precision_file(tmp_path / "headless.safetensors", module)
    with pytest.raises(CannotRunError, match="no head to predict with: nearest is resnet18, m") as caught:
        recognise(ModelRequest(str(path)))
    assert caught.value.hint == f"--model resnet18 --checkpoint {path} --no-strict"
    assert recognise(ModelRequest(str(path), strict=False))[0].model == "resnet18"


def test_a_model_saved_whole_is_loaded_if_it_holds_nothing_but_layers_of_torch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
    image = torch.rand(1, 3, 8, 8)
    torch.save(net, tmp_path / "layers.pt")
    loaded = load_model(ModelRequest(str(tmp_path / "layers.pt")))
    assert torch.equal(loaded.module(image), net(image))
    assert loaded.info.weights.resolved == "layers.pt"
    # Beside the layers a function; one that is found through a module of torch's layers, as a hostile file may name
    # it; and a layer that is built from numbers in the file, which may ask for any amount of memory.
    net.register_forward_hook(print)
    torch.save(net, tmp_path / "hooked.pt")
    with ZipFile(tmp_path / "layers.pt") as layers, ZipFile(tmp_path / "sly.pt", "w") as sly:
        for name in layers.namelist():
            found, sought = layers.read(name), b"ctorch.nn.modules.flatten\nFlatten\n"
            assert not name.endswith("data.pkl") or sought in found
            sly.writestr(name, found.replace(sought, b"ctorch.nn.modules.module\ntorch.load\n"))
    calling = nn.Sequential(nn.Conv2d(3, 4, 3), _BuiltByCall())
    torch.save(calling, tmp_path / "calling.pt")
    for name in ("hooked.pt", "sly.pt", "calling.pt"):
        with pytest.raises(CannotRunError, match="saved whole") as caught:
            load_model(ModelRequest(str(tmp_path / name)))
        hint = str(caught.value.hint)
        assert hint.startswith("--model FILE.py:NAME ")
        assert "only if you trust the file" in hint


@pytest.mark.parametrize("name", ["resnet18", "regnet_y_400mf", "shufflenet_v2_x0_5"])
@pytest.mark.parametrize("prefix", ["", "backbone.", "net.encoder."])
def test_matrices_beside_a_body_take_the_place_of_its_head(name: str, prefix: str) -> None:
    shapes = {
        key: shape for key, shape in shapes_of(skeleton(name), prefix).items() if ".fc." not in f".{key}"
    }
    assert identify(shapes).head_in(shapes) == ""
    shapes |= {"top.weight": (7, 512), "top.bias": (7,)}
    assert identify(shapes).head_in(shapes) == "7 classes: top.weight 7x512 in the place of fc"
    shapes |= {"box.weight": (4, 512)}
    assert identify(shapes).head_in(shapes) == "top.weight 7x512, box.weight 4x512 in the place of fc"


@pytest.mark.parametrize("wrap", [lambda model: model, nn.DataParallel])
@pytest.mark.parametrize(
    "names", [{"classes": list("abcdef")}, {"class_to_idx": dict(zip("abcdef", range(6), strict=True))}]
)
def test_a_model_saved_whole_names_its_class_and_its_classes(tmp_path: Path, wrap: Any, names: Any) -> None:
    narrow, known = mobilenet_v2(num_classes=6, width_mult=0.25), squeezenet1_1(num_classes=6)
    for model, file in ((narrow, "narrow.pt"), (known, "known.pt")):
        torch.save({"ema": {"model": wrap(model)}, **names}, tmp_path / file)
        contents = read_contents(tmp_path / file)
        assert contents.saved_as[0] == f"{type(model).__module__}.{type(model).__name__}"
        assert [*contents.beside.values()] == ["6 names (a, b, c, ...)"]
    assert load_model(ModelRequest(str(tmp_path / "known.pt"))).categories == tuple("abcdef")
    with pytest.raises(CannotRunError, match=r"MobileNetV2', saved whole") as caught:
        load_model(ModelRequest(str(tmp_path / "narrow.pt")))
    load = str(caught.value.hint).partition("NAME = lambda: ")[2]
    assert isinstance(eval(load, {"torch": torch}), MobileNetV2)


class _BuiltByCall(nn.Module):
    def __reduce__(self) -> tuple[type, tuple[int, int]]:
        return nn.Linear, (3, 4)
