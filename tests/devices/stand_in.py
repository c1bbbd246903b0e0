"""The device of `stand_in.cpp`, built once and registered with torch as `stand` by importing this module.

Registering changes the whole process and cannot be undone, so only processes made for it import this: those that
`conftest.py` of this folder starts. `STAND_IN_CACHE` names the folder that the built library is kept in.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

SOURCE = Path(__file__).with_suffix(".cpp")
NAME = "stand_in_library"


def loaded(cache: Path) -> Any:
    """Load the library, compiled into a folder of `cache` that is named by what it is made of."""
    made_of = (SOURCE.read_bytes(), torch.__version__.encode(), sys.version.encode())
    library = cache / f"{NAME}-{hashlib.sha256(b'|'.join(made_of)).hexdigest()[:16]}" / f"{NAME}.so"
    if not library.exists():
        from torch.utils import cpp_extension  # warns where there is no GPU

        library.parent.mkdir(parents=True, exist_ok=True)
        with open(library.parent / "lock", "w") as lock, tempfile.TemporaryDirectory(dir=cache) as folder:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two processes may be at it, and each takes half a minute
            if not library.exists():
                extension = cpp_extension.load(
                    NAME, [str(SOURCE)], build_directory=folder, extra_cflags=["-O0"]
                )
                Path(folder, library.name).replace(library)
                return extension
    spec = importlib.util.spec_from_file_location(NAME, library)
    assert spec is not None
    assert spec.loader is not None
    extension = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    return extension


def registered(extension: Any) -> Any:
    """Register the device with torch; return the extension, whose `settings` make it fail."""
    extension.register_hooks()
    torch.utils.rename_privateuse1_backend("stand")
    torch._register_device_module("stand", module_of(extension))
    torch.utils.generate_methods_for_privateuse1_backend()
    return extension


def module_of(extension: Any) -> ModuleType:
    """Return what `torch.get_device_module("stand")` is: the functions that torch itself asks a device for."""

    def index(device: Any = None) -> int:
        found = device if isinstance(device, int) else device and torch.device(device).index
        return extension.current_device() if found is None else found

    def seed_all(seed: int) -> None:
        for device in range(extension.N_DEVICES):
            extension.default_generator(device).manual_seed(seed)

    @contextlib.contextmanager
    def device(wanted: Any) -> Iterator[None]:
        before = extension.current_device()
        extension.set_device(index(wanted))
        try:
            yield
        finally:
            extension.set_device(before)

    module = ModuleType("torch.stand")
    module.__dict__.update(
        is_available=lambda: True,
        is_initialized=lambda: True,
        _is_in_bad_fork=lambda: False,
        device_count=lambda: extension.N_DEVICES,
        device=device,
        current_device=extension.current_device,
        set_device=lambda device: extension.set_device(index(device)),
        synchronize=lambda device=None: extension.wait(),
        manual_seed=lambda seed: extension.default_generator(index()).manual_seed(seed),
        manual_seed_all=seed_all,
        get_rng_state=lambda device=None: extension.default_generator(index(device)).get_state(),
        set_rng_state=lambda state, device=None: extension.default_generator(index(device)).set_state(state),
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
    )
    return module


stand = registered(loaded(Path(os.environ["STAND_IN_CACHE"])))
