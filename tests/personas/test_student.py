"""The student: opens a network and wants to see how it works, in the words of the first try."""

import shlex

import pytest
import torch
import torchvision
from PIL import Image
from tolerance import close
from torch import nn
from torchvision import transforms

import modelscope_cli as ms

NET = "demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors"
SICK = "demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/sick.safetensors"
STAR = 3  # the class of the image
# How torchvision's networks are given an image.
PREPARED = transforms.Compose(
    [
        transforms.Resize(256),
        transforms.CenterCrop(224),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
)


@pytest.fixture
def star(demo):
    return PREPARED(Image.open(demo / "star.png").convert("RGB"))[None]


@pytest.fixture
def net(demo):
    """A network with its trained weights, to ask torch instead of the tool."""
    return lambda weights: ms.load(f"{demo}/tiny_resnet.py:TinyResNet", checkpoint=demo / weights).module


def calls(model, x, kind=nn.Module):
    """Return `(name, output)` of every call of an innermost layer, in order."""
    found = []
    hooks = [
        layer.register_forward_hook(lambda _, __, y, name=name: found.append((name, y.clone())))
        for name, layer in model.named_modules()
        if isinstance(layer, kind) and not list(layer.children())
    ]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("line", ["modelscope summary resnet34", "modelscope summary --model resnet34"])
def test_the_shape_of_every_layer(person, line):
    with torch.device("meta"):
        model, x = torchvision.models.resnet34().eval(), torch.empty(1, 3, 224, 224)
    said = [layer for layer in person.types(f"{line} --json").json["layers"] if layer["is_leaf"]]
    assert [(one["name"], one["output_shapes"][0]) for one in said] == [
        (name, list(y.shape)) for name, y in calls(model, x)
    ]


def test_statistics_of_a_network_by_its_name(person):
    answer = person.types("modelscope stats resnet34")
    assert len(answer.rows) == 108
    assert answer.rows[0]["shape"] == "1x64x112x112"
    assert "random weights" in answer.err


def test_gradients_of_a_network_by_its_name(person):
    answer = person.types("modelscope grads resnet34 demo/star.png --no-save")
    assert answer.column("name") == [name for name, _ in torchvision.models.resnet34().named_parameters()]


@pytest.mark.parametrize(
    ("typed", "meant"), [("-l 1", [0]), ("-l @16", [15]), ("-l conv@1,16", [0, 15]), ("-l conv@16", [15])]
)
def test_the_maps_of_a_layer_by_its_number(person, typed, meant):
    line = f"modelscope featuremaps demo/star.png {typed} --out maps --json"
    works = typed in ("-l @16", "-l conv@16")
    answer = person.types(line, code=0 if works else 2)
    if not works:
        answer = person.pastes(answer)
    with torch.device("meta"):
        model, x = torchvision.models.resnet34().eval(), torch.empty(1, 3, 224, 224)
    names = [name for name, _ in calls(model, x, nn.Conv2d if "conv" in typed else nn.Module)]
    maps = answer.json["maps"]
    assert [one["name"] for one in maps] == [names[place] for place in meant]
    assert all((person.folder / "maps" / one["file"]).is_file() for one in maps)


def test_which_channel_is_that(person, star, net):
    answer = person.types(f"modelscope featuremaps {NET} -l conv --channels 3,7 --out maps --json")
    (row,) = answer.json["maps"]
    y = dict(calls(net("tiny_resnet.safetensors"), star))["conv"]
    assert row["shown"] == [3, 7]
    assert (row["min"], row["max"]) == (close(y.min().item(), scale=20), close(y.max().item(), scale=20))


@pytest.mark.parametrize("command", ["predict", "check --select MS2", "stats -l head"])
def test_the_image_first_and_the_model_behind_it(person, command):
    model, image, *weights = NET.split()
    turned = shlex.join([image, model, *weights])
    assert (
        person.types(f"modelscope {command} {turned}").out == person.types(f"modelscope {command} {NET}").out
    )


def test_dead_units_and_which_channels(person, star, net):
    dead = [
        [i for i in range(y.shape[1]) if not y[:, i].any()]
        for _, y in calls(net("sick.safetensors"), star, nn.ReLU)
    ]
    line = f"modelscope stats {SICK} -l type:ReLU"
    said = person.types(line).column("dead")
    assert [int(one.partition("/")[0] or 0) for one in said] == list(map(len, dead))
    listed = person.types(f"{line} --table channels --json").json["layers"]
    assert [one["dead_indices"] for one in listed] == dead
    narrow = person.types(f"COLUMNS=80 {line} --format table").out
    assert "zero" in narrow
    assert "dead" in narrow
    assert "of one image only" in narrow


def test_clipping_names_its_limit_and_keeps_it(person):
    rows = person.types(f"modelscope grads {NET} --clip 0.001 --no-save").rows
    assert all(float(row["abs_max"]) <= 0.001001 for row in rows)
    assert any(float(row["before"]) > float(row["norm"]) for row in rows)


def test_freezing_all_but_the_head(person):
    answer = person.types(f"modelscope grads {NET} --train-only head --no-save")
    trained = {row["name"] for row in answer.rows if row["trainable"] == "true"}
    assert trained == {"head.weight", "head.bias"}
    assert "trained: 650 parameters" in answer.err


def test_one_channel_is_taken_out(person, star, net):
    rows = person.types(f"modelscope ablate {NET} -l conv --by-channel --no-save").rows
    (said,) = (row for row in rows if row["channel"] == "4")

    def silence(layer, args, y):
        y[:, 4] = 0

    model = net("tiny_resnet.safetensors")
    model.conv.register_forward_hook(silence)
    with torch.no_grad():
        truth = model(star).softmax(1)[0, STAR].item()
    assert float(said["probability"]) == close(truth)


@pytest.mark.parametrize("typed", ["--topk 3", "--top-k 3", "--topk=3"])
def test_the_first_three_classes(person, typed, star, net):
    rows = person.pastes(person.types(f"modelscope predict {NET} {typed}", code=2)).rows
    with torch.no_grad():
        logits, order = net("tiny_resnet.safetensors")(star)[0].topk(3)
    assert [int(row["index"]) for row in rows] == order.tolist()
    assert [float(row["logit"]) for row in rows] == [close(one, scale=3) for one in logits.tolist()]


def test_an_attack_keeps_to_its_eps(person, demo):
    answer = person.types(f"modelscope attack {NET} --eps 0.02 --steps 3 --out fooled --json", code=2)
    record = person.pastes(answer).json
    assert record["epsilon"] == 0.02
    assert 0 < record["linf"] <= 0.02 + 1e-6


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("resnet34", "summary resnet34"),
        ("info resnet34", "summary resnet34"),
        ("summry resnet34", "summary resnet34"),
        ("summary resnet34 --input-size 1,3,64,64", "summary resnet34 --input-shape 1,3,64,64"),
        ("summary resnet34 --mdoel resnet34", "summary resnet34 --model resnet34"),
        ("summary resnet34 --mode eval", "summary --help"),  # an option of others: not a slip for --model
        ("predict resnet34 demo/star.png --gpu", "predict resnet34 demo/star.png --device cuda"),
        ("predict resnet34 --image demo/star.png", "predict resnet34 demo/star.png"),
    ],
)
def test_what_other_tools_would_have_understood(person, typed, meant):
    assert person.types(f"modelscope {typed}", code=2).hint == f"modelscope {meant}"


def test_an_argument_too_many(person):
    assert person.types("modelscope demo here there", code=2).hint == "leave out there"


@pytest.mark.parametrize("command", ["summary", "stats -w none -l head", "check -w none --select MS1"])
def test_a_file_without_its_class_names_the_class(person, command):
    answer = person.types(f"modelscope {command} demo/tiny_resnet.py", code=2)
    assert "it has TinyResNet, Block" in answer.error
    assert answer.hint == "--model demo/tiny_resnet.py:TinyResNet"
    assert person.pastes(answer).out == person.types(f"modelscope {command} {answer.hint}").out
