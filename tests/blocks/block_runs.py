"""Drawn images of odd sizes, and runs over them by as many processes as torchrun would start."""

import json
import os
from pathlib import Path

import numpy as np
import warm
from PIL import Image
from torch.distributed import TCPStore

SAMPLES = Path(__file__).parents[2] / "samples"
TINY = ("-m", f"{SAMPLES}/tiny_resnet.py:TinyResNet", "-c", f"{SAMPLES}/tiny_resnet.safetensors")
N_IMAGES = 103
BROKEN = (*range(40, 48), 100)  # a block of eight, and one more


def draw_images(folder, n, seed=0):
    """Write noise of 8 x 8 to 64 x 64 pixels, `000.png` and so on."""
    folder.mkdir()
    random = np.random.default_rng(seed)
    for number in range(n):
        height, width = random.integers(8, 65, 2)
        pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03d}.png")
    return folder


def run(n, *argv, cwd, code=0, **more):
    """Run `n` processes as torchrun does, or one without it where `n` is None; return what all of them said.

    torchrun keeps the store for its processes; here it is ours.
    """
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    if n is None:
        return finish([warm.start("-m", "modelscope_cli", *argv, cwd=cwd, env=env | more)], code)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    env |= {"WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n), "OMP_NUM_THREADS": "1"}
    env |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(n)]
    return finish(
        [warm.start("-m", "modelscope_cli", *argv, cwd=cwd, env=env | rank | more) for rank in ranks], code
    )


def finish(processes, code=0):
    """Return what they said on stdout and stderr, all of them together."""
    said = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [code] * len(processes), said
    return "".join(out for out, _ in said), "".join(err for _, err in said)


def document(text):
    """Return a document without what is not of the result."""
    found = json.loads(text)
    for key in ("argv", "elapsed_ms", "out_dir"):
        found.pop(key, None)
    return found


def content(folder):
    """Return the blocks of a folder by name."""
    return {file.name: file.read_bytes() for file in sorted((folder / "blocks").iterdir())}
