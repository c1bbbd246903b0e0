"""The folder of finished blocks, one file each as lossless JSON, and `run.json`, which describes their run."""

import dataclasses
import hashlib
import inspect
import json
import math
import os
import platform
import re
import shlex
import shutil
import types
import typing
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.subject import Subject
from modelscope_cli.checkpoints.tensors import file_sha256
from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.image import UnreadableImage
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.models.load import LoadedModel
from modelscope_cli.models.request import ModelRequest
from modelscope_cli.output_files import is_unfinished, make_folder, write_bytes, write_with
from modelscope_cli.records.certificate import Machine
from modelscope_cli.records.naming import dtype_name

T = TypeVar("T")
Reader = Callable[[Any], Any]


def to_text(value: Any) -> str:
    """Return dataclasses, tuples, dicts, numbers, strings and tensors as one line of JSON."""
    return json.dumps(_without_loss(value), separators=(",", ":"), allow_nan=False)


def from_plain(kind: type[T], value: Any) -> T:
    """Return the value of type `kind` that `to_text` wrote, from the output of `json.loads`."""
    return _reader(kind)(value)  # type: ignore[arg-type]


def _without_loss(value: Any) -> Any:
    kind = type(value)
    if kind in (str, int, bool) or value is None:
        return value
    if kind is float:
        return value if math.isfinite(value) else str(value)
    if dataclasses.is_dataclass(value):
        return {name: _without_loss(getattr(value, name)) for name in _names(kind)}  # type: ignore[arg-type]
    if isinstance(value, dict):
        return [[_without_loss(key), _without_loss(item)] for key, item in value.items()]
    if isinstance(value, (tuple, list)):
        is_flags = bool(value) and all(type(item) is bool for item in value)
        return "".join("01"[item] for item in value) if is_flags else [_without_loss(item) for item in value]
    if isinstance(value, Tensor):
        whole = value.detach().cpu().contiguous()
        data = whole.view(-1).view(torch.uint8) if whole.numel() else whole.new_empty(0, dtype=torch.uint8)
        text = b64encode(bytes(data.numpy())).decode()
        return {"dtype": dtype_name(whole.dtype), "shape": list(whole.shape), "data": text}
    raise TypeError(f"no exact text of a {kind.__name__}")


@cache
def _names(kind: Any) -> tuple[str, ...]:
    """Return the stored fields: those with `repr`; the others have a default."""
    return tuple(field.name for field in dataclasses.fields(kind) if field.repr)


@cache
def _reader(kind: Any) -> Reader:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        kinds = [argument for argument in arguments if argument is not types.NoneType]
        if len(kinds) > 1:
            return lambda value: value  # words or numbers
        read = _reader(kinds[0])
        return lambda value: None if value is None else read(value)
    if origin is tuple:
        is_any_length = len(arguments) == 2 and arguments[1] is ...
        return _sequence(arguments[0]) if is_any_length else _fixed(tuple(map(_reader, arguments)))
    if origin is dict:
        read_key, read_item = map(_reader, arguments)
        return lambda pairs: {read_key(key): read_item(item) for key, item in pairs}
    if kind is float:
        return lambda value: float(value) if isinstance(value, str) else value
    if kind is Tensor:
        return _tensor
    return _fields(kind) if dataclasses.is_dataclass(kind) else lambda value: value


def _sequence(kind: Any) -> Reader:
    if kind is bool:
        return lambda value: tuple(flag == "1" for flag in value)
    if kind in (int, str):
        return tuple
    read = _reader(kind)
    return lambda value: tuple(map(read, value))


def _fixed(readers: tuple[Reader, ...]) -> Reader:
    return lambda value: tuple(read(item) for read, item in zip(readers, value, strict=True))


def _fields(kind: Any) -> Reader:
    hints = typing.get_type_hints(kind)
    readers = [(name, _reader(hints[name])) for name in _names(kind)]
    return lambda value: kind(**{name: read(value[name]) for name, read in readers})


def _tensor(value: dict[str, Any]) -> Tensor:
    kind = getattr(torch, value["dtype"])
    data = bytearray(b64decode(value["data"]))
    flat = torch.frombuffer(data, dtype=kind) if data else torch.empty(0, dtype=kind)
    return flat.view(value["shape"])


