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
import shutil
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
    if process.wait() != 0:
        raise SystemExit(f"{shlex.join(arguments)} failed")
    text = b"".join(parts).decode().replace("\r\n", "\n")
    return "".join(line.rstrip() + "\n" for line in text.splitlines())


def fill_console_blocks(readme: str) -> str:
    """Return the README with the output of every console block renewed."""

    def renew(block: re.Match[str]) -> str:
        return f"```console\n$ {block[1]}\n{on_terminal(shlex.split(block[1])[1:])}```"

    return re.sub(r"```console\n\$ (.*)\n[^`]*```", renew, readme)


def draw_pictures() -> None:
    """Write the pictures the README shows."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        maps = Path(folder, "maps")
        on_terminal(["featuremaps", "samples/harbour.jpg", *SAMPLE, "--layer", "conv", "--out", str(maps)])
        shutil.copy(next(maps.glob("*_features.0.png")), PICTURES / "features.0.png")
        shutil.copy(maps / "contact_sheet.png", PICTURES)
        for name, model in (("gradient_flow.png", HEALTHY), ("sick_gradients.png", SICK)):
            flow = Path(folder, name)
            on_terminal(["grads", "samples/star.png", *model, "--target", "star", "--out", str(flow)])
            shutil.copy(flow / "gradient_flow.png", PICTURES / name)
        fooled = Path(folder, "attack")
        how = ["--method", "ifgsm", "--steps", "20", "--target", "circle"]
        on_terminal(["attack", "samples/star.png", *SAMPLE, *how, "--out", str(fooled)])
        # Noise does not compress; with 256 colours it looks the same and is a third of the size.
        picture = Image.open(fooled / "comparison.png").convert("RGB").quantize(256)
        picture.save(PICTURES / "attack.png", optimize=True)
        ablated = Path(folder, "ablated")
        on_terminal(["ablate", "samples/star.png", *SAMPLE, "--layer", "conv", "--out", str(ablated)])
        shutil.copy(ablated / "ablation.png", PICTURES)
        shutil.copy(ablated / "contact_sheet.png", PICTURES / "ablated.png")
        run = Path(folder, "run")
        on_terminal(["watch", "--out", str(run), "samples/train.py", "--variant", "sick"])
        for name in ("histograms.png", "dead_units.png"):
            picture = Image.open(run / name).convert("RGB").quantize(96)
            picture.save(PICTURES / f"watch_{name}", optimize=True)
    with tempfile.TemporaryDirectory() as folder:
        pictures = ["samples/star.png", "samples/composition.jpg", "samples/harbour.jpg"]
        cut = ["--global", "--amount", "0.2", "--sweep", "0.05,0.1,0.3,0.4,0.5,0.6,0.7,0.8,0.9"]
        on_terminal(["prune", *pictures, *SAMPLE, *cut, "--out", str(Path(folder, "cut"))])
        shutil.copy(Path(folder, "cut", "drift.png"), PICTURES)
    on_terminal(["stats", "samples/star.png", *SICK, "--plot", str(PICTURES / "sick.png")])


if __name__ == "__main__":
    draw_pictures()
    path = ROOT / "README.md"
    path.write_text(fill_console_blocks(path.read_text(encoding="utf-8")), encoding="utf-8")
