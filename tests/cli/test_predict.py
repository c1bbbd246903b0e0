"""`modelscope predict`: the answers are torch's own, whatever the labels, activation and format."""

import json

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tolerance import A_NETWORK, close

CLASSES = ["circle", "square", "triangle", "star", "ring"]
CLASSES += ["cross", "stripes", "checkerboard", "dots", "waves"]


@pytest.fixture(scope="module")
def logits(loaded, samples):
    """What SqueezeNet says about the three sample images, without any hook: `(3, 10)`."""
    checkpoint = samples / "shapes_squeezenet1_1.safetensors"
    images = ("star.png", "harbour.jpg", "composition.jpg")
    module, args = loaded(*images, model="squeezenet1_1", checkpoint=checkpoint)
    with torch.no_grad():
        return module(*args)


ALL = "predict {star} {harbour} {composition} {squeezenet}"


def test_the_likeliest_classes_are_torchs(run, logits, samples):
    document = run(f"{ALL} --top 3 --json --batch 2").json
    assert document["schema"] == "modelscope/predict/1"
    assert (document["activation"], document["classes"]) == ("softmax", 10)
    assert document["threshold"] is None
    names = [prediction["image"] for prediction in document["predictions"]]
    assert names == [str(samples / name) for name in ("star.png", "harbour.jpg", "composition.jpg")]
    scores, indices = logits.softmax(1).topk(3)
    for prediction, score, index, row in zip(document["predictions"], scores, indices, logits, strict=True):
        top = prediction["top"]
        assert [guess["index"] for guess in top] == index.tolist()
        assert [guess["label"] for guess in top] == [CLASSES[i] for i in index.tolist()]
        assert [guess["score"] for guess in top] == close(score.tolist(), A_NETWORK)
        assert [guess["logit"] for guess in top] == close(row[index].tolist(), A_NETWORK, scale=0.1)


NAMES = [f"name {i}" for i in range(10)]
LABEL_FILES = {
    "lines.txt": "\n".join(NAMES) + "\n\n",
    "imagenet.json": json.dumps({str(i): ["n0", NAMES[i]] for i in range(10)}),
    "list.txt": "\ufeff" + json.dumps(NAMES, indent=2),
}


@pytest.mark.parametrize("name", LABEL_FILES)
def test_labels_of_ones_own(run, cwd, logits, name):
    (cwd / name).write_text(LABEL_FILES[name], encoding="utf-8")
    labels = run(f"{ALL} --top 1 --labels {name}").column("label")
    assert labels == [NAMES[i] for i in logits.argmax(1).tolist()]


