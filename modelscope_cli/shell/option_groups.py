"""The groups of options that commands share: one frozen dataclass each, put into a signature by `spread`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modelscope_cli.errors import UsageError
from modelscope_cli.ranks import find_ranks
from modelscope_cli.records.run import invocation, invoked_as
from modelscope_cli.shell import console
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.named_model import ModelOpt, take_model
from modelscope_cli.shell.output import Destination, destination

if TYPE_CHECKING:
    from modelscope_cli.inputs.request import InputRequest
    from modelscope_cli.models.request import ModelRequest
    from modelscope_cli.report.sheet import View


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """A model that is named, and how it is loaded; the fields stand in the order of the help.

    A command that cannot be told one of them leaves it out by `field(init=False)`.
    """

    model: ModelOpt = None
    weights: opt.WeightsOpt = "auto"
    checkpoint: opt.CheckpointOpt = None
    key: opt.KeyOpt = None
    strict: opt.StrictOpt = None
    num_classes: opt.NumClassesOpt = None
    model_arg: opt.ModelArgsOpt = None
    device: opt.DeviceOpt = "auto"
    dtype: opt.DtypeOpt = "float32"
    seed: opt.SeedOpt = 0
    offline: opt.OfflineOpt = False

    def request(self, model: str) -> "ModelRequest":
        """Return what was asked for of this model, checked as far as that goes without importing anything heavy.

        Raises:
            UsageError, CannotRunError: what is wrong with a name, or missing as a file (exit 2, 4).
        """
        from modelscope_cli.models.request import check_request

        return check_request(self.typed(model))

    def typed(self, model: str) -> "ModelRequest":
        """Return what was asked for as it was typed."""
        from modelscope_cli.models.request import ModelRequest

        return ModelRequest(
            model=model,
            weights=self.weights,
            checkpoint=self.checkpoint,
            key=self.key,
            strict=self.strict,
            num_classes=self.num_classes,
            model_args=tuple(self.model_arg or ()),
            device=self.device,
            dtype=self.dtype,
            seed=self.seed,
            offline=self.offline,
            progress=not console.settings.is_quiet,
        )


@dataclass(frozen=True, slots=True)
class ModelOptions(LoadOptions):
    """The model of a command that runs one on images."""

    def take(self, command: str, first: str | None, images: list[str] | None) -> tuple[str, list[str]]:
        """Return the model's name and the images; see `named_model.take_model`."""
        return take_model(command, first, images, self.model, default="resnet34")


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """How images are prepared for a model."""

    size: opt.SizeOpt = None
    mean: opt.MeanOpt = None
    std: opt.StdOpt = None
    normalize: opt.NormalizeOpt = True

    def request(
        self,
        images: list[str] | None,
        seed: int,
        input_shape: list[str] | None = None,
        batch: int | None = None,
        named: list[str] | None = None,
        workers: int | None = None,
    ) -> "InputRequest":
        """Return what was asked for; the files are there.

        Raises:
            UsageError, CannotRunError: a glob that matches nothing, a file that is missing, an `--input` that is
                not NAME=SPEC (exit 2, 4).
        """
        from modelscope_cli.inputs.files import check_pictures
        from modelscope_cli.inputs.grammar import files_of
        from modelscope_cli.inputs.request import InputRequest

        check_pictures(file for file in (*(images or ()), *files_of(named or ())) if file != "-")
        return InputRequest(
            files=tuple(images or ()),
            named=tuple(named or ()),
            shapes=tuple(input_shape or ()),
            size=self.size,
            mean=self.mean,
            std=self.std,
            normalize=self.normalize,
            batch=batch,
            seed=seed,
            workers=workers,
        )


@dataclass(frozen=True, slots=True)
class InputOptions:
    """What a model is run on, beside the images themselves."""

    input_shape: opt.InputShapeOpt = None
    input: opt.NamedInputsOpt = None
    size: opt.SizeOpt = None
    mean: opt.MeanOpt = None
    std: opt.StdOpt = None
    normalize: opt.NormalizeOpt = True
    batch: opt.BatchOpt = None
    workers: opt.WorkersOpt = None

    def request(self, images: list[str] | None, seed: int) -> "InputRequest":
        """Return what was asked for; see `ImageOptions.request`."""
        prepared = ImageOptions(self.size, self.mean, self.std, self.normalize)
        return prepared.request(images, seed, self.input_shape, self.batch, self.input, self.workers)


@dataclass(frozen=True, slots=True)
class LayerOptions:
    """Which layers are looked at."""

    layer: opt.LayersOpt = None
    exclude: opt.ExcludeOpt = None


@dataclass(frozen=True, slots=True)
class FolderOptions:
    """The folder of a command that writes pictures."""

    out: opt.OutDirOpt = None

    def choose(self, command: str, model: str) -> Path:
        """Return the folder that was asked for, else one of the command's own that is free.

        Raises:
            UsageError, CannotRunError: it is not empty and not forced, or cannot be written to (exit 2, 4).
        """
        from modelscope_cli.report.folder import OutputFolder, free_folder

        folder = self.out or free_folder(command, model)
        OutputFolder(folder, invocation().is_forced).check()
        return folder


@dataclass(frozen=True, slots=True)
class BlockOptions:
    """The folder of a command that goes through image files in blocks, alone or with others."""

    out: opt.BlocksDirOpt = None
    resume: opt.ResumeOpt = False


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How a result is shown, and how much is said on the way."""

    force: opt.ForceOpt = False
    columns: opt.ColumnsOpt = None
    sort: opt.SortOpt = None
    top: opt.TopOpt = None
    all: opt.AllOpt = False
    format: opt.FormatOpt = "auto"
    json: opt.JsonOpt = False
    output: opt.OutputOpt = None
    html: opt.HtmlOpt = None
    verbose: opt.VerboseOpt = False
    quiet: opt.QuietOpt = False
    debug: opt.DebugOpt = False

    def begin(self, more: tuple[str, ...] = (), *, is_shared: bool = False) -> Destination:
        """Remember how much to say and what may be overwritten; decide where the result goes. Comes first.

        Args:
            is_shared: whether the processes that torchrun starts do it together; then one speaks for all.
        """
        console.settings.is_quiet = self.quiet
        console.settings.is_verbose = self.verbose
        console.settings.is_debug = self.debug
        console.settings.is_silent = is_shared and not find_ranks().is_first
        # What a silent process finds written was written by the first.
        is_forced = self.force or console.settings.is_silent
        invoked_as(console.settings.argv, console.settings.started, is_forced)
        page = None if console.settings.is_silent else self.html
        where = destination(self.format, self.json, self.output, self._view(), more, page=page)
        console.begin_work()
        return where

    def check_saving(self, is_saved: bool, out: Path | None, others: Path | None = None) -> None:
        """Refuse what is about a folder where none is written.

        Args:
            others: what the command writes beside the folder, which --force may be about.

        Raises:
            UsageError: exit code 2.
        """
        is_about_folder = self.force and not (self.output or self.html or others)
        if not is_saved and (out or is_about_folder):
            raise UsageError(
                "--no-save writes no folder", "leave out --no-save, or leave out --out and --force"
            )

    def _view(self) -> "View":
        from modelscope_cli.report.sheet import View

        return View(self.columns, self.sort, self.top, self.all)


MODEL, INPUT, IMAGES, LAYERS, FOLDER, BLOCKS, OUTPUT = (
    ModelOptions(),
    InputOptions(),
    ImageOptions(),
    LayerOptions(),
    FolderOptions(),
    BlockOptions(),
    OutputOptions(),
)
