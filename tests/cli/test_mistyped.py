"""What people type who know another tool: the hint is the line that does it here."""

import random

import numpy as np
import pytest
import torch
from PIL import Image

from modelscope_cli.analysis.explaining.request import METHODS, choose_methods
from modelscope_cli.shell.declared import declared, options_of, takes_value
from modelscope_cli.shell.hints import SYNONYMS
from modelscope_cli.shell.overview import COMMANDS

NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3), nn.ReLU())
"""


@pytest.fixture(autouse=True)
def folder(cwd):
    (cwd / "net.py").write_text(NET)
    (cwd / "photos").mkdir()
    for name in ("img.jpg", "photos/my cat.jpg"):
        Image.new("RGB", (8, 8)).save(cwd / name)
    (cwd / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(90))
    np.save(cwd / "batch.npy", np.zeros((1, 3, 8, 8), "float32"))
    torch.save(torch.zeros(1, 3, 8, 8), cwd / "batch.pt")
    torch.save({"0.weight": torch.zeros(4, 3, 3, 3), "0.bias": torch.zeros(4)}, cwd / "last.pth")
    return cwd


@pytest.mark.parametrize(("typed", "meant"), [
    # options of other tools
    ("stats resnet18 --imgsz=64", "stats resnet18 --size 64"),
    ("predict resnet18 --img img.jpg", "predict resnet18 img.jpg"),
    ("predict resnet18 --source img.jpg", "predict resnet18 img.jpg"),
    ("stats resnet18 --half", "stats resnet18 --dtype float16"),
    ("stats resnet18 --cuda img.jpg", "stats resnet18 --device cuda img.jpg"),
    ("stats resnet18 --no-pretrained", "stats resnet18 --weights none"),
    ("explain resnet18 img.jpg --target_layer layer4", "explain resnet18 img.jpg --layer layer4"),
    ("train net.py:Net --data photos", "train net.py:Net photos"),
    ("train net.py:Net --epochs 3", "train net.py:Net --steps 3"),
    ("attack resnet18 img.jpg --eps 0.1", "attack resnet18 img.jpg --epsilon 0.1"),
    ("stats resnet18 --layers conv1 img.jpg", "stats resnet18 --layer conv1 img.jpg"),
    # in another order
    ("-q summary resnet18 --depth 1", "summary resnet18 --depth 1 -q"),
    ("--model resnet18 summary", "summary --model resnet18"),
    # a value is missing
    ("summary resnet18 --graph", "summary resnet18 --graph FILE"),
    ("stats resnet18 --sort", "stats resnet18 --sort COLUMN"),
    # a folder as a file
    ("featuremaps net.py:Net -o maps", "featuremaps net.py:Net --out maps   a folder for the figures"),
    # an option as the value of another
    ("stats net.py:Net --plot --out st1", "stats net.py:Net --plot FILE --out st1"),
    ("watch --steps --out x train.py --out y", "watch --steps N --out x train.py --out y"),
    # B, written last
    ("diff net.py:Net img.jpg --checkpoint-b last.pth", "diff net.py:Net img.jpg --b-checkpoint last.pth"),
    ("diff net.py:Net img.jpg --dtype2 float16", "diff net.py:Net img.jpg --b-dtype float16"),
    ("check net.py:Net --junit out.xml", "check net.py:Net --output out.xml"),
    # a launcher as the script
    ("watch --every 5 python train.py --epochs 2", "watch --every 5 train.py --epochs 2"),
    # words by position
    ("predict net.py:Net img.jpg last.pth", "predict net.py:Net img.jpg --checkpoint last.pth"),
    ("predict net.py:Net img.jpg last.pth -c other.pth", "predict net.py:Net img.jpg -c other.pth"),
    ("diff net.py:Net last.pth last.pth", "diff last.pth last.pth"),
    ("weights resnet18", "summary resnet18"),
    ("weights net.py:Net", "summary net.py:Net"),
    ("report resnet18", "summary resnet18 --html report.html"),
    # commands
    ("lr_find net.py:Net photos", "lrfind net.py:Net photos"),
    ("gradcam resnet18 img.jpg", "explain resnet18 img.jpg"),
    ("resnet18", "summary resnet18"),
    ("net.py", "watch net.py"),
])  # fmt: skip
def test_the_hint_is_the_line_that_was_meant(refused, typed, meant):
    assert refused(typed, 2)[1] == f"hint: modelscope {meant}"


@pytest.mark.parametrize(("typed", "meant"), [
    ("resnet-18", "resnet18"),
    ("torchvision.models.resnet18", "resnet18"),
    ("torchvision/resnet18", "resnet18"),
    ("models.resnet18", "resnet18"),
    ("'resnet18()'", "resnet18"),
    ("net", "net.py:Net"),
    ("net.Net", "net:Net"),
    ("timm/resnet18.a1_in1k", "timm:resnet18.a1_in1k"),
    ("microsoft/resnet-50", "hf:microsoft/resnet-50"),
])  # fmt: skip
def test_a_model_by_the_name_it_has_elsewhere(refused, typed, meant):
    for command in ("summary", "stats"):
        message, hint = refused(f"{command} {typed}", 2)
        assert message.endswith(f": did you mean {meant}")
        assert hint == f"hint: --model {meant}"


@pytest.mark.parametrize(("typed", "meant"), [
    ("net.py::Net", "--model net.py:Net"),
    ("'net.py:Net()'", "--model net.py:Net"),
    ("'net.py:Net(classes=5)'", "--model net.py:Net --model-arg classes=5"),
    ("'net.py:Net(5)'", "--model net.py:Net --model-arg NAME=5"),
])  # fmt: skip
def test_a_model_as_python_calls_it(refused, typed, meant):
    assert refused(f"summary {typed}", 2)[1] == f"hint: {meant}"


def test_what_a_summary_does_not_need_can_be_left_out(refused):
    for option in ("--device cpu", "--weights DEFAULT"):
        assert refused(f"summary resnet18 {option}", 2)[1].startswith(
            f"hint: leave out {option} or --columns "
        )


@pytest.mark.parametrize(("typed", "code", "said", "hint"), [
    ("prune net.py:Net --amount 50%", 2, "'--amount 50%' is not a number", "--amount 0.5"),
    ("summary net.py:Net --input 1x28x28", 2, "",
     "leave out --input 1x28x28   --input-shape 1,28,28 gives a shape"),
    ("predict last.pth img.jpg", 4, "'last.pth' does not hold the weights of a model",
     "--model FILE.py:NAME --checkpoint last.pth"),
    ("watch torchrun --nproc-per-node 2 train.py --epochs 2", 2, "",
     "torchrun --nproc-per-node 2 -m modelscope_cli watch train.py --epochs 2"),
    ("summary resnet18 resnet34", 2, "'resnet18' and 'resnet34' are two models",
     "leave out resnet34 or modelscope diff resnet18 resnet34"),
    ("stats net.py:Net phone.heic", 4, "", "magick phone.heic phone.png"),
    ("stats net.py:Net https://example.org/a.jpg", 4, "is a URL, but images are read from files",
     "curl -LO https://example.org/a.jpg"),
])  # fmt: skip
def test_what_is_meant_stands_in_the_hint(refused, typed, code, said, hint):
    message, suggested = refused(typed, code)
    assert said in message
    assert suggested == f"hint: {hint}"


def test_tensors_by_position_are_not_weights(run):
    for file in ("batch.npy", "batch.pt"):
        assert run(f"stats net.py:Net {file} --columns shape").column("shape")[0] == "1x4x6x6"


def test_a_checkpoint_given_as_weights_is_loaded(run):
    by_weights = run(
        "predict net.py:Net img.jpg --weights last.pth --size 8 --top 1 --scores logits", expect=None
    )
    by_name = run(
        "predict net.py:Net img.jpg --checkpoint last.pth --size 8 --top 1 --scores logits", expect=None
    )
    assert by_weights == by_name
    assert run("stats net.py:Net img.jpg -w last.pth --size 8 --columns max").column("max") == ["0.0", "0.0"]


def test_shapes_as_tables_and_python_write_them(run):
    for shape in ("1,3,8,8", "1x3x8x8", "'(1, 3, 8, 8)'", "'[1, 3, 8, 8]'"):
        assert (
            run(f"summary net.py:Net --input-shape {shape} --columns input").column("input")[0] == "1x3x8x8"
        )
    assert run("check net.py:Net --size 8 --expect-output 1x4x6x6 --select MS504", expect=None).code == 0


def test_methods_of_explanation_as_papers_and_captum_write_them(refused):
    written = "IntegratedGradients,Grad-CAM,grad_cam++,GradCAM++,InputXGradient,LRP,Layer-CAM"
    expected = "integrated-gradients gradcam gradcam++ input-x-gradient lrp layercam"
    assert choose_methods(written) == tuple(expected.split())
    assert choose_methods(",".join(METHODS)) == tuple(METHODS)
    message, hint = refused("explain net.py:Net img.jpg --method GuidedGradCam", 2)
    assert message.startswith("error: 'GuidedGradCam' is not a method: did you mean gradcam")
    assert hint.startswith("hint: did you mean gradcam")


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_typed_ends_in_a_message_and_a_hint(seed, run):
    """Words of all commands in any order, with an option that none has, so that nothing runs."""
    rng = random.Random(seed)
    options = [name for command in COMMANDS for name in options_of(command) if name != "--debug"]
    words = [
        *COMMANDS,
        *SYNONYMS,
        *options,
        "-xq",
        "-columns",
        "-",
        "30%",
        "a=b",
        "--no=",
        "x",
        "=",
        "img.jpg",
    ]
    for _ in range(15):
        others = [rng.choice(words) for _ in range(rng.randrange(4))]
        line = " ".join([rng.choice(list(COMMANDS)), *others, "--no-such-thing"])
        found = run(line, None)  # it holds that there is no traceback
        assert found.code in (0, 2, 4), line
        assert found.code == 0 or "\nhint: " in found.err, line


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_given_twice(run, command):
    """One that takes one value is refused, and so is a flag with its negation."""
    for one in declared(command).values():
        if one.is_argument or one.parameter.kind == "texts" or one.option.is_list:
            continue
        flag, *negation = one.spellings[0].split("/")
        if takes_value(one):
            err = run(f"{command} {flag} 1 {flag}=2", expect=2).err
            assert err.startswith(f"error: '{flag}' takes one value, and got 1 and 2\n")
            assert err.endswith(f"hint: modelscope {command} {flag}=2\n") or "--b-" in err
        elif negation:
            err = run(f"{command} {flag} {negation[0]}", expect=2).err
            assert err.startswith(f"error: '{flag}' and '{negation[0]}' exclude each other\n")


@pytest.mark.parametrize(("line", "hint"), [
    ("predict net.py:Net img.jpg -b8 --batch 4", "predict net.py:Net img.jpg --batch 4"),
    ("predict net.py:Net img.jpg -b 8 -b4 -b 2 -q", "predict net.py:Net img.jpg -b 2 -q"),
    ("predict net.py:Net img.jpg -qb 8 -b 4", "predict --help"),
    ("diff net.py:Net -c a.pth -c b.pth", "diff net.py:Net -c a.pth --b-checkpoint b.pth"),
    ("watch --steps 3 --steps 4 train.py --steps 5 --steps 6", "watch --steps 4 train.py --steps 5 --steps 6"),
    ("rules --top 1 -q -q --top 2", "rules -q -q --top 2"),
])  # fmt: skip
def test_the_line_with_one_of_two_values(run, line, hint):
    assert run(line, expect=2).err.endswith(f"hint: modelscope {hint}\n")


def test_values_of_a_list_are_joined(run):
    assert run("rules --columns code --columns name --top 1").out.startswith("code\tname\n")
    assert choose_methods("hirescam,gradcam") == ("hirescam", "gradcam")