@pytest.mark.parametrize(("content", "said"), [
    ("one\ntwo\n", "'labels.json' has 2 labels, but the model has 10 classes"),
    ("[1, 2]", "'1' is not a label"),
    ('{"0": "a", "2": "b"}', "none of the 2 labels has the index 1"),
    ('{"a": "b"}', "none of the 1 labels has the index 0"),
    ('["a", "b"', "delimiter"),
    ("  \n", "it is empty"),
    (b"\xff\xfe\x00", "it is not text"),
    (None, "cannot be read: No such file"),
])  # fmt: skip
def test_labels_that_do_not_fit(run, cwd, content, said):
    name = "labels.txt" if said.startswith("'labels.json'") else "labels.json"
    if content is not None:
        (cwd / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    outcome = run(f"predict {{star}} {{squeezenet}} --labels {name}", expect=4)
    assert said.replace("labels.json", name) in outcome.err
    assert f"'{name}'" in outcome.err
    assert "hint: " in outcome.err
    assert outcome.out == ""


def test_rows_come_before_the_last_picture_is_read(run, cwd, samples):
    for i in range(4):
        Image.new("RGB", (64, 64), (60 * i, 90, 30)).save(cwd / f"{i}.png")
    (cwd / "4.png").write_bytes(b"no picture")
    outcome = run("predict 0.png 1.png 2.png 3.png 4.png {healthy} --top 1 --batch 2 --strict", expect=4)
    assert outcome.column("image") == ["0.png", "1.png", "2.png", "3.png"]
    assert "'4.png'" in outcome.err
    outcome = run(
        "predict 0.png 1.png 2.png 3.png 4.png {healthy} --top 1 --batch 2 --json --strict", expect=4
    )
    assert outcome.out == ""


SICK = "--model {samples}/tiny_resnet.py:TinyResNet -c {samples}/sick.safetensors"
SHAPES = f"predict {{samples}}/shapes {SICK}"


def test_folders_named_after_classes_are_judged_and_the_wrong_images_come_first(run, cwd):
    outcome = run(f"{SHAPES} -f table --html page.html")
    assert "accuracy" in outcome.out
    images = [line.split()[0] for line in outcome.out.splitlines() if ".jpg" in line]
    document = run(f"{SHAPES} --json").json
    wrong = [
        one["image"]
        for one in document["predictions"]
        if one["top"][0]["label"] != one["image"].split("/")[-2]
    ]
    assert document["truth"]["accuracy"]["value"] == pytest.approx(
        1 - len(wrong) / len(document["predictions"])
    )
    assert {image.split("/")[-2:][0] for image in images} <= {image.split("/")[-2] for image in wrong}
    assert all(len(one["top"]) == 1 for one in document["predictions"])
    assert "data:image" in (cwd / "page.html").read_text()


def test_images_in_folders_inside_those_of_the_classes_are_judged_with_them(run, cwd):
    for name in ("cat", "dog"):
        (cwd / "set" / name / "more").mkdir(parents=True)
        Image.new("RGB", (20, 20)).save(cwd / "set" / name / "more" / "a.png")
        Image.new("RGB", (20, 20)).save(cwd / "set" / name / "b.png")
    (cwd / "net.py").write_text(
        "import torch\ndef make(): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(2))"
    )
    record = run("predict net.py:make set -w none --size 8 --labels cat,dog --json").json
    assert record["truth"]["images"] == 4
    assert {one["label"] for one in record["truth"]["classes"]} == {"cat", "dog"}


def test_no_truth_is_taken_from_folders_that_are_not_classes(run, cwd):
    for name in ("one", "two"):
        (cwd / name).mkdir()
        Image.new("RGB", (20, 20)).save(cwd / name / "a.png")
    assert run(f"predict one two {SICK} --json").json["truth"] is None
    assert run(f"{SHAPES} --truth none --json").json["truth"] is None


REVERSED = CLASSES[::-1]
SAVED = {
    "classes": REVERSED,
    "class_to_idx": {name: n for n, name in enumerate(REVERSED)},
    "id2label": dict(enumerate(REVERSED)),
    "idx_to_class": {str(n): name for n, name in enumerate(REVERSED)},  # as JSON has them
    "hyper_parameters": {"lr": 0.1, "class_names": REVERSED},  # of Lightning
    "datamodule_hyper_parameters": {"classes": REVERSED},
}


@pytest.mark.parametrize("key", SAVED)
def test_class_names_that_a_script_saved_beside_the_weights_are_the_labels(run, cwd, samples, key):
    state = load_file(samples / "tiny_resnet.safetensors")
    torch.save({"model": state, key: SAVED[key], "epoch": 3}, cwd / "saved.pth")
    outcome = run("predict {samples}/tiny_resnet.py:TinyResNet -c saved.pth {samples}/shapes --json")
    document = outcome.json
    best = [one["top"][0] for one in document["predictions"]]
    assert [one["label"] for one in best] == [REVERSED[one["index"]] for one in best]
    folders = [one["image"].split("/")[-2] for one in document["predictions"]]
    right = sum(one["label"] == folder for one, folder in zip(best, folders, strict=True))
    assert document["truth"]["accuracy"]["value"] == right / len(best)
    assert f"'{key}" in outcome.err
    assert f"not read: {key}" not in outcome.err


@pytest.mark.parametrize("names", [CLASSES[:9], [*CLASSES[:9], "circle"], list(range(10))])
def test_names_that_are_not_one_for_each_class_are_left(run, cwd, samples, names):
    state = {"model": load_file(samples / "tiny_resnet.safetensors"), "classes": names}
    torch.save(state, cwd / "saved.pth")
    outcome = run("predict {samples}/tiny_resnet.py:TinyResNet -c saved.pth {samples}/shapes --json")
    assert all(one["top"][0]["label"] is None for one in outcome.json["predictions"])
    assert "(assuming classes in alphabetical order)" in outcome.err
    assert "in the order that fits the predictions" in outcome.err
    assert outcome.err.rstrip().endswith(f"--labels {','.join(CLASSES)}")


def test_labels_in_another_order_are_recognised(run, cwd):
    model = "{samples}/tiny_resnet.py:TinyResNet -c {samples}/tiny_resnet.safetensors"
    order = [*CLASSES[1:], CLASSES[0]]
    outcome = run(f"predict {model} {{samples}}/shapes --labels {','.join(order)} -f table")
    facts = " ".join(outcome.out.split())
    assert "accuracy 0.0 % of 30 images" in facts
    other = f"other order accuracy 100.0 % with the labels in this order: --labels {','.join(CLASSES)}"
    assert other in facts
    measures = run(
        f"predict {model} {{samples}}/shapes --labels {','.join(order)} --truth folders -f table"
    ).out
    assert "other order" in measures
    doctor = f"predict {model} {{samples}}/shapes --doctor -f table"
    said = " ".join(run(f"{doctor} --labels {','.join(order)}").out.split())
    assert other in said
    assert "is more accurate" not in said
    said = " ".join(run(doctor).out.split())
    assert "verdict No variation is better than yours (100.0 % right): 4 of 15 do as well" in said
    assert "other order" not in said
    right = run(f"predict {model} {{samples}}/shapes -f table").out
    assert "100.0 % of 30 images" in right
    assert "other order" not in right
    assert "other order" not in run(f"{SHAPES} -f table").out  # one class for all images, nearly


def test_columns_that_say_nothing_are_left_out_and_explained_with_v(run, monkeypatch):
    line = (
        "predict {samples}/tiny_resnet.py:TinyResNet -c {samples}/sick.safetensors {samples}/shapes -f table"
    )
    plain, explained = run(f"{line} --truth none").out, run(f"{line} --truth none -v").out
    assert "rank" not in plain.splitlines()[2]
    assert "softmax: one of 10 classes" in explained
    assert "softmax: one of 10 classes" not in plain


def test_tied_scores_have_no_accuracy(run, cwd):
    (cwd / "net.py").write_text("""
from torch import nn

def make():
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    nn.init.zeros_(net[2].weight)
    nn.init.zeros_(net[2].bias)
    return net
""")
    for name in ("cat", "dog"):
        (cwd / "set" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8), len(name)).save(cwd / "set" / name / "1.png")
    outcome = run("predict net.py:make set -w none --size 8 --labels cat,dog --truth folders --json")
    assert outcome.json["truth"] is None
    assert "the scores are the same for all classes" in outcome.err
