"""Does `modelscope check` fail for broken checkpoints, and for no healthy one?

python tests/bench/gate/run.py                      trains first: half an hour on one core
python tests/bench/gate/run.py --half apart         the broken checkpoints that no rule was made with
python tests/bench/gate/run.py --only healthy       or broken, or fresh
"""

import argparse
import random
import sys
import tempfile
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[2])]
import broken  # noqa: E402
import nets  # noqa: E402
import trainings  # noqa: E402

import modelscope_cli as ms  # noqa: E402
from modelscope_cli.errors import ModelscopeError  # noqa: E402

WITH_NOISE, WITH_IMAGES = "noise", "8 images"
NETS_OF_A_MAKER = 3
LOST = 0.75  # a checkpoint is broken if it loses this share of what the trained one has above chance


def half_of(name: str) -> str:
    """Toss a coin for a broken checkpoint."""
    return "apart" if zlib.crc32(f"gate {name}".encode()) % 2 else "worked"


def broken_checkpoints(
    folder: Path, half: str, images: Tensor, held_out: Any
) -> Iterator[tuple[str, str, str, broken.State]]:
    """Yield the kind, maker, network and state of those that really are broken."""
    for kind, makers in broken.KINDS.items():
        for maker, make in makers.items():
            names, n_made = list(nets.NAMES), 0
            random.Random(zlib.crc32(maker.encode())).shuffle(names)
            for name in names:
                if n_made == NETS_OF_A_MAKER:
                    break
                draw = random.Random(zlib.crc32(f"{maker} {name}".encode()))
                torch.manual_seed(draw.randrange(2**31))
                states = [torch.load(folder / f"{name}-{seed}-end.pt") for seed in (1, 2)]
                healthy = trainings.score(name, states[0], held_out)
                state = make(broken.Given(*states, getattr(nets, name)(), images, draw))
                chance = 0.0 if name in trainings.WITH_IMAGES else 1 / nets.CLASSES
                if state is None:
                    continue
                left = trainings.score(name, state, held_out)
                if left > chance + (1 - LOST) * (healthy - chance):
                    continue
                n_made += 1
                if half_of(f"{maker} {name}") == half:
                    yield kind, maker, name, state


def findings(model: Any, inputs: Any, **keywords: Any) -> tuple[bool, str]:
    """Return whether the check fails, and its errors, or else its warnings in brackets."""
    try:
        record = ms.check(model, inputs, device="cpu", **keywords)
    except ModelscopeError as error:
        return True, error.message.splitlines()[0]
    codes = Counter(f"{one.code}{'' if one.severity == 'error' else 'w'}" for one in record.findings)
    return not record.passed, " ".join(f"{code} x{n}" if n > 1 else code for code, n in codes.items())


def check(name: str, state: broken.State, images: Tensor) -> Iterator[tuple[str, bool, str]]:
    """Yield, for images and for noise, whether the check of a checkpoint fails, and why."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "weights.pt"
        torch.save(state, file)
        model = f"{HERE / 'nets.py'}:{name}"
        yield WITH_IMAGES, *findings(model, images, checkpoint=file)
        yield WITH_NOISE, *findings(model, None, checkpoint=file, input_shape=(2, 3, nets.SIZE, nets.SIZE))


LARGE = (
    "vit_h vit_l vit_b_16 convnext_l convnext_b swin_b swin_v2_b vgg13 vgg16 vgg19 regnet_y_128 regnet_y_32 "
    "regnet_y_16 regnet_x_32 regnet_x_16 wide_resnet101 resnext101 efficientnet_b5 efficientnet_b6 efficientnet_b7 "
    "efficientnet_v2_l efficientnet_v2_m densenet201 densenet161"
)
SMALL = (
    ("test_",),
    ("atto", "femto", "pico", "nano", "_xxs", "_050", "0_5", "x0_25", "002", "tiny_patch16"),
    ("tiny", "micro", "_xs", "18", "_s0", "_n", "_t", "_b0", "xt"),
    ("small", "_s"),
)


def fresh_models() -> Iterator[str]:
    """Yield torchvision's classifiers but the largest, and a small network of every family of timm, by its name."""
    import timm
    from torchvision import models

    yield from (
        name for name in models.list_models(module=models) if not name.startswith(tuple(LARGE.split()))
    )
    families: dict[str, list[str]] = {}
    for name in timm.list_models():
        families.setdefault(timm.models._registry._model_to_module[name], []).append(name)
    for _, names in sorted(families.items()):
        yield f"timm:{min(names, key=size_by_name)}"


def size_by_name(name: str) -> tuple[int, int]:
    rank = next((i for i, words in enumerate(SMALL) if any(word in name for word in words)), len(SMALL))
    return rank, len(name)


def say(kind: str, name: str, what: str, fails: bool, why: str, *, is_wrong: bool, is_shown: bool) -> None:
    if is_shown:
        mark = "WRONG" if is_wrong else "     "
        print(
            f"{mark} {kind:22} {name:44} {what:9} {'fails' if fails else 'passes':7} {why[:110]}", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--half", choices=("worked", "apart"), default="worked", help="of the broken ones")
    parser.add_argument("--only", choices=("broken", "healthy", "fresh"))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "gate-trainings")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    images, held_out = trainings.draw(8, 5 * 10**6)[0], trainings.draw(300, 10**6)
    counts: dict[tuple[str, str], list[bool]] = {}
    if options.only != "fresh":
        trainings.train_all(options.folder)
    if options.only in (None, "broken"):
        for kind, maker, name, state in broken_checkpoints(options.folder, options.half, images, held_out):
            for what, fails, why in check(name, state, images):
                counts.setdefault((f"broken, {options.half}", what), []).append(fails)
                counts.setdefault((kind, what), []).append(fails)
                say(
                    kind,
                    f"{maker} {name}",
                    what,
                    fails,
                    why,
                    is_wrong=not fails,
                    is_shown=options.half == "worked",
                )
    if options.only in (None, "healthy"):
        for file in sorted(options.folder.glob("*.pt")):
            name, _, moment = file.stem.split("-")
            for what, fails, why in check(name, torch.load(file), images):
                counts.setdefault((f"healthy, step {moment}", what), []).append(fails)
                say("healthy", file.stem, what, fails, why, is_wrong=fails, is_shown=fails)
    if options.only in (None, "fresh"):
        for name in fresh_models():
            fails, why = findings(name, None, weights="none")
            counts.setdefault(("fresh", WITH_NOISE), []).append(fails)
            say("fresh", name, WITH_NOISE, fails, why, is_wrong=fails, is_shown=fails)
    for (kind, what), fails in counts.items():
        print(f"{kind:22} {what:9} {sum(fails):4} of {len(fails):4} fail")


if __name__ == "__main__":
    main()
