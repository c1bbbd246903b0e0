"""Read the settings of `check`: `[tool.modelscope]` of a pyproject.toml, overridden by flags."""

import difflib
import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from modelscope_cli.errors import UsageError, with_nearest
from modelscope_cli.paths import project_file
from modelscope_cli.records.findings import ERROR, NEVER, SEVERITIES
from modelscope_cli.records.keywords import as_tuple
from modelscope_cli.rules.registry import EVERY_RULE, RULES, choose_rules, find_rule
from modelscope_cli.rules.rule import Rule, read_threshold

BUDGETS = ("max-params", "max-macs", "max-memory", "max-train-memory", "expect-output", "min-accuracy")
_SUBJECT = ("model", "checkpoint", "images", "size")
_NEAR = 0.85  # similarity of names: above it modelscop, below it modelscan, another tool
_KEYS = (*_SUBJECT, "select", "ignore", "thresholds", "fail-on", "baseline", "allow", *BUDGETS)


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """Settings of `check`."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    thresholds: Mapping[str, float | str] = field(default_factory=dict)  # by code; the rules' own by default
    fail_on: str = ERROR
    baseline: Path | None = None  # file of the known findings; None without one
    project: Path | None = None  # the pyproject.toml that was used; None without one
    allow: tuple[str, ...] = ()  # patterns of unknown names that a checkpoint may use: `timm.models.*`
    # model, checkpoint, images, size: defaults for the command line; paths relative to the working folder
    model: str | None = None
    checkpoint: Path | None = None
    images: tuple[str, ...] = ()
    size: str | None = None  # as --size

    def rules(self, every: Sequence[Rule] = RULES) -> tuple[Rule, ...]:
        """Return the selected rules out of `every`; with no selection all but budgets that are not set."""
        chosen = choose_rules(self.select, self.ignore, every)
        limits = {rule: self.thresholds.get(rule.code, rule.threshold) for rule in chosen}
        return tuple(rule for rule in chosen if self.select or limits[rule] is not None)


def read_settings(
    folder: Path | None,
    *,
    select: Iterable[str] | None = None,
    ignore: Iterable[str] | None = None,
    set_: str | Sequence[str] | Mapping[str, object] | None = None,
    budgets: Mapping[str, object] | None = None,
    fail_on: str | None = None,
    baseline: Path | None = None,
) -> CheckSettings:
    """Read the project's settings, with flags overriding them, each threshold separately.

    Args:
        folder: the project's folder or one below; None for no project.
        set_: `CODE=threshold` each, or thresholds by code.
        budgets: by option name, such as `max-params`.
    """
    settings = _read_project(folder) if folder is not None else CheckSettings()
    if select:
        settings = replace(settings, select=_split(select))
    if ignore:
        settings = replace(settings, ignore=_split(ignore))
    thresholds = dict(settings.thresholds)
    for name, value in set_.items() if isinstance(set_, Mapping) else map(_pair, as_tuple(set_)):
        rule = find_rule(name, "--set")
        thresholds[rule.code] = read_threshold(value, rule.kind, f"--set {name}=", rule.most)
    for name, budget in (budgets or {}).items():
        if budget is not None:
            rule = find_rule(name, f"--{name}")
            thresholds[rule.code] = read_threshold(budget, rule.kind, f"--{name} ", rule.most)
            settings = replace(settings, select=_with(rule.code, settings.select))
    settings = replace(settings, thresholds=thresholds)
    if fail_on is not None:
        settings = replace(settings, fail_on=_severity(fail_on, "--fail-on "))
    settings = replace(settings, baseline=baseline or settings.baseline)
    settings.rules(EVERY_RULE)
    return settings


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"'--set {text}' is not of the form CODE=threshold", "--set MS202=0.5")
    return name, value


def _with(budget: str, select: tuple[str, ...]) -> tuple[str, ...]:
    """Return `select` with a budget's rule added: setting a budget selects it."""
    return (*select, budget) if select else ()


