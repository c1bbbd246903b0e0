"""The input options as typed."""

import shlex
from dataclasses import dataclass

from modelscope_cli.errors import UsageError


@dataclass(frozen=True, slots=True)
class InputRequest:
    """All input options, still unparsed."""

    files: tuple[str, ...] = ()  # image files, folders, globs, `-` for standard input, or one tensor file
    # Each `--input-shape`, such as `1,3,224,224` or `int64:1,128`; several are several inputs
    shapes: tuple[str, ...] = ()
    named: tuple[str, ...] = ()  # each `--input`, such as `pixel_values=photo.jpg` or `input_ids=int64:1,16`
    size: str | None = None  # `--size`, `224` or `224,320` (height, width)
    # mean, std: one number for all channels or one per channel, on the scale 0..1
    mean: str | None = None
    std: str | None = None
    batch: int | None = None  # images per forward; for noise, the batch dimension
    seed: int = 0  # of the noise
    workers: int | None = None  # processes that decode images; None for as many as there are spare cores
    is_shuffled: bool = False  # whether batches mix the files of all folders, as in training
    is_strict: bool = False  # whether any image that cannot be decoded is an error

    def check_one(self) -> None:
        """Refuse several files, for a command that looks at one image."""
        if len(self.files) > 1:
            message = f"one image at a time, not {len(self.files)}"
            others = self.files[1:]
            raise UsageError(
                message, f"leave out {shlex.join(others)}" if len(others) < 4 else "give one file"
            )

    def value_options(self) -> list[str]:
        """Return the options about pixel values that were given, as typed."""
        options = {"--mean": self.mean, "--std": self.std}
        return [f"{option} {text}" for option, text in options.items() if text is not None]

    def size_options(self) -> list[str]:
        """Return `--size` as typed, if it was."""
        return [] if self.size is None else [f"--size {self.size}"]
