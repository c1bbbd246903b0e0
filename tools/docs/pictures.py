"""The pictures of the documentation, drawn by the commands that the pages show."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from PIL import Image

from modelscope_cli.shell.app import run
from tools.docs import PICTURES
from tools.docs.printed import fresh_folder, settings

_WIDEST = 1100  # pixels, as wide as a page
_COLOURS = 256  # a third of the size; by octree, as a median would mix the blue of a colour bar into its gray
_HEALTHY = "demo/tiny_resnet.py:TinyResNet -c demo/tiny_resnet.safetensors"
_SICK = "demo/tiny_resnet.py:TinyResNet -c demo/sick.safetensors"
_CUT = "--global --amount 0.2 --sweep 0.05,0.1,0.3,0.4,0.5,0.6,0.7,0.8,0.9"
# A command, and the pictures of it that are kept: the file it writes, and its name here.
DRAWN: Mapping[str, Mapping[str, str]] = {
    f"featuremaps {_HEALTHY} demo/harbour.jpg --layer type:Conv2d --out maps": {
        "maps/*_conv.png": "conv.png",
        "maps/contact_sheet.png": "contact_sheet.png",
    },
    f"stats {_SICK} demo/star.png --plot sick.png": {"sick.png": "sick.png"},
    f"grads {_HEALTHY} demo/star.png --target star --out flow": {
        "flow/gradient_flow.png": "gradient_flow.png"
    },
    f"grads {_SICK} demo/star.png --target star --out sick": {"sick/gradient_flow.png": "sick_gradients.png"},
    f"explain {_HEALTHY} demo/star.png --method hirescam,integrated-gradients --out why": {
        "why/explanation.png": "explanation.png"
    },
    f"ablate {_HEALTHY} demo/star.png --layer type:Conv2d --out ablated": {
        "ablated/ablation.png": "ablation.png"
    },
    "watch --out run demo/train.py --variant sick": {},
    "watch --report run": {
        "run/histograms.png": "watch_histograms.png",
        "run/dead_units.png": "watch_dead_units.png",
        "run/activations.png": "watch_activations.png",
        "run/gradients.png": "watch_gradients.png",
    },
    # The picture of README.md: a few panels, which can be read at 800 pixels.
    "watch --every 1 --out few --layer block1.conv1 --layer block1.shortcut demo/train.py --variant sick": {},
    "watch --report few": {"few/histograms.png": "readme.png"},
    "train demo/tiny_resnet.py:TinyResNet --size 48 --out learnt": {"learnt/curves.png": "curves.png"},
    "lrfind demo/tiny_resnet.py:TinyResNet --size 48 --out rate": {"rate/lr.png": "lr.png"},
}


def draw() -> None:
    """Run the commands and keep their pictures."""
    PICTURES.mkdir(exist_ok=True)
    with fresh_folder() as folder, settings(folder):
        for line, kept in DRAWN.items():
            if run(shlex.split(line)) > 1:
                raise SystemExit(f"modelscope {line} failed")
            for written, name in kept.items():
                _keep(next(folder.glob(written)), PICTURES / name)


def _keep(picture: Path, target: Path) -> None:
    """Save a picture no wider than a page, in as many colours as it takes."""
    image = Image.open(picture).convert("RGB")
    image.thumbnail((_WIDEST, 2000), Image.Resampling.LANCZOS)
    image.quantize(_COLOURS, Image.Quantize.FASTOCTREE).save(target, optimize=True)
