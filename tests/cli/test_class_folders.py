"""Folders named after classes are the truth of `grads` and `ablate`: by ImageFolder and torch."""

import csv
import shlex

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from tolerance import A_NETWORK, assert_close, close
from torch import nn
from torchvision.datasets import ImageFolder
from torchvision.transforms.functional import to_tensor

import modelscope_cli as ms
from modelscope_cli.report.registry import view_of
from modelscope_cli.shell.console import PROGRESS

NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(8, 4),
        )
"""
SORTED = ["ant", "bee", "cat", "Dog"]
OURS = "{command} net.py:Net -c net.pt data --size 16 --mean 0 --std 1"


def net():
    torch.manual_seed(3)
    layers = [
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ]
    model = nn.Sequential(*layers, nn.Linear(8, 4)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # so that the four classes are all predicted
        model[-1].bias.zero_()
    return model


def write(folder, classes=None, folders=SORTED, n=5):
    """Write the net, its weights with names of the classes where there are some, and images in folders."""
    (folder / "net.py").write_text(NET)
    state = net().state_dict()
    torch.save(state if classes is None else {"state_dict": state, "classes": classes}, folder / "net.pt")
    random = np.random.default_rng(7)
    for name in folders:
        (folder / "data" / name).mkdir(parents=True)
        for number in range(n):
            colour = random.integers(0, 256, 3) + random.integers(-40, 40, (16, 16, 3))
            Image.fromarray(colour.clip(0, 255).astype(np.uint8)).save(
                folder / "data" / name / f"{number}.png"
            )


def truth_of(folder, classes):
    """Return the images and their classes by ImageFolder, in the order of the names that the net was saved with."""
    data = ImageFolder(folder / "data", transform=to_tensor)
    by_name = {name.casefold(): index for index, name in enumerate(classes)}
    pairs = [(image, by_name[data.classes[index].casefold()]) for image, index in data]
    return torch.stack([image for image, _ in pairs]), torch.tensor([index for _, index in pairs])


ORDERS = {
    "sorted": SORTED,
    "permuted": ["cat", "Dog", "ant", "bee"],
    "other case": ["CAT", "dog", "Ant", "bee"],
}


@pytest.mark.parametrize("how", ["saved", "typed", "file"])
@pytest.mark.parametrize("order", ORDERS)
def test_the_gradient_is_that_of_the_classes_of_the_folders(run, cwd, order, how):
    classes = ORDERS[order]
    write(cwd, classes if how == "saved" else None)
    (cwd / "names.txt").write_text("\n".join(classes))
    labels = {"saved": "", "typed": f" --labels {','.join(classes)}", "file": " --labels names.txt"}[how]
    document = run(OURS.format(command="grads") + f" --batch 20 --json --no-save{labels}").json
    images, truth = truth_of(cwd, classes)
    model = net()
    loss = F.cross_entropy(model(images), truth)
    loss.backward()
    assert document["loss"]["value"] == close(loss.item(), A_NETWORK)
    assert document["loss"]["classes"] == truth.tolist()
    norms = {name: p.grad.norm().item() for name, p in model.named_parameters()}
    found = {row["name"]: row["grad_norm"] for row in document["parameters"]}
    for name, norm in norms.items():
        assert found[name] == close(norm, A_NETWORK), name
    assert "true class" in document["loss"]["target"]


@pytest.mark.parametrize(("loss", "expected"), [
    ("logit", lambda x, y: x.gather(1, y[:, None]).mean()),
    ("bce", lambda x, y: F.binary_cross_entropy_with_logits(x, F.one_hot(y, 4).float())),
    ("mse", lambda x, y: F.mse_loss(x, F.one_hot(y, 4).float())),
    ("ours.py:loss", F.multi_margin_loss),
])  # fmt: skip
def test_every_loss_of_classes_takes_them(run, cwd, loss, expected):
    write(cwd, SORTED)
    (cwd / "ours.py").write_text("from torch.nn.functional import multi_margin_loss as loss\n")
    document = run(OURS.format(command="grads") + f" --loss {loss} --batch 7 --json --no-save").json
    images, truth = truth_of(cwd, SORTED)
    assert document["loss"]["value"] == close(expected(net()(images), truth).item(), A_NETWORK)


def test_the_python_functions_take_the_same_classes(cwd):
    write(cwd)
    options = {"size": 16, "mean": 0, "std": 1, "labels": ORDERS["permuted"]}
    images, truth = truth_of(cwd, ORDERS["permuted"])
    with torch.no_grad():
        logits = net()(images)
    grads = ms.grads(net(), "data", **options)
    assert grads.loss.value == close(F.cross_entropy(logits, truth).item(), A_NETWORK)
    accuracy = (logits.argmax(1) == truth).double().mean().item()
    assert ms.predict(net(), "data", **options).truth.accuracy.value == accuracy
    assert ms.ablate(net(), "data", **options).baseline.accuracy.value == accuracy


@pytest.mark.parametrize("unusual", ["one folder", "not a class", "asked for", "no names", "multi-label"])
def test_without_classes_the_predicted_class_is_the_target_and_nothing_is_added(run, cwd, unusual):
    folders = {"one folder": ["ant"], "not a class": ["ant", "elk"]}.get(unusual, SORTED)
    write(cwd, None if unusual == "no names" else SORTED, folders)
    if unusual == "multi-label":
        (cwd / "net.py").write_text(NET.replace("nn.Linear(8, 4),", "nn.Linear(8, 4), nn.Sigmoid(),"))
    target = " --target predicted" if unusual == "asked for" else ""
    grads = run(OURS.format(command="grads") + f"{target} --json --no-save")
    assert "true class" not in grads.json["loss"]["target"]
    if unusual == "asked for":
        return
    ablate = OURS.format(command="ablate") + " --no-save"
    assert "accuracy" not in run(f"{ablate} -f table").out
    document = run(f"{ablate} --json").json
    assert document.get("accuracy") is None
    assert all(row["accuracy"] is None for row in document["rows"])


@pytest.mark.parametrize("command", ["grads", "ablate", "predict", "predict --doctor"])
def test_missing_names_are_asked_for_by_an_option_that_works_when_pasted(run, cwd, command):
    write(cwd)
    line = OURS.format(command=command)
    noted = run(f"{line} --json").err
    labels = noted.partition("if this is their order: ")[2].splitlines()[0]
    assert shlex.split(labels) == ["--labels", "Dog,ant,bee,cat"]  # the order of ImageFolder
    outcome = run(f"{line} --json {labels}")
    assert "if this is their order" not in outcome.err
    assert "accuracy" in outcome.out or "true class" in outcome.json["loss"]["target"]
    if command == "predict":
        share = f"{100 * outcome.json['truth']['accuracy']['value']:.1f} % of 20 images"
        assert f"accuracy: {share} (assuming classes in alphabetical order); the model" in noted


@pytest.mark.parametrize("command", ["grads", "ablate", "predict", "predict --doctor"])
def test_a_wrong_number_of_names_is_refused(refused, cwd, command):
    write(cwd)
    message, _ = refused(OURS.format(command=command) + " --labels ant,bee,cat", 4)
    assert "3 labels, but the model has 4 classes" in message


def test_a_model_that_has_labels_needs_none(refused, cwd):
    write(cwd, ORDERS["permuted"])
    _, hint = refused(OURS.format(command="predict") + " --labels ant,bee,cat", 4)
    assert "--labels" not in hint


def test_accuracy_of_each_ablated_layer_is_that_of_a_hook(run, cwd):
    classes = ORDERS["permuted"]
    write(cwd, classes)
    images, truth = truth_of(cwd, classes)
    document = run(OURS.format(command="ablate") + " --batch 6 --json --no-save").json
    before = document["baseline"]["accuracy"]["value"]
    assert before == (net()(images).argmax(1) == truth).double().mean().item()
    for row in document["rows"]:
        model = net()
        model[int(row["name"])].register_forward_hook(lambda module, args, output: torch.zeros_like(output))
        scores = model(images)
        is_right = (scores.argmax(1) == truth) & (
            scores.amax(1) != scores.amin(1)
        )  # equal scores: no prediction
        after = is_right.double().mean().item()
        assert row["accuracy"]["value"] == after
        assert_close(torch.tensor(row["accuracy_drop"]), torch.tensor(before - after))
    table = run(OURS.format(command="ablate") + " --no-save -f table").out
    assert "accuracy drop" in table
    assert "of 20 images" in table
    cells = list(csv.DictReader(run(OURS.format(command="ablate") + " --no-save -f csv").out.splitlines()))
    assert [float(one["accuracy"]) for one in cells] == [row["accuracy"]["value"] for row in document["rows"]]
    assert [float(one["accuracy_drop"]) for one in cells] == [
        row["accuracy_drop"] for row in document["rows"]
    ]


def test_a_prediction_that_became_nan_is_not_right(cwd):
    write(cwd)
    model = net()
    model[-1].register_forward_hook(
        lambda module, args, output: output / (args[0].abs().sum(1, keepdim=True) > 0)
    )
    record = ms.ablate(model, "data", size=16, mean=0, std=1, labels=SORTED, layer="3")
    (row,) = record.rows
    assert row.output_l2 is None
    assert row.accuracy.value == 0


@pytest.mark.parametrize(("n", "answer", "accuracy"), [
    (0, "20 images: ", "% of 20 images"),
    (5, "15 images: ", "% of 15 images"),
    (20, "20 images: the scores are NaN", "not computed, as the scores of all images are NaN"),
])  # fmt: skip
def test_scores_of_nan_are_not_predictions(n, answer, accuracy, cwd, capsys):
    write(cwd)
    model = net()
    model[-1].register_forward_hook(
        lambda module, args, output: output.index_fill(0, torch.arange(n), torch.nan)
    )
    record = ms.predict(model, "data", size=16, mean=0, std=1, batch=20, progress=PROGRESS)
    said = view_of(record).answer(record)
    assert said.startswith(answer)
    assert ("; the scores of 5 more are NaN;" in said) == (n == 5)
    assert "class 0, nan" not in said
    assert accuracy in capsys.readouterr().err


def test_a_broken_image_leaves_the_others_with_their_own_class(run, cwd):
    write(cwd, SORTED)
    (cwd / "data" / "bee" / "1.png").write_bytes(b"not an image")
    document = run(OURS.format(command="grads") + " --batch 4 --json --no-save").json
    (cwd / "data" / "bee" / "1.png").unlink()
    images, truth = truth_of(cwd, SORTED)
    assert document["images"] == len(truth)
    assert document["loss"]["value"] == close(F.cross_entropy(net()(images), truth).item(), A_NETWORK)


def test_a_printed_result_begins_with_the_wrong_images_as_in_the_terminal(run, cwd):
    write(cwd, SORTED, n=30)
    record = ms.predict("net.py:Net", "data", checkpoint="net.pt", size=16, mean=0, std=1)
    wrong = [line.split()[0] for line in str(record).splitlines() if ".png" in line]
    shown = run(OURS.format(command="predict") + " -f table").out
    assert wrong == [line.split()[0] for line in shown.splitlines() if ".png" in line]
    rows = {one.image: one.top[0].label for one in record.predictions}
    assert len(rows) == len(record.to_rows()) == 120
    assert all(rows[image].casefold() != image.split("/")[-2].casefold() for image in wrong)
    assert all(image in record._repr_html_() for image in wrong)
    several = ms.predict("net.py:Net", "data", checkpoint="net.pt", size=16, mean=0, std=1, top=2)
    assert "rank" in str(several)
    assert len(str(several).splitlines()) < 80
    assert "record.to_rows() has them" in str(several)
    assert len(several.to_rows()) == 240


@pytest.mark.parametrize("command", ["predict", "ablate"])
@pytest.mark.parametrize(("bias", "n", "folders"), [(9.0, 2, 4), (0.0, 2, 4), (9.0, 1, 4), (9.0, 8, 1)])
def test_one_class_for_the_images_of_several_is_told(run, cwd, command, bias, n, folders):
    write(cwd, n=n, folders=SORTED[:folders])
    state = torch.load(cwd / "net.pt")
    state["6.bias"] = torch.tensor([0.0, 0.0, bias, 0.0])
    torch.save(state, cwd / "net.pt")
    said = run(OURS.format(command=command)).err
    told = f"all {n * folders} images of {folders} folders are predicted as class 2"
    assert (told in said) == (bool(bias) and n * folders >= 8 and folders > 1)


def test_the_one_class_has_its_label(run, cwd):
    write(cwd, n=2, folders=SORTED)
    state = torch.load(cwd / "net.pt")
    state["6.bias"] = torch.tensor([0.0, 0.0, 9.0, 0.0])
    torch.save(state, cwd / "net.pt")
    said = run(OURS.format(command="predict") + " --labels one,two,three,four").err
    assert "predicted as class 2 (three)" in said


@pytest.mark.parametrize(("lines", "where", "hinted"), [
    (["Dog", "cat", "bee", "ant"], "data/classes.txt", "data/classes.txt"),
    (["Dog", "cat", "bee", "ant"], "labels.txt", "labels.txt"),
    (["Dog", "cat", "bee"], "data/classes.txt", "Dog,ant,bee,cat"),
    (["Dog", "cat", "bee", "bug"], "data/classes.txt", "Dog,ant,bee,cat"),
    (["{}"], "data/labels.txt", "Dog,ant,bee,cat"),
])  # fmt: skip
def test_a_list_of_the_classes_beside_their_folders_is_found(run, cwd, lines, where, hinted):
    write(cwd)
    (cwd / where).write_text("\n".join(lines))
    assert (
        run(OURS.format(command="predict"))
        .err.rstrip()
        .endswith(f"if this is their order: --labels {hinted}")
    )


def test_labels_are_the_folders_of_the_images_or_those_beside(run, samples):
    names = ",".join(sorted(one.name for one in (samples / "shapes").iterdir() if one.is_dir()))
    line = "explain {samples}/tiny_resnet.py:TinyResNet {samples}/shapes/ring -w none -q --receipt none --no-save"
    assert f"--labels {names} --target ring" in run(f"{line} --target ring", None).err
    assert f" --labels {names}   # if" in run(f"{line} --labels a,b", None).err
    assert " --size 48,40\n" in run(f"{line} --size 48x40px", None).err
    run(f"{line} --labels {names} --target ring")


@pytest.mark.parametrize(
    "why", ["other names", "fewer folders", "more folders", "a list beside", "several labels"]
)
def test_folders_are_assumed_to_be_the_classes_only_where_nothing_speaks_against_it(run, cwd, why):
    folders = {"fewer folders": SORTED[:3], "more folders": [*SORTED, "elk"]}.get(why, SORTED)
    write(cwd, ["w", "x", "y", "z"] if why == "other names" else None, folders)
    if why == "a list beside":
        (cwd / "data" / "classes.txt").write_text("\n".join(SORTED[::-1]))
    more = " --scores sigmoid" if why == "several labels" else ""
    assert "assumed" not in run(OURS.format(command="predict") + more).err
    assert "assumed" not in run(OURS.format(command="check"), None).err or why == "several labels"
