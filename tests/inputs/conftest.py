"""Pictures made on the fly and one way to open them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from modelscope_cli.inputs.python_inputs import Inputs, open_inputs
from modelscope_cli.inputs.request import InputRequest

MakePicture = Callable[..., Path]
OpenInputs = Callable[..., Inputs]


@pytest.fixture
def make_picture(tmp_path: Path) -> MakePicture:
    """Write a noisy picture, so that every resize and crop mistake shows."""

    def make(
        name: str = "photo.png", size: tuple[int, int] = (90, 60), mode: str = "RGB", **save: Any
    ) -> Path:
        generator = torch.Generator().manual_seed(sum(size))
        pixels = torch.randint(256, (size[1], size[0], 3), generator=generator, dtype=torch.uint8)
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        Image.frombytes("RGB", size, bytes(pixels.flatten().tolist())).convert(mode).save(path, **save)
        return path

    return make


@pytest.fixture
def opened() -> OpenInputs:
    """Open a request the way a command does."""

    def open_it(
        *files: Path | str,
        family: str = "classification",
        transforms: Any = None,
        module: Any = None,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        **options: Any,
    ) -> Inputs:
        return open_inputs(
            InputRequest(files=tuple(map(str, files)), **options),
            family=family,
            transforms=transforms,
            module=module,
            device=torch.device(device),
            dtype=dtype,
        )

    return open_it
