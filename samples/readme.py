"""Bring the README up to date: run its `console` blocks and draw its pictures.

    python samples/readme.py

Every block that begins with `$ modelscope ...` is followed by what that command prints on a terminal of 100
columns. The pictures go to `samples/readme/`.
"""

import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "samples" / "readme"
COLUMNS = 100
SAMPLE = ["--model", "squeezenet1_1", "--checkpoint", "samples/shapes_squeezenet1_1.safetensors"]
HEALTHY = ["--model", "samples/tiny_resnet.py:TinyResNet", "--checkpoint", "samples/tiny_resnet.safetensors"]
SICK = ["--model", "samples/tiny_resnet.py:TinyResNet", "--checkpoint", "samples/sick.safetensors"]


def on_terminal(arguments: list[str]) -> str:
    """Run the tool with stdout on a terminal of `COLUMNS` columns, without colour; return what it printed."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environment = {**os.environ, "NO_COLOR": "1", "MSCOPE_OFFLINE": "1", "TERM": "xterm"}
    command = [sys.executable, "-m", "modelscope_cli", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=writer, stderr=subprocess.DEVNULL, env=environment)
    os.close(writer)
    parts = []
    while True:
        try:
            part = os.read(reader, 1 << 16)
        except OSError:  # the other end of the terminal is closed
            break
        if not part:
            break
        parts.append(part)
    if process.wait() > 1:  # 1: something was found, as it should be
        raise SystemExit(f"{shlex.join(arguments)} failed")
    text = b"".join(parts).decode().replace("\r\n", "\n")
    return "".join(line.rstrip() + "\n" for line in text.splitlines())


def fill_console_blocks(readme: str) -> str:
    """Return the README with the output of every console block renewed."""

    def renew(block: re.Match[str]) -> str:
        return f"```console\n$ {block[1]}\n{on_terminal(shlex.split(block[1])[1:])}```"

    return re.sub(r"```console\n\$ (.*)\n[^`]*```", renew, readme)


def keep(picture: Path, name: str) -> None:
    """Put a picture beside the README, no wider than it is shown there and in 128 colours: a third of the size."""
    image = Image.open(picture).convert("RGB")
    image.thumbnail((1100, 2000), Image.Resampling.LANCZOS)
    image.quantize(128).save(PICTURES / name, optimize=True)


def draw_pictures(folder: Path) -> None:
    """Write the pictures the README shows, by way of `folder`."""
    PICTURES.mkdir(exist_ok=True)
    maps = folder / "maps"
    on_terminal(["featuremaps", "samples/harbour.jpg", *SAMPLE, "--layer", "conv", "--out", str(maps)])
    keep(next(maps.glob("*_features.0.png")), "features.0.png")
    keep(maps / "contact_sheet.png", "contact_sheet.png")
    for name, model in (("gradient_flow.png", HEALTHY), ("sick_gradients.png", SICK)):
        flow = folder / name
        on_terminal(["grads", "samples/star.png", *model, "--target", "star", "--out", str(flow)])
        keep(flow / "gradient_flow.png", name)
    why = folder / "why"
    on_terminal(["explain", "samples/star.png", *SAMPLE, "--method", "hirescam,lrp", "--out", str(why)])
    keep(why / "explanation.png", "explanation.png")
    fooled = folder / "attack"
    how = ["--method", "ifgsm", "--steps", "20", "--target", "circle"]
    on_terminal(["attack", "samples/star.png", *SAMPLE, *how, "--out", str(fooled)])
    keep(fooled / "comparison.png", "attack.png")
    ablated = folder / "ablated"
    on_terminal(["ablate", "samples/star.png", *SAMPLE, "--layer", "conv", "--out", str(ablated)])
    keep(ablated / "ablation.png", "ablation.png")
    keep(ablated / "contact_sheet.png", "ablated.png")
    pictures = ["samples/star.png", "samples/composition.jpg", "samples/harbour.jpg"]
    cut = ["--global", "--amount", "0.2", "--sweep", "0.05,0.1,0.3,0.4,0.5,0.6,0.7,0.8,0.9"]
    on_terminal(["prune", *pictures, *SAMPLE, *cut, "--out", str(folder / "cut")])
    keep(folder / "cut" / "drift.png", "drift.png")
    watched = folder / "run"
    on_terminal(["watch", "--out", str(watched), "samples/train.py", "--variant", "sick"])
    for name in ("histograms.png", "dead_units.png"):
        keep(watched / name, f"watch_{name}")
    study = ["--size", "48", "--vary", "init=default,kaiming-normal", "--vary", "norm-layer=batch,none"]
    on_terminal(["train", *HEALTHY[:2], *study, "--out", str(folder / "study")])
    keep(folder / "study" / "comparison.png", "comparison.png")
    rounded = ["--b-dtype", "bfloat16", "--plot", str(folder / "bfloat16.png")]
    on_terminal(["diff", SAMPLE[1], "samples/star.png", *SAMPLE[2:], *rounded])
    keep(folder / "bfloat16.png", "bfloat16.png")
    on_terminal(["stats", "samples/star.png", *SICK, "--plot", str(folder / "sick.png")])
    keep(folder / "sick.png", "sick.png")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        draw_pictures(Path(temporary))
    path = ROOT / "README.md"
    path.write_text(fill_console_blocks(path.read_text(encoding="utf-8")), encoding="utf-8")