def _split(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def _severity(value: object, option: str) -> str:
    if value not in (*SEVERITIES, NEVER):
        meant = "warning" if str(value).lower().startswith("warn") else ERROR
        meant = f'"{meant}"' if option.endswith("= ") else meant  # in TOML
        raise UsageError(f"'{option}{value}' is not a severity", f"{option}{meant}")
    return str(value)


def _read_project(folder: Path) -> CheckSettings:
    path = project_file(folder)
    if path is None:
        return CheckSettings()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        script = f"import tomllib; tomllib.load(open({str(path)!r}, 'rb'))"
        hint = f"python -c {shlex.quote(script)}"
        reason = str(error).partition("; use sys.")[0]
        raise UsageError(f"'{path}' cannot be read: {reason}", hint) from error
    except OSError as error:
        raise UsageError(
            f"'{path}' cannot be read: {error.strerror}", f"ls -l {shlex.quote(str(path))}"
        ) from error
    tools = document.get("tool")
    table = tools.get("modelscope") if isinstance(tools, dict) else None
    _refuse_near_misses(document, path)
    if table is None:
        return CheckSettings()
    if not isinstance(table, dict):
        raise UsageError(f"'modelscope' in [tool] of '{path}' is not a table", "write [tool.modelscope]")
    return _from_table(table, path)


def _refuse_near_misses(document: dict[str, Any], path: Path) -> None:
    """Refuse a misnamed table: `[tool.mscope]`, `[modelscope]`."""
    inner = [
        ((key, name), value)
        for key, table in document.items()
        if isinstance(table, dict)
        for name, value in table.items()
    ]
    for names, value in (*(((key,), table) for key, table in document.items()), *inner):
        word = re.sub(r"[\W_]|cli$", "", names[-1].lower())
        is_near = word == "mscope" or difflib.SequenceMatcher(None, word, "modelscope").ratio() > _NEAR
        if is_near and isinstance(value, dict) and names != ("tool", "modelscope"):
            message = f"[{'.'.join(names)}] of '{path}' is not read: the settings are in [tool.modelscope]"
            raise UsageError(message, "write [tool.modelscope]")


def _from_table(table: dict[str, Any], path: Path) -> CheckSettings:
    where = f"[tool.modelscope] of '{path}'"
    table = {key.replace("_", "-"): value for key, value in table.items()}  # accept fail_on
    for key in table:
        if key not in _KEYS and isinstance(table[key], dict):
            message = (
                f"[tool.modelscope.{key}] of '{path}' is not read: the settings are in [tool.modelscope]"
            )
            raise UsageError(message, "write [tool.modelscope]")
        if key not in _KEYS:
            message = with_nearest(f"unknown key '{key}' in {where}", key, _KEYS)
            raise UsageError(message, f"write one of {', '.join(_KEYS)}")
    thresholds: dict[str, float | str] = {}
    select = _codes(table, "select", where)
    entries = table.get("thresholds", {})
    if not isinstance(entries, dict):
        raise UsageError(f"'thresholds' in {where} is not a table", "write [tool.modelscope.thresholds]")
    for name, value in (*entries.items(), *((key, table[key]) for key in BUDGETS if key in table)):
        rule = find_rule(name, where)
        thresholds[rule.code] = read_threshold(value, rule.kind, f"{name} = ", rule.most)
        if name in BUDGETS:
            select = _with(rule.code, select)
    baseline = _name(table, "baseline", where, "a file name", "known.json")
    model = _name(table, "model", where, "a model", "models/net.py:Net")
    checkpoint = _name(table, "checkpoint", where, "a file name", "last.pth")
    file, _, attribute = (model or "").rpartition(
        ":"
    )  # a file, or in one; not a name or `package.module:attr`
    is_file = file.endswith(".py") if attribute and file else (path.parent / (model or "")).exists()
    size = _name({"size": table.get("size") and str(table["size"])}, "size", where, "a size", "224")
    settings = CheckSettings(
        select=select,
        ignore=_codes(table, "ignore", where),
        thresholds=thresholds,
        fail_on=_severity(table.get("fail-on", ERROR), "fail-on = "),
        baseline=path.parent / baseline if baseline else None,
        project=path,
        allow=tuple(_strings(table, "allow", where, "names", "timm.models.*")),
        model=_from_here(path.parent, model) if model and is_file else model,
        checkpoint=Path(_from_here(path.parent, checkpoint)) if checkpoint else None,
        size=size,
        images=tuple(
            _from_here(path.parent, file) for file in _strings(table, "images", where, "files", "star.png")
        ),
    )
    settings.rules(EVERY_RULE)
    return settings


def _name(table: dict[str, Any], key: str, where: str, what: str, example: str) -> str | None:
    value = table.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise UsageError(f"'{key} = {value}' in {where} is not {what}", f'write {key} = "{example}"')
    return value


def _from_here(folder: Path, name: str) -> str:
    """Turn a path relative to `folder` into one relative to the working folder."""
    return name if folder == Path.cwd() else os.path.relpath(folder / name)


def _codes(table: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    return _split(_strings(table, key, where, "codes", "MS2"))


def _strings(table: dict[str, Any], key: str, where: str, what: str, example: str) -> list[str]:
    value = table.get(key, [])
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UsageError(
            f"'{key} = {value}' in {where} is not a list of {what}", f'write {key} = ["{example}"]'
        )
    return value
