"""Images a second of `stats` with four statistics over a folder of photos, against a torchvision loop over the same
that only runs the forward: a `DataLoader` over `ImageFolder` with as many workers."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from figure import Figure
from paired import compare_calls
from photos import write_photos
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.models import ResNet18_Weights, resnet18

import modelscope_cli as ms
from modelscope_cli.inputs.decoding import choose_workers
from modelscope_cli.inputs.python_inputs import open_inputs, to_inputs

N_PHOTOS, BATCH = 320, 8
_COLUMNS = ("mean", "std", "min", "max")


def measure(pairs: int | None) -> Iterator[Figure]:
    """Run both in this process, on all of its threads."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model, workers = resnet18().eval(), choose_workers(None)
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder) / "class", N_PHOTOS, (500, 375))
        photos = ImageFolder(folder, ResNet18_Weights.IMAGENET1K_V1.transforms())

        def peer() -> None:
            with torch.inference_mode():
                for images, _ in DataLoader(photos, BATCH, num_workers=workers):
                    model(images)

        def ours() -> None:
            ms.stats(model, folder, columns=_COLUMNS, batch=BATCH, workers=workers)

        def fed() -> None:
            inputs = open_inputs(
                to_inputs(folder, {"batch": BATCH, "workers": workers}),
                family="classification",
                transforms=photos.transform,
                module=model,
                device=torch.device("cpu"),
                dtype=torch.float32,
            )
            with torch.inference_mode():
                for batch in inputs:
                    model(*batch.args)

        ratio, alone = compare_calls(ours, peer, pairs or 5), compare_calls(fed, peer, pairs or 5)
    yield alone.at_most(
        f"time of bare forwards fed by us ({N_PHOTOS} photos, {workers} worker(s)) / by a DataLoader", 1.05
    )
    what = (
        f"time of `stats` (four statistics, resnet18, {N_PHOTOS} photos) / a DataLoader loop of bare forwards"
    )
    yield ratio.at_most(f"{what}, {workers} worker(s) each", 1.05)