SCHEMA = "modelscope/blocks/1"
# Fields of requests that do not change results.
_NOT_ASKED = ("progress", "headers", "workers")


def describe_run(subject: Subject, options: Mapping[str, Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a run for `run.json`; arguments as in `Blocks.begin`."""
    inputs = subject.inputs
    all_options = _plain(
        {
            "command": subject.command,
            "batch": inputs.block_size,
            "preprocessing": inputs.info.preprocessing,
            "dtype": dtype_name(subject.loaded.dtype),
            "seed": subject.seed,
            **options,
        }
    )
    return {
        "schema": SCHEMA,
        "command": subject.command,
        "files": len(inputs.files),
        "blocks": inputs.n_batches,
        "threads": torch.get_num_threads(),
        "list_sha256": inputs.files.sha256(),
        "model_sha256": model_sha256(subject.loaded.module),
        "options_sha256": options_sha256(all_options),
        "options": all_options,
        "request": {
            "model": _request(subject.request) if subject.request is not None else None,
            "inputs": _request(subject.given.request),
            "keywords": _plain(keywords),
        },
    }


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """Describe the differences between two runs; empty if their blocks belong together."""
    if there.get("schema") != SCHEMA or there.get("command") != here["command"]:
        return [f"the command ('{there.get('command')}' there)"]
    changes = []
    if here["list_sha256"] != there["list_sha256"]:
        changes.append(
            f"the list of files ({there['files']:,} there, {here['files']:,} here, with their sizes)"
        )
    if here["model_sha256"] != there["model_sha256"]:
        changes.append("the model")
    options = {**there["options"], **here["options"]}
    for name in options:
        was, now = (run["options"].get(name) for run in (there, here))
        if was != now:
            changes.append(f"{name} ({_shown(was)} there, {_shown(now)} here)")
    return changes


def model_request(document: Mapping[str, Any]) -> ModelRequest | None:
    """Return the request for the model; None for a module passed from Python."""
    fields = document["request"]["model"]
    if fields is None:
        return None
    checkpoint = Path(fields["checkpoint"]) if fields["checkpoint"] is not None else None
    return ModelRequest(**{**_tuples(fields), "checkpoint": checkpoint})


def input_request(document: Mapping[str, Any]) -> InputRequest:
    return InputRequest(**_tuples(document["request"]["inputs"]))


def keywords_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the other keywords of the function."""
    return _tuples(document["request"]["keywords"])


def _request(request: Any) -> Any:
    values = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
    return _plain({name: value for name, value in values.items() if name not in _NOT_ASKED})


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    return fspath(value) if isinstance(value, PathLike) else str(value)


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_ADDRESS = re.compile(r"0x[0-9a-f]+")
# Packages whose source is not hashed: the version of torch is stored with the blocks.
_PUBLISHED = ("torch.", "torchvision.", "timm.", "transformers.")


def options_sha256(options: Mapping[str, Any]) -> str:
    """Return the hash of the options, plain values by name."""
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()


def model_sha256(model: nn.Module) -> str:
    """Hash the printed architecture, the source of classes outside published packages, and all tensors."""
    digest = hashlib.sha256(_ADDRESS.sub("", str(model)).encode())
    for kind in dict.fromkeys(type(module) for module in model.modules()):
        if not kind.__module__.startswith(_PUBLISHED):
            digest.update(_source(kind).encode())
    for name, value in _values(model):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(_bytes(value))
    return digest.hexdigest()


def _source(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # typed into a notebook, or made of C
        return kind.__qualname__


def _values(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Return all parameters and buffers, non-persistent ones too, and the weights of quantized layers."""
    tensors_by_name = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    packed = {name: value for name, value in model.state_dict().items() if name not in tensors_by_name}
    tensors = {**tensors_by_name, **packed}
    return [
        (f"{name}{n or ''}", tensor)
        for name, value in tensors.items()
        for n, tensor in enumerate(value if isinstance(value, tuple) else (value,))
        if isinstance(tensor, Tensor)
    ]


def _bytes(value: Tensor) -> Any:
    whole = value.detach()
    whole = (whole.int_repr() if whole.is_quantized else whole).cpu().contiguous()
    return whole.view(-1).view(torch.uint8).numpy().data if whole.numel() else b""


def this_machine(loaded: LoadedModel) -> Machine:
    """Describe this machine's device, processor, threads and version of torch."""
    device, version = loaded.device, str(torch.__version__)
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        name = torch.cuda.get_device_name(device)
        return Machine(device.type, name, f"sm_{major}{minor}", 0, version)
    capability = torch.backends.cpu.get_cpu_capability()
    return Machine(device.type, _processor(), capability, torch.get_num_threads(), version)


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


RUN, BLOCKS, SUMS = "run.json", "blocks", "SHA256SUMS"
TIMING = "seconds"  # the only figure that differs between equal runs
_TIMES = re.compile(rb'"seconds":[^,}]*')


@dataclass(frozen=True, slots=True)
class Block:
    """One block."""

    number: int
    images: tuple[str, ...]  # names of the files that went through the model, in order
    broken: tuple[UnreadableImage, ...]  # the files that cannot be read
    machine: Machine  # the machine that computed it
    result: Any = field(default=None, repr=False)  # the partial result as plain values; None without images

    @property
    def n_images(self) -> int:
        return len(self.images)

    @property
    def names(self) -> list[str]:
        """Names of all its files, sorted."""
        return sorted([*self.images, *(file.name for file in self.broken)])


class BlockFolder:
    """Writes and reads blocks. Writes are atomic, so a killed process leaves no partial block."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, document: dict[str, Any]) -> None:
        """Write the description of the run, before any block."""
        make_folder(self.path / BLOCKS)
        write_bytes(self.path / RUN, (json.dumps(document, indent=2) + "\n").encode())

    def clear(self) -> None:
        """Remove another run."""
        (self.path / RUN).unlink(missing_ok=True)
        shutil.rmtree(self.path / BLOCKS, ignore_errors=True)

    def tidy(self) -> None:
        """Remove the temporary files of killed processes."""
        for file in (self.path / BLOCKS).glob("*"):
            if is_unfinished(file):
                file.unlink(missing_ok=True)

    def document(self) -> dict[str, Any] | None:
        """Return the description of the run; None if there is none."""
        try:
            document = json.loads((self.path / RUN).read_bytes())
        except (OSError, ValueError):
            return None
        return document if isinstance(document, dict) else None

    def has(self, phase: str, number: int) -> bool:
        return self._file(phase, number).exists()

    def last_change(self) -> int:
        """Return when the last block was finished, in nanoseconds by the file system's clock."""
        return (self.path / BLOCKS).stat().st_mtime_ns

    def write(self, phase: str, block: Block, result: str) -> None:
        """Write a finished block; `result` is its partial result as JSON."""
        data = f'{{"block":{to_text(block)},\n"result":{result}}}\n'.encode()

        def write_through(temporary: Path) -> None:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())

        write_with(self._file(phase, block.number), write_through)

    def read(self, phase: str, number: int) -> tuple[Block, bytes]:
        """Return a block and the hash of its file without timings."""
        path = self._file(phase, number)
        try:
            data = path.read_bytes()
            stored = json.loads(data)
            block = replace(from_plain(Block, stored["block"]), result=stored["result"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            message = f"block '{path}' cannot be read: {error}"
            raise CannotRunError(
                message, f"rm {shlex.quote(str(path))}   and --resume computes it again"
            ) from error
        return block, hashlib.sha256(_TIMES.sub(b"", data)).digest()

    def _file(self, phase: str, number: int) -> Path:
        return self.path / BLOCKS / f"{phase.replace(' ', '-')}-{number:06d}.json"


def write_sums(folder: Path) -> None:
    """Write the hashes of all files in a folder, in the format of `sha256sum`."""
    lines = [f"{file_sha256(file)}  {file.name}\n" for file in sorted(folder.iterdir()) if file.is_file()]
    write_bytes(folder / SUMS, "".join(lines).encode())


def changed_files(folder: Path, expected: Iterable[str]) -> list[str]:
    """Describe the files of a report that are missing or were changed.

    Args:
        expected: names of files that must exist and have a hash.
    """
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return [f"'{folder / SUMS}' is missing, so changes to the report cannot be detected"]
    digests = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    changes = []
    for name in sorted({*digests, *expected}):
        path = folder / name
        if not path.is_file():
            changes.append(f"'{path}' is missing")
        elif file_sha256(path) != digests.get(name):
            changes.append(f"'{path}' was changed after it was written")
    return changes
