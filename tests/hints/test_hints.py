"""Lines that fail: the hint is pasted below each, and what comes of it runs."""

import shlex
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from pasting import pasted
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from modelscope_cli.shell import console
from modelscope_cli.shell.app import run
from modelscope_cli.shell.hints import filled_in
from modelscope_cli.shell.overview import COMMANDS
from modelscope_cli.shell.parameters import options_of

MODELS = """
from torch import nn

class Tiny(nn.Module):
    pretrained_cfg = {"input_size": (3, 32, 32)}  # so that nothing takes long
    def __init__(self, num_classes: int = 10, width: int = 4):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, stride=4, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.head = nn.Linear(4 * width, num_classes)
    def forward(self, x):
        return self.head(self.pool(self.relu(self.bn(self.conv(x)))).flatten(1))

class Other(Tiny):
    pass

class Flat(nn.Sequential):
    def __init__(self, side: int = 20):
        super().__init__(nn.Conv2d(3, 4, 5), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * (side // 2 - 2) ** 2, 5))

class Sized(nn.Module):
    def __init__(self, image_size: int = 16, num_classes: int = 5):
        super().__init__()
        self.image_size = image_size
        self.c1, self.c2, self.c3 = nn.Conv2d(3, 4, 3, 4), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(4 * (image_size // 4) ** 2, num_classes)
    def forward(self, x):
        assert x.shape[-1] == self.image_size, "wrong size"
        return self.head(self.c3(self.c2(self.c1(x))).flatten(1))

class Wide(nn.Module):
    def __init__(self, width, n_classes):
        super().__init__()
        self.stem, self.norm, self.end = nn.Conv2d(3, width, 3), nn.GroupNorm(8, width), nn.Linear(width, n_classes)
    def forward(self, x):
        return self.end(self.norm(self.stem(x)).mean((2, 3)))

class Headed(nn.Module):
    def __init__(self, body, head, depth: int = 1):
        super().__init__()
        self.body, self.head = body, head
    def forward(self, x):
        return self.head(self.body(x))

def NAME():
    return Headed(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1))

class Embedding(Tiny):
    def forward(self, x):
        return nn.functional.normalize(super().forward(x))
"""
TINY = "models.py:Tiny"
LEARN = f"-m {TINY} --pictures 20 --size 8 --steps 3 --batch 4"
LINES = f"""
stats {TINY} --imgsz 16
stats {TINY} --fp16 --batch-size=2 --format json
predict {TINY} --image dot.png
stats {TINY} dot.png --target_layer conv
train {LEARN} --learning-rate 0.1
train {LEARN} --data few
featuremaps {TINY} dot.png --output-dir new
sumary {TINY}
gradcam {TINY} dot.png --no-save --receipt none
{TINY}
stats {TINY} --sort
stats {TINY} --sort meen
summary {TINY} --columns name,saved
summary {TINY} --sort peak
stats {TINY} --format jsn
stats {TINY} -o result.foo
stats {TINY} --json --format csv
stats {TINY} --table layer
stats {TINY} --batch 0
stats {TINY} --input-shape 4,3,32,32 --batch 2
summary {TINY} --input-shape 4,3,32,32 --batch 2
summary {TINY} --input-shape 3,32,x
stats {TINY} --input-shape float31:3,32,32
stats {TINY} --input-shape 3,32,32 --size 16
summary {TINY} --input-shape 1,32,32
stats {TINY} --input-shape 48,40,3
stats {TINY} --input-shape 2,48,40,3
stats {TINY} --input-shape 3,48
stats {TINY} --input-shape 48,3
stats {TINY} --input-shape 2,1,48,40
stats models.py:Flat dot.png
summary models.py:Flat
stats models.py:Flat --input-shape 2,3,48,40
grads models.py:Flat dot.png --model-arg side=36 --no-save
stats {TINY} --layer convv
stats {TINY} --hook --layer conv --json
check {TINY} --junit new.xml
check resnet18 --select MS1
diff resnet18 resnet18 --b-dtype bfloat16 --layer conv1
diff {TINY} dot.png --dtype-b bfloat16
grads {TINY} --target cat --no-save
stats {TINY} --layer conv@9
stats {TINY} dott.png
stats {TINY} models.py:Other
stats {TINY} --model models.py:Other
stats {TINY} --batch 2 --size 8 -b1
summary models.py:Tny
summary models.py
predict {TINY} dot.png tiny.safetensors
predict {TINY} dot.png --doctor --top 3
predict {TINY} dot.png --threshold 0.3
predict {TINY} dot.png --class-names ten.txt
weights run.pth --key nope
weights runs.pth
stats {TINY} -c tinny.safetensors
weights parallel.pth --layer conv
weights parallel.pth --layer 'bn.*'
weights parallel.pth --layer head.bias
weights parallel.pth --layer zzzz
train {LEARN} --val few
grads {TINY} --target 10 --no-save
ablate {TINY} --by-channel --no-save
explain models.py:Embedding dot.png --method saliency --no-save --receipt none
stats {TINY} dot.png --frames
weights {TINY}
stats 'old layers.pt' dot.png
predict entry.pt dot.png
predict hooked.pt dot.png
predict state.pt dot.png
summary state.pt
help stat
rules MS9999
summary models.py:Sized --input-shape 3,48,48
stats models.py:Sized --input-shape 2,3,32,32
grads models.py:Sized dot.png --size 24 --no-save
stats models.py:Sized --layer c4
stats models.py:Sized --layer c9.weight
summary vit_b_16 --input-shape 3,384,384
weights several
stats {TINY} -c several
diff tiny.safetensors run.pth --layer convv
diff tiny.safetensors other.npz
weights run.pth --columns nam
stats {TINY} --layer head1
explain {TINY} dot.png --method gradcam --layer cnv --no-save --receipt none
train {LEARN} --activation leaky:0.1
weights --scan nowhere
diff tiny.safetensors
featuremaps {TINY} dot.png --layer convs --out new
stats {TINY} --sort sdt
stats {TINY} --columns name,average
train {LEARN} --save out.pth
train {LEARN} --epochs 3
train {LEARN} --lr 0
predict {TINY} few --truth val
help gradcam
help learning rate finder
help vanishing gradient
grads {TINY} --loss ce --no-save
summary {TINY} --model-arg class=7
summary {TINY} --model-arg class=7 --model-arg width=8
summary {TINY} --model-arg width 8
stats {TINY} --verbose 2
stats {TINY} --quiet false
weights tiny.safetensor
summary {TINY} --input-shape=1,3,64
summary {TINY} --depth many
diff {TINY} {TINY} --labels ten.txt
summary "timm.create_model('resnet18', num_classes=5)"
summary 'torchvision.models.resnet18()'
summary 'models.Tiny(num_classes=5)'
summary {TINY} summary
summary summary {TINY}
stats {TINY} dot.png --mean 0.5 0.5 0.5
stats main.pt dot.png
explain {TINY} dot.png --method grad-cam++ --no-save --receipt none
grads {TINY} --loss crossentropy --no-save
summary {TINY} --input 1,3,32,32
stats {TINY} bare
summary tiny.safetensors
predict parallel.pth dot.png
summary Sized
stats Tiny dot.png
summary models.py:Wide
summary models.py:Headed
predict {TINY} my dots
predict {TINY} dot.png --labels abc.txt
predict {TINY} few/1.png
watch fit.py
explain {TINY} dot.png --method saliency,occlusionn --no-save --receipt none
explain {TINY} dot.png --method saliency --method occlusionn,gradcam --no-save --receipt none
summary {TINY} --freeze rel1
stats {TINY} --layer conv,hed
weights tiny.safetensors --layer conv,hed
"""
HELD_OUT = f"""
stats {TINY} --columns name,stddev
featuremaps models.py:Sized dot.png --size 24 --out new
explain models.py:Sized dot.png --size 20,20 --method saliency --no-save --receipt none
grads {TINY} --loss l2 --no-save
explain {TINY} dot.png --method GuidedBackprop --no-save --receipt none
help quantization
help 'feature map'
summary models.Tiny
summary "torch.hub.load('pytorch/vision', 'resnet18')"
stats {TINY} --columns name std
predict {TINY} fwe
stats {TINY} -c tiny.safetenors
summary {TINY} --input-shape 3 64 64
diff {TINY} models.py:Other --threshold 0.1
summary {TINY} --model-arg num_classes:7
check {TINY} --select never-calld
heatmap {TINY} dot.png --no-save --receipt none
scan tiny.safetensors
predict models.py:Sized --input-shape 3,20,20
summary models.py:Sized --input-shape 1,3,12,12
ablate models.py:Sized dot.png --size 40 --no-save
stats models.py:Sized --layer c0
stats models.py:Sized --hook zero@c7
summary maxvit_t --input-shape 3,448,448
diff several tiny.safetensors
predict {TINY} dot.png -c several
diff tiny.safetensors run.pth --key nope
stats {TINY} dot.png --plot x.foo
weights tiny.safetensors --layer conv.bias
weights tiny.safetensors --depth x
ablate {TINY} dot.png --layer bn1 --no-save
grads {TINY} --layer hed --no-save
lrfind {LEARN} --optimizer lion
weights --scan tiny.safetensors --fail-on dangerus
grads {TINY} --table weights --no-save
diff {TINY} dot.png --b-dtype float8
explain {TINY} dot.png --method hirescam,salliency,gradcam --no-save --receipt none
featuremaps {TINY} --filters --layer poool --out new
diff tiny.safetensors tiny.safetensors --layer heed,conv
"""
SETS = "sets/train/f/a.png", "sets/val/f/b.png"
WORDS = {
    "FILE": "new.csv",
    "HOOK": "zero@conv",
    "COLUMN": "mean",
    "DIR": "new",
    "--model NAME": f"--model {TINY}",
    "FILE.py:NAME": "layers.py:layers",
}
NET = """
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
"""
LAYERS = """
from torch import nn

norm = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU())
layers = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    (folder / "models.py").write_text(MODELS)
    (folder / "train.py").write_text("pass")
    names: dict[str, Any] = {}
    exec(MODELS, names)
    torch.manual_seed(0)
    save_file(names["Tiny"]().state_dict(), folder / "tiny.safetensors")
    torch.save(
        {"epoch": torch.ones(1), "optimizer": {"a": torch.ones(1)}, "model": names["Tiny"]().state_dict()},
        folder / "run.pth",
    )
    wrapped = {f"module.{name}": tensor for name, tensor in names["Tiny"]().state_dict().items()}
    torch.save(wrapped, folder / "parallel.pth")
    (folder / "layers.py").write_text(LAYERS)
    exec(LAYERS, names)
    layers: nn.Module = names["layers"]
    torch.save(layers, folder / "layers.pt")
    torch.save(layers, folder / "old layers.pt", _use_new_zipfile_serialization=False)
    torch.save({"net": layers, "epoch": 2}, folder / "entry.pt")
    torch.save(layers.state_dict(), folder / "state.pt")
    (folder / "several").mkdir()
    for name in ("bare", "my dots", "scripts"):
        (folder / name).mkdir()
    (folder / "scripts" / "fit.py").write_text("pass")
    for name in ("a.pt", "b.pt"):
        torch.save(names["Tiny"]().state_dict(), folder / "several" / name)
    saved = {"__name__": "__main__"}
    exec("from torch import nn\n" + NET, saved)
    (folder / "net.py").write_text("from torch import nn\n" + NET)
    with pytest.MonkeyPatch.context() as patch:  # pickle looks for the class there
        patch.setattr(sys.modules["__main__"], "Net", saved["Net"], raising=False)
        torch.save(saved["Net"](), folder / "main.pt")
    layers.register_forward_hook(print)
    torch.save(layers, folder / "hooked.pt")
    for name in ("ten.txt", "scripts/abc.txt"):
        (folder / name).write_text("\n".join("abcdefghij"))
    for name in (
        "dot.png",
        "two/f/a.png",
        "two/g/b.png",
        "few/a/1.png",
        "few/a/2.png",
        "few/b/3.png",
        "my dots/1.png",
        *SETS,
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((16, 16), 60).convert("RGB").save(folder / name)
    return folder


@pytest.mark.parametrize("line", (LINES.strip() + HELD_OUT.rstrip()).splitlines())
def test_a_hint_that_is_pasted_runs(line, made, tmp_path, monkeypatch, capfd, undrawn):
    monkeypatch.setenv("MSCOPE_OFFLINE", "1")
    for path in made.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    errors: list = []
    fail = console.fail
    monkeypatch.setattr(console, "fail", lambda error: (errors.append(error), fail(error)))
    typed = shlex.split(line)
    assert run(typed) in (2, 4)
    (error,) = errors
    for one in pasted(error.hint, typed, error.message, WORDS):
        if not one.tool:
            assert run(list(one.line)) in (0, 1), f"{error.hint}: {errors[-1].message}"
        elif one.tool == "ls":
            assert Path(one.line[-1]).exists()


@pytest.mark.parametrize(("line", "kept"), [
    ("explain {TINY} dot.png --method saliency,occlusionn --no-save", "--method saliency,occlusion"),
    ("explain {TINY} dot.png --method gradcm --method saliency --no-save", "--method gradcam,saliency"),
    ("stats {TINY} --columns name,meen --columns std", "--columns name,mean,std"),
    ("stats {TINY} --layer conv,hed", "--layer conv --layer head"),
])  # fmt: skip
def test_the_right_items_of_a_list_stay(line, kept, made, monkeypatch, capfd):
    monkeypatch.chdir(made)
    run(shlex.split(line.format(TINY=TINY, LEARN=LEARN)))
    assert f" {kept} " in capfd.readouterr().err.partition("hint: ")[2].replace("\n", " ")


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_hint_about_one_option_loses_no_other(command: str) -> None:
    """Whatever else was typed stays, except what the new option stands in the place of."""
    options = [*dict.fromkeys(one for one in options_of(command).values() if one.takes_value)]
    for one, other in permutations((one for one in options if one.name != "model"), 2):
        typed = [other.names[0], "kept=1" if other.mark == "=" else "kept"]
        old = [one.names[0], "wrong=1" if one.mark == "=" else "wrong"]
        value = "new=2" if one.mark == "=" else "new"
        for argv in ([command, *typed, *old], [command, *old, *typed], [command, *typed]):
            line = filled_in(f"{one.names[0]} {value}", argv, "'wrong' is not known")
            assert value in shlex.split(line)
            is_instead = {"input": "input_shape", "input_shape": "input size"}.get(one.name, f"b_{one.name}")
            assert set(typed) <= set(shlex.split(line)) or other.name in is_instead.split(), (argv, line)
