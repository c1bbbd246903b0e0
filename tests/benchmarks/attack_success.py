"""`attack` on held-out pictures of the generated set: how many fool the sample network once saved and read back."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from figure import Figure

from modelscope_cli.analysis.attack.on_image import attack_image, describe, encode_and_reread
from modelscope_cli.analysis.attack.request import make_request
from modelscope_cli.inputs.python_inputs import open_inputs
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.models.load import load_model
from modelscope_cli.models.request import ModelRequest

SAMPLES = Path(__file__).parents[2] / "samples"
N_PICTURES, LEVELS = 100, 8


def measure(pairs: int | None) -> Iterator[Figure]:
    """Attack the first pictures that are classified correctly, with pgd of 20 steps inside 8/255."""
    outcomes = list(attacked(N_PICTURES))
    fooled = sum(outcome["success_saved"] for outcome in outcomes)
    worst = max(255 * outcome["linf_saved"] for outcome in outcomes)
    yield Figure(
        f"`attack`, pgd, 20 steps, epsilon {LEVELS}/255: held-out images whose file fools the sample network",
        f"{fooled} of {len(outcomes)}, at most {worst:.6g}/255 away",
        f">= 90 of {N_PICTURES}, at most {LEVELS}/255",
        fooled >= 0.9 * N_PICTURES and worst <= LEVELS + 1e-9,
    )


def attacked(n: int) -> Iterator[dict]:
    """Yield what `attack` reports of the first `n` held-out pictures that the network knows."""
    sys.path.insert(0, str(SAMPLES))
    from dataset import Shapes

    checkpoint = SAMPLES / "shapes_squeezenet1_1.safetensors"
    loaded = load_model(ModelRequest("squeezenet1_1", checkpoint=checkpoint, device="cpu"))
    request = make_request(
        method="pgd",
        norm="linf",
        epsilon=f"{LEVELS}/255",
        steps=20,
        target=None,
        seed=0,
    )
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder, "drawn.png")
        for picture, label in Shapes(2 * n, seed=1, size=224):
            picture.save(drawn)
            inputs = open_inputs(
                InputRequest(files=(str(drawn),)),
                family=loaded.family,
                transforms=loaded.transforms,
                module=loaded.module,
                device=loaded.device,
                dtype=loaded.dtype,
            )
            attack = attack_image(loaded, inputs, request)
            if int(attack.before.argmax()) == label:
                read = encode_and_reread(loaded, inputs, attack.found)
                yield describe(attack, read, request, loaded.categories)
                n -= 1
            if n == 0:
                return
