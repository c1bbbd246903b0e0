"""Memory over very many images: `stats` over 100,000 small ones against 1,000, and the list of two million names
with four processes that decode from it."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from figure import Figure
from paired import PYTHON, compare_commands
from photos import write_photos

from modelscope_cli.inputs.decoding import BlockSource, DecodeTiming, ImageBlocks
from modelscope_cli.inputs.files import find_images
from modelscope_cli.inputs.listing import FileGroups
from modelscope_cli.inputs.preprocessing_choice import plan_preprocessing
from modelscope_cli.inputs.request import InputRequest

FEW, MANY = 1_000, int(os.environ.get("FEED_IMAGES", "100000"))
N_NAMES, WORKERS = 2_000_000, 4
_MODEL = Path(__file__).parents[2] / "samples" / "tiny_resnet.py"


def measure(pairs: int | None) -> Iterator[Figure]:
    """Run `stats` as whole processes; list the names and decode some in this one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_photos(folder / "few", FEW, (40, 30))
        for number in range(MANY):  # as many files as asked for, of few contents
            os.makedirs(folder / "many" / f"{number // FEW:04}", exist_ok=True)
            os.link(
                folder / "few" / f"{number % FEW:06}.jpg",
                folder / "many" / f"{number // FEW:04}" / f"{number:07}.jpg",
            )
        options = ["--weights", "none", "--size", "32", "--batch", "64", "--columns", "mean,std,min,max"]
        few, many = (
            [
                PYTHON,
                "-m",
                "modelscope_cli",
                "stats",
                f"{folder}/{one}",
                "-m",
                f"{_MODEL}:TinyResNet",
                *options,
            ]
            for one in ("few", "many")
        )
        _, peak = compare_commands(many, few, pairs or 1)
        yield peak.at_most(f"peak memory of `stats` over {MANY:,} small images / over {FEW:,}", 1.05)
        yield _names(folder)


def _names(folder: Path) -> Figure:
    """Sum what this process and four workers really hold, what they share counted once."""
    names = "".join(f"{folder}/few/{number:06}.jpg\n" for number in range(FEW))
    with (folder / "list.txt").open("w") as file:
        file.writelines(names for _ in range(N_NAMES // FEW))
    found = find_images([f"@{folder}/list.txt"])
    plan = plan_preprocessing(InputRequest(size="32"), "classification", None, None)
    source = BlockSource(
        ImageBlocks(FileGroups(found.files, 64), 64, plan, False), DecodeTiming(), WORKERS, N_NAMES
    )
    source.find_first()
    most = 0.0
    step = N_NAMES // 64 // 500  # from all over the list
    for number, _ in enumerate(source.blocks(range(0, N_NAMES // 64, step))):
        most = max(most, _held_mib()) if number % 50 == 49 else most
    what = f"memory of {len(found.files):,} names, torch and {WORKERS} decoding processes"
    return Figure(what, f"{most:.0f} MiB", "<= 1000 MiB", most <= 1000)


def _held_mib() -> float:
    """Return the proportional set size of this process and its children in MiB."""
    own = os.getpid()
    listed = Path(f"/proc/{own}/task/{own}/children").read_text().split()
    rollups = (Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in (own, *listed))
    lines = (line for rollup in rollups for line in rollup.splitlines() if line.startswith("Pss:"))
    return sum(int(line.split()[1]) for line in lines) / 1024
