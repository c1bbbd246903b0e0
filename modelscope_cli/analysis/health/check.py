"""`check`: judge a model and its input by rules."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from modelscope_cli.errors import ModelscopeError
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.models.request import Model, ModelRequest, as_request, weights_file
from modelscope_cli.output_files import check_file, write_text
from modelscope_cli.records.check import CheckRecord
from modelscope_cli.records.check_evidence import Evidence
from modelscope_cli.records.findings import FAILED, PASSED, KnownFinding
from modelscope_cli.records.keywords import MODES, Keywords, LabelledKeywords, as_tuple, spelled_out
from modelscope_cli.records.naming import counted
from modelscope_cli.records.progress import SILENT, Progress
from modelscope_cli.records.refusals import check_word
from modelscope_cli.records.run import ModelInfo, Run, WeightsInfo
from modelscope_cli.records.weights import Safety, tell_allowed
from modelscope_cli.rules.baseline import (
    CheckBaseline,
    check_model,
    check_update,
    compare,
    read_baseline,
    render_baseline,
    updated,
)
from modelscope_cli.rules.registry import RULES
from modelscope_cli.rules.rule import judge, needs_of, unjudged_error, verdict_of
from modelscope_cli.rules.settings import read_settings

_NON_FINITE = "MS201"


@spelled_out
def check(
    model: "Model",
    inputs: Any = None,
    *,
    select: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    set: Mapping[str, float | str] | Sequence[str] = (),
    fail_on: str = "error",
    baseline: str | PathLike[str] | None = None,
    update_baseline: bool = False,
    max_params: int | str | None = None,
    max_macs: int | str | None = None,
    max_memory: int | str | None = None,
    max_train_memory: int | str | None = None,
    expect_output: str | Sequence[int] | None = None,
    min_accuracy: float | str | None = None,
    allow: Sequence[str] = (),
    mode: str = "auto",
    progress: Progress | None = None,
    **keywords: Unpack[LabelledKeywords],
) -> CheckRecord:
    """Check a model against rules; the result has `.passed` and `.assert_passed()`.

    Settings come from keywords; only the command reads `pyproject.toml`.

    Args:
        model: a name or file as on the command line, an `nn.Module`, or the result of `load`.
        inputs: paths, PIL images, tensors, a dict of arguments by name, a `DataLoader`; None for seeded noise, with
            which fewer rules can be judged.
        select: judge only these rules: MS202, its name, or a prefix such as MS2 (repeatable).
        ignore: leave out these rules.
        set: set the threshold of a rule (repeatable); `modelscope check --list` lists them. In Python,
            `{"MS202": 0.5}` or `["MS202=0.5"]`.
        fail_on: the lowest severity that makes the exit code 1: error, warning or never.
        baseline: ignore the findings listed in this file, unless they got worse.
        update_baseline: write the current findings to that file, and ignore them.
        max_params: at most this many parameters, such as 25M.
        max_macs: at most this many multiply-adds, such as 5G.
        max_memory: the most memory that a forward of one image may need at once, weights included, such as 500MB.
        max_train_memory: the most memory that a training step with adamw may need at once, for the smallest batch
            the model accepts, such as 2GB.
        expect_output: the expected shape of the output, such as 1,1000. In Python also `(1, 1000)`.
        min_accuracy: the least accuracy, 0 to 1, on images in folders named after the classes, such as 0.9.
        allow: patterns of unknown names that a checkpoint may contain: `timm.models.*`; dangerous names are never
            allowed.
        mode: mode of the forward and backward pass. auto: eval, but train if no batch norm has seen a batch yet.

    Raises:
        UsageError: a rule, threshold or keyword that is not valid (exit 2 on the command line).
        CannotRunError: the model cannot be loaded or raises an error, the baseline cannot be read or written, or
            nothing was judged; the error has the record then (exit 4).
    """
    check_word("mode", mode, MODES)
    settings = read_settings(
        None,
        select=as_tuple(select),
        ignore=as_tuple(ignore),
        set_=set,
        budgets={
            "max-params": max_params,
            "max-macs": max_macs,
            "max-memory": max_memory,
            "max-train-memory": max_train_memory,
            "expect-output": expect_output if isinstance(expect_output, str | None) else list(expect_output),
            "min-accuracy": min_accuracy,
        },
        fail_on=fail_on,
        baseline=Path(baseline) if baseline is not None else None,
    )
    rules = settings.rules()
    before = known_findings(settings.baseline, update_baseline)

    # These need torch and torchvision.
    from modelscope_cli.analysis.health.examine import Examined, examine

    needs = needs_of(rules, settings.thresholds)
    safety = _scan(model, keywords) if "safety" in needs else None
    if safety is not None:
        safety = safety.allowing(allow)
        tell_allowed(safety, progress or SILENT)
    load_error: ModelscopeError | None = None
    try:
        examined = examine(model, inputs, keywords, needs, mode, progress)
    except ModelscopeError as error:
        if safety is None or not safety.suspects:
            raise
        load_error = error
        evidence = Evidence(missing=dict.fromkeys(needs - {"safety"}, error.message))
        file = safety.file
        unloaded = ModelInfo("file", file, "not loaded", WeightsInfo(file, file, "not loaded"))
        run = Run.of("check", unloaded, None, device="none", dtype="none", seed=0)
        examined = Examined(run, evidence)  # a refused file is judged without loading it
    evidence, thresholds = replace(examined.evidence, safety=safety), settings.thresholds
    if evidence.forward is not None and not evidence.forward.is_finite:
        # Most rules cannot be judged then, and without this one a model that gives NaN would pass.
        rules = tuple(rule for rule in RULES if rule in rules or rule.code == _NON_FINITE)
        thresholds = {code: limit for code, limit in thresholds.items() if code != _NON_FINITE}
    findings, infos = judge(rules, thresholds, evidence)
    accepted, class_name = before.findings, examined.run.model.class_name
    if load_error is None:
        check_model(before, settings.baseline, class_name)
    if settings.baseline is not None and update_baseline:
        new = updated(accepted, findings, infos)
        of = class_name if load_error is None else before.model
        accepted = write_baseline(settings.baseline, new, of, progress or SILENT)
    findings, gone = compare(findings, accepted, infos)
    findings = tuple(replace(one, made_at=examined.made_at(one.layer)) for one in findings)
    verdict = verdict_of(findings, infos, settings.fail_on, examined.run.input)
    record = CheckRecord(
        run=examined.run,
        findings=findings,
        rules=infos,
        passed=verdict == PASSED,
        fail_on=settings.fail_on,
        mode="train" if examined.is_training else "eval",
        images=examined.n_images,
        baseline=str(settings.baseline) if settings.baseline else None,
        gone=gone,
        inputs=examined.evidence.inputs,
        verdict=verdict,
        accuracy=examined.evidence.accuracy,
    )
    if verdict != FAILED and load_error is not None:
        load_error.record = record
        raise load_error
    if unjudged := unjudged_error(record):
        raise unjudged
    return record


def _scan(model: Any, keywords: Keywords) -> Safety | None:
    """Scan the file of the weights for code; None without a file."""
    from modelscope_cli.checkpoints.safety.scan import scan_checkpoint

    if isinstance(model, LoadedModel):
        file = model.weights_file
    elif isinstance(model, str | PathLike | ModelRequest):
        file = weights_file(as_request(model, keywords))
    else:
        return None
    return scan_checkpoint(file) if file is not None else None


def known_findings(path: Path | None, is_update: bool) -> CheckBaseline:
    """Read the baseline; it need not exist if it is to be written."""
    if is_update:
        check_update(path)
    if path is None:
        return CheckBaseline()
    if is_update:
        check_file(path, is_forced=True)
        if not path.exists():
            return CheckBaseline()
    return read_baseline(path)


def write_baseline(
    path: Path, findings: tuple[KnownFinding, ...], model: str | None, progress: Progress
) -> tuple[KnownFinding, ...]:
    """Write the baseline, and return its findings."""
    write_text(path, render_baseline(findings, model))
    progress.note(f"wrote {path}: baseline of {counted(len(findings), 'finding')}")
    return findings
