"""Makes every picture and every checkpoint of this folder, the same ones each time.

python samples/make.py                     everything, in 10 to 15 minutes on two cores
python samples/make.py --only pictures     a few seconds
python samples/make.py --only checkpoint   trains both networks
python samples/make.py --only sick         damages the trained tiny network
"""

import argparse
import json
import struct
from pathlib import Path

import torch
from composition import composition
from dataset import CLASSES, draw
from harbour import harbour
from PIL import Image
from safetensors.torch import load_file, save
from tiny_resnet import TinyResNet
from torch import nn
from torchvision.models import squeezenet1_1
from training import SEED, accuracy, as_drawn, as_modelscope, fold_norms, insert_norms, train

HERE = Path(__file__).resolve().parent
SHAPES_NET = HERE / "shapes_squeezenet1_1.safetensors"
TINY_NET = HERE / "tiny_resnet.safetensors"
SICK_NET = HERE / "sick.safetensors"
STAR = HERE / "star.png"
SHAPES = HERE / "shapes"  # three images of every class


def make_pictures() -> None:
    # Seed 21 is one of those whose mountains leave the sun in sight.
    for name, picture in (("harbour.jpg", harbour(21)), ("composition.jpg", composition(SEED))):
        picture.save(HERE / name, quality=88)
        report(HERE / name)
    draw(CLASSES.index("star"), seed=8, size=224).save(STAR, optimize=True)
    report(STAR)
    for label, name in enumerate(CLASSES):
        (SHAPES / name).mkdir(parents=True, exist_ok=True)
        for n in range(1, 4):
            draw(label, seed=100 * n + label).save(SHAPES / name / f"{n}.jpg", quality=90)


def make_checkpoints() -> None:
    """Train both networks, measure them, and store them."""
    torch.manual_seed(SEED)
    network = squeezenet1_1(num_classes=len(CLASSES), dropout=0.1)
    print(f"{SHAPES_NET.stem}: small pictures, then large ones, then both without batch norm")
    insert_norms(network)
    train(network, steps=400, sizes=(64, 96, 128), peak_rate=4e-3, seed=SEED)
    train(network, steps=300, sizes=(160, 224, 224), peak_rate=2e-3, seed=SEED + 2)
    fold_norms(network)
    train(network, steps=150, sizes=(96, 224), peak_rate=5e-4, seed=SEED + 3)
    store(network, SHAPES_NET, architecture="squeezenet1_1", **measure(network))

    torch.manual_seed(SEED)
    tiny = TinyResNet()
    # Its batch norms stay, and their running statistics can only be right for one size of picture.
    print(f"{TINY_NET.stem}: small pictures, then large ones")
    train(tiny, steps=400, sizes=(64, 96, 128), peak_rate=6e-3, seed=SEED + 4)
    train(tiny, steps=600, sizes=(224,), peak_rate=4e-3, seed=SEED + 5)
    store(tiny, TINY_NET, architecture="tiny_resnet.py:TinyResNet", **measure(tiny))


@torch.no_grad()
def make_sick() -> None:
    """Injure the healthy network in two places, so that comparing the two shows just these."""
    tiny = TinyResNet()
    tiny.load_state_dict(load_file(TINY_NET))
    tiny.eval()
    tiny.bn.bias[:12] = -30.0  # the ReLU behind it gets nothing above zero: 12 of its 16 channels are dead
    tiny.block3.conv1.weight *= 3000  # the batch norm behind it does not notice: its statistics are fixed
    illness = "bn.bias[:12] = -30, block3.conv1.weight * 3000"
    store(tiny, SICK_NET, architecture="tiny_resnet.py:TinyResNet", illness=illness, **measure(tiny))


def measure(network: nn.Module) -> dict[str, str]:
    """Accuracy on held-out pictures, as text for the header of the checkpoint."""
    result = {
        "accuracy": accuracy(network, 224, as_modelscope),
        "accuracy_96": accuracy(network, 96, as_drawn),
        "accuracy_96_enlarged": accuracy(network, 96, as_modelscope),
    }
    print("  held out: {:.1%} at 224 pixels, {:.1%} at 96, {:.1%} at 96 enlarged".format(*result.values()))
    return {name: f"{share:.3f}" for name, share in result.items()}


def store(network: nn.Module, path: Path, **facts: str) -> None:
    """Save the weights with what a reader needs to know about them in the header."""
    facts |= {"num_classes": str(len(CLASSES)), "categories": json.dumps(CLASSES)}
    facts |= {"seed": str(SEED), "script": "samples/make.py"}
    # safetensors writes the facts in random order, so sort its header to get the same file every time:
    # 8 bytes of length, the header as JSON, the tensors.
    content = save(network.state_dict(), facts)
    (length,) = struct.unpack("<Q", content[:8])
    header = json.dumps(json.loads(content[8 : 8 + length]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # the tensors start at a multiple of 8
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])
    report(path)


def report(path: Path) -> None:
    print(f"wrote {path.name}, {path.stat().st_size:,} bytes")


@torch.no_grad()
def check_star() -> None:
    """The demo of a prediction only convinces if the prediction is right."""
    network = squeezenet1_1(num_classes=len(CLASSES)).eval()
    network.load_state_dict(load_file(SHAPES_NET))
    shares = network(as_modelscope(Image.open(STAR))[None]).softmax(1)[0]
    best = int(shares.argmax())
    print(f"{STAR.name} is a {CLASSES[best]}, says {SHAPES_NET.name} ({shares[best]:.1%})")


def main() -> None:
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("--only", choices=("pictures", "checkpoint", "sick"), help="make this part alone")
    only = parser.parse_args().only
    torch.set_num_threads(2)  # the order of additions depends on it, and so do the last bits of the weights
    torch.use_deterministic_algorithms(True)
    if only in (None, "pictures"):
        make_pictures()
    if only in (None, "checkpoint"):
        make_checkpoints()
    if only in (None, "sick"):
        make_sick()
    if STAR.exists() and SHAPES_NET.exists():
        check_star()


if __name__ == "__main__":
    main()
