"""The columns of `attack`."""

from modelscope_cli.records import Answer, AttackRecord, ClassShift
from modelscope_cli.report import figures
from modelscope_cli.report.sheet import Column, Sheet, choose_columns

COLUMNS = (
    Column("class", "class", lambda r: r.index, rank=2),
    Column("label", "label", lambda r: r.label, is_number=False, rank=0),
    Column("before", "before", lambda r: r.before, lambda r: figures.percent(r.before), rank=0),
    Column("after", "after", lambda r: r.after, lambda r: figures.percent(r.after), rank=0),
    Column("change", "change", lambda r: r.after - r.before, lambda r: _change(r), rank=3),
    Column("saved", "saved as PNG", lambda r: r.saved, lambda r: figures.percent(r.saved), rank=1),
)


def attack_sheet(record: AttackRecord, columns: str | None = None) -> Sheet:
    """List the classes that were ever among the best: those of the picture first, then those that came up."""
    model = record.run.model
    return Sheet(
        title=f"{model.name} ({model.class_name}, weights {model.weights.resolved}) on {record.image}, "
        f"{record.run.device}",
        columns=choose_columns(COLUMNS, columns),
        rows=record.classes,
        facts=_facts(record),
        is_bad=lambda row: row.index == record.after_saved.top[0].index != record.before.top[0].index,
    )


def _change(row: ClassShift) -> str:
    return f"{100 * (row.after - row.before):+.1f}"


def _facts(record: AttackRecord) -> tuple[tuple[str, str], ...]:
    first, last = record.losses[record.restart][0], record.losses[record.restart][record.iterations]
    runs = f" of run {record.restart + 1} of {record.restarts}" if record.restarts > 1 else ""
    loss_of = record.target_label or record.target if record.targeted else best(record.before)
    return (
        ("fooled", verdict(record)),
        ("attack", f"{attack_words(record)}, epsilon {in_levels(record.epsilon)}"),
        ("steps", f"{record.iterations} of {record.steps}{runs}, step size {in_levels(record.step_size)}; "
         f"{record.forward_passes} forward and {record.backward_passes} backward passes"),
        ("loss", f"cross-entropy of {loss_of} {figures.number(first)} -> {figures.number(last)}"),
        ("distance", f"linf {in_levels(record.linf)}, l2 {figures.number(record.l2)}"),
        ("saved as PNG", f"linf {in_levels(record.linf_saved)}, l2 {figures.number(record.l2_saved)}"),
        ("folder", f"{record.out_dir} ({', '.join(record.files)})"),
    )


def verdict(record: AttackRecord) -> str:
    """Say what came of it, in words."""
    before, after = best(record.before), best(record.after)
    if not record.success:
        return f"no, the model still says {after} (the exit code is 0: an attack checks nothing)"
    saved = "and so is the 8-bit file read back"
    if not record.success_saved:
        saved = f"but not the 8-bit file read back, which is {best(record.after_saved)}"
    return f"yes: {before} is now {after}, {saved}"


def attack_words(record: AttackRecord) -> str:
    """Return `pgd towards circle (linf)`."""
    if record.targeted:
        return f"{record.method} ({record.norm}) towards {record.target_label or record.target}"
    return f"{record.method} ({record.norm}) away from {best(record.before)}"


def best(answer: Answer) -> str:
    """Return the likeliest class by name, else by number."""
    return answer.top[0].label or str(answer.top[0].index)


def in_levels(length: float) -> str:
    """A length of pixels in 0..1 in both units: `8/255 = 0.0314`."""
    return f"{255 * length:.4g}/255 = {length:.4g}"
