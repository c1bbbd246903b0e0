"""The columns of `attack`."""

from modelscope_cli.records.attack import AttackRecord, ClassShift
from modelscope_cli.report import numbers
from modelscope_cli.report.numbers import hook_facts
from modelscope_cli.report.sheet import Column, Sheet, field_columns

COMPARISON = "comparison.png"
COLUMNS = (
    *field_columns(ClassShift, "class label before after"),
    Column(
        "change",
        "change",
        lambda r: r.after - r.before,
        lambda r: f"{100 * (r.after - r.before):+z.1f}",
        rank=3,
    ),
    *field_columns(ClassShift, "saved"),
)


def attack_sheet(record: AttackRecord) -> Sheet:
    """Return the top classes before and after the attack: those of the image first."""
    return Sheet(
        title=f"{record.run.model.described} on {record.image}, {record.run.device}",
        columns=COLUMNS,
        rows=record.classes,
        facts=_facts(record),
        is_bad=lambda row: row.index == record.after_saved.top[0].index != record.before.top[0].index,
    )


def _facts(record: AttackRecord) -> tuple[tuple[str, str], ...]:
    first, last = record.loss_before, record.losses[record.best_run][record.iterations]
    run = f", in run {record.best_run + 1} of {len(record.losses)}" if len(record.losses) > 1 else ""
    step = in_levels(record.step_size, record.norm)
    passes = f"{record.forward_passes} forward and {record.backward_passes} backward passes"
    prepared = record.after_prepared.said
    if record.run.input is not None:
        height, width = record.run.input.shape[0][-2:]
        prepared += f"; --size {height},{width} takes the file unchanged"
    return (
        ("fooled", verdict(record)),
        ("attack", f"{attack_words(record)}, {_limit(record)}"),
        ("steps", f"{record.iterations} of {record.steps} steps of length {step}{run}; {passes}"),
        ("loss", f"{loss_words(record)} {numbers.number(first)} -> {numbers.number(last)}"),
        (
            "distance",
            f"largest change of a value (linf) {in_levels(record.linf)}, length (l2) {numbers.number(record.l2)}",
        ),
        ("saved as PNG", f"linf {in_levels(record.linf_saved)}, l2 {numbers.number(record.l2_saved)}"),
        ("prepared again", f"prediction after resizing and cropping: {prepared}"),
        *hook_facts(record.hooks),
        *_where(record),
    )


def _limit(record: AttackRecord) -> str:
    """Return the requested epsilon, or the result of the search for the smallest."""
    epsilon = f"epsilon {in_levels(record.epsilon, record.norm)}"
    if not record.smallest:
        return epsilon
    if not record.success:
        return f"none found up to {epsilon}"
    return f"smallest {epsilon}; none found below {in_levels(record.not_within or 0.0, record.norm)}"


def _where(record: AttackRecord) -> tuple[tuple[str, str], ...]:
    if record.out_dir is None:
        return ()
    glance = (("at a glance", f"{record.out_dir}/{COMPARISON}"),) if COMPARISON in record.files else ()
    return (("folder", record.out_dir), *glance)


def verdict(record: AttackRecord) -> str:
    """Return the outcome as a sentence."""
    before, after = record.before.said, record.after.said
    saved = record.after_saved.said
    if record.success and record.success_saved:
        return f"yes: {before} is now {after}, and so is the 8-bit file read back"
    if record.success:
        return f"yes: {before} is now {after}; but not by the 8-bit file read back, which is {saved}"
    if record.success_saved:
        return f"only by the 8-bit file read back, which is {saved}; before rounding it is {after}"
    change = f"the model still predicts {after}" if after == before else f"{before} is now {after}"
    return f"no, {change} (the exit code is still 0: an attack is not a check)"


def answer(record: AttackRecord) -> str:
    """Return whether the model was fooled, by how large a change."""
    before, saved = record.before.said, record.after_saved.said
    change = in_levels(record.linf_saved) if record.norm == "linf" else numbers.number(record.l2_saved)
    if record.success_saved:
        goal = f"{before} becomes {saved}" if saved != before else f"now {saved}"
        return f"Fooled: {goal}, by a change of at most {change} ({record.norm}) in the saved file"
    if record.success:
        return f"Fooled only before rounding: the saved 8-bit file is still {saved}"
    return f"Not fooled within epsilon {in_levels(record.epsilon, record.norm)}: {record.after.said}"


def attack_words(record: AttackRecord) -> str:
    """Return `pgd towards circle (linf)`."""
    if record.targeted:
        return f"{record.method} ({record.norm}) towards {loss_class(record)}"
    return f"{record.method} ({record.norm}) away from {loss_class(record)}"


def loss_class(record: AttackRecord) -> str:
    """Return the class of the loss: the target, else the original prediction."""
    return name(record.target, record.target_label) if record.targeted else record.before.said


def loss_words(record: AttackRecord) -> str:
    """Return the name of the loss: `cross-entropy of star`."""
    return f"cross-entropy of {loss_class(record)}"


def name(index: int | None, label: str | None) -> str:
    return label or f"class {index}"


def in_levels(length: float, norm: str = "linf") -> str:
    """Format a norm of pixels in 0..1: `8/255 = 0.0314` for linf; `3` for other norms."""
    return f"{length:.4g}" if norm == "l2" else f"{255 * length:.4g}/255 = {length:.3g}"
