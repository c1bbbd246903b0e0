"""`run.json`: what a folder holds blocks of, as data, so that they can be gone on with and computed again."""

import dataclasses
import json
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch

from modelscope_cli.analysis.blocks.identity import model_sha256, options_sha256
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.models.request import ModelRequest
from modelscope_cli.records.naming import dtype_name

SCHEMA = "modelscope/blocks/1"
# How much is said on the way, what has been read of a file, and who decodes.
_NOT_ASKED = ("progress", "headers", "workers")


def describe_run(subject: Subject, options: Mapping[str, Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return what blocks are blocks of.

    Args:
        options: what was asked for and changes a number, beside the model and the images.
        keywords: what the public function has to be given to compute the same again.
    """
    inputs = subject.inputs
    every = _plain(
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
        "options_sha256": options_sha256(every),
        "options": every,
        "request": {
            "model": _request(subject.request) if subject.request is not None else None,
            "inputs": _request(subject.given.request),
            "keywords": _plain(keywords),
        },
    }


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """Say in words what is not the same in two runs; nothing where their blocks belong together."""
    if there.get("schema") != SCHEMA or there.get("command") != here["command"]:
        return [f"the command ('{there.get('command')}' there)"]
    found = []
    if here["list_sha256"] != there["list_sha256"]:
        found.append(
            f"the list of files ({there['files']:,} there, {here['files']:,} here, with their sizes)"
        )
    if here["model_sha256"] != there["model_sha256"]:
        found.append("the model")
    options = {**there["options"], **here["options"]}
    for name in options:
        was, now = (run["options"].get(name) for run in (there, here))
        if was != now:
            found.append(f"{name} ({_shown(was)} there, {_shown(now)} here)")
    return found


def model_request(document: Mapping[str, Any]) -> ModelRequest | None:
    """Return the request for the model; None where a module was handed over in Python."""
    typed = document["request"]["model"]
    if typed is None:
        return None
    checkpoint = Path(typed["checkpoint"]) if typed["checkpoint"] is not None else None
    return ModelRequest(**{**_tuples(typed), "checkpoint": checkpoint})


def input_request(document: Mapping[str, Any]) -> InputRequest:
    """Return the request for the images."""
    return InputRequest(**_tuples(document["request"]["inputs"]))


def keywords_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the other keywords of the function."""
    return _tuples(document["request"]["keywords"])


def _request(request: Any) -> Any:
    values = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
    return _plain({name: value for name, value in values.items() if name not in _NOT_ASKED})


def _plain(value: Any) -> Any:
    """Return what JSON makes of a value, of whichever kind a caller in Python gave it."""
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
