"""What people type who know another tool: the hint is the line that does it here."""

import numpy as np
import pytest
import torch
from PIL import Image

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
    ("predict resnet18 --img img.jpg", "predict resnet18 img.jpg"),
    ("predict resnet18 --source img.jpg", "predict resnet18 img.jpg"),
    ("stats resnet18 --half", "stats resnet18 --dtype float16"),
    ("stats resnet18 --cuda img.jpg", "stats resnet18 --device cuda img.jpg"),
    ("stats resnet18 --no-pretrained", "stats resnet18 --weights none"),
    # a size, of an image or of noise
    ("ablate net.py:Net img.jpg --input-size 48", "ablate net.py:Net img.jpg --size 48"),
    ("stats net.py:Net --image-size 48x40", "stats net.py:Net --size 48,40"),
    ("stats net.py:Net img.jpg --input-size 3 48 40 -w none", "stats net.py:Net img.jpg --size 48,40 -w none"),
    ("stats net.py:Net --input-size 1,3,48,40", "stats net.py:Net --input-shape 1,3,48,40"),
    ("predict net.py:Net photos --imgsz=3,48,40", "predict net.py:Net photos --size 48,40"),
    ("stats net.py:Net img.jpg --resize none", "stats net.py:Net img.jpg   # see modelscope stats --help"),
    # another command after an option that this one lacks is its value
    ("predict net.py:Net img.jpg --mode train",
     "predict net.py:Net img.jpg   # it is an option of stats, grads, check, diff"),
    ("train --list", "summary --list   # lists the models"),
    ("predict net.py:Net img.jpg --frob check", "predict net.py:Net img.jpg   # see modelscope predict --help"),
    # in another order
    ("--model resnet18 summary", "summary --model resnet18"),
    # a model in the place of another
    ("predict net.py img.jpg --all", "predict net.py:Net img.jpg --all"),
    ("grads --model net.py img.jpg", "grads --model net.py:Net img.jpg"),
    ("summary timm/resnet18 --depth 2", "summary timm:resnet18 --depth 2"),
    ("summary ResNet-18 --depth 1", "summary resnet18 --depth 1"),
    ("summary torchvision.models.resnet18 --depth 1", "summary resnet18 --depth 1"),
    # other tools' spellings
    ("predict net.py:Net photos --top-k 3", "predict net.py:Net photos --top 3"),
    ("diff a.pt b.pt --atol 0.1", "diff a.pt b.pt --tolerance 0.1"),
    ("diff a.pt --b b.pt", "diff a.pt b.pt"),
    ("attribute net.py:Net img.jpg", "explain net.py:Net img.jpg"),
    # a layer as an image
    ("featuremaps img.jpg conv1", "featuremaps img.jpg --layer conv1"),
    ("stats net.py:Net layer1.0 img.jpg --all", "stats net.py:Net img.jpg --all --layer layer1.0"),
    # a value is missing
    ("stats resnet18 --plot", "stats resnet18 --plot FILE"),
    # a folder as a file
    ("featuremaps net.py:Net -o maps", "featuremaps net.py:Net --out maps   # a folder for the figures"),
    # an option as the value of another
    ("stats net.py:Net --plot --out st1", "stats net.py:Net --plot FILE --out st1"),
    ("watch --steps --out x train.py --out y", "watch --steps N --out x train.py --out y"),
    # B, written last
    ("diff net.py:Net img.jpg --checkpoint-b last.pth", "diff net.py:Net img.jpg --b-checkpoint last.pth"),
    ("diff net.py:Net img.jpg --dtype2 float16", "diff net.py:Net img.jpg --b-dtype float16"),
    # a launcher as the script
    ("watch --every 5 python train.py --epochs 2", "watch --every 5 train.py --epochs 2"),
    # words by position
    ("predict net.py:Net img.jpg last.pth", "predict net.py:Net img.jpg --checkpoint last.pth"),
    ("predict net.py:Net img.jpg last.pth -c other.pth", "predict net.py:Net img.jpg -c other.pth"),
    ("diff net.py:Net last.pth last.pth", "diff last.pth last.pth"),
    ("weights resnet18", "summary resnet18"),
    # commands
    ("lr_find net.py:Net photos", "lrfind net.py:Net photos"),
    ("net.py", "watch net.py"),
])  # fmt: skip
def test_the_hint_is_the_line_that_was_meant(refused, typed, meant):
    assert refused(typed, 2)[1] == f"hint: modelscope {meant}"


@pytest.mark.parametrize(("typed", "code", "said", "hint"), [
    ("summary net.py:Net --input 1x28x28", 2, "",
     "modelscope summary net.py:Net --input-shape 1,28,28   # instead of --input 1x28x28"),
    ("predict last.pth img.jpg", 4, "'last.pth' holds weights named as in an nn.Sequential",
     "modelscope predict FILE.py:NAME img.jpg --checkpoint last.pth   # "
     "FILE.py has the lines that built it: NAME = nn.Sequential(...)"),
    ("stats ner.py:Net img.jpg", 4, "no file 'ner.py'", "modelscope stats net.py:Net img.jpg"),
    ("watch torchrun --nproc-per-node 2 train.py --epochs 2", 2, "",
     "torchrun --nproc-per-node 2 -m modelscope_cli watch train.py --epochs 2"),
    ("summary resnet18 resnet34", 2, "'resnet18' and 'resnet34' both name a model",
     "modelscope summary resnet18   # or modelscope diff resnet18 resnet34"),
    ("stats net.py:Net phone.heic", 4, "", "magick phone.heic phone.png"),
    ("stats net.py:Net https://example.org/a.jpg", 4, "is a URL, but images are read from files",
     "curl -LO https://example.org/a.jpg"),
])  # fmt: skip
def test_what_is_meant_stands_in_the_hint(refused, typed, code, said, hint):
    message, suggested = refused(typed, code)
    assert said in message
    assert suggested == f"hint: {hint}"


def test_a_checkpoint_given_as_weights_is_loaded(run):
    by_weights = run(
        "predict net.py:Net img.jpg --weights last.pth --size 8 --top 1 --scores sigmoid", expect=None
    )
    by_name = run(
        "predict net.py:Net img.jpg --checkpoint last.pth --size 8 --top 1 --scores sigmoid", expect=None
    )
    assert by_weights.err.replace("--weights last.pth", "--checkpoint last.pth") == by_name.err
    assert run("stats net.py:Net img.jpg -w last.pth --size 8 --columns max").column("max") == ["0.0", "0.0"]


@pytest.mark.parametrize(("line", "hint"), [
    ("predict net.py:Net img.jpg -b8 --batch 4", "predict net.py:Net img.jpg --batch 4"),
    ("predict net.py:Net img.jpg -b 8 -b4 -b 2 -q", "predict net.py:Net img.jpg --batch 2 -q"),
    ("diff net.py:Net -c a.pth -c b.pth", "diff net.py:Net --checkpoint a.pth --b-checkpoint b.pth"),
    ("watch --steps 3 --steps 4 train.py --steps 5 --steps 6", "watch --steps 4 train.py --steps 5 --steps 6"),
    ("rules --top 1 -q -q --top 2", "check --list --top 2 -q -q"),
])  # fmt: skip
def test_the_line_with_one_of_two_values(run, line, hint):
    assert run(line, expect=2).err.endswith(f"hint: modelscope {hint}\n")


def test_a_file_is_not_compared_with_itself(run):
    assert "hint: ls ." in run("diff last.pth last2.pth", None).err
    assert "hint: modelscope weights last.pth\n" in run("weights last2.pth", None).err
