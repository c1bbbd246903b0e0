"""The columns of `prune`: the drift at every amount, and the layers."""

from modelscope_cli.records.naming import counted
from modelscope_cli.records.prune import Drift, PrunedLayer, PruneRecord
from modelscope_cli.report import numbers
from modelscope_cli.report.numbers import headline, hook_facts
from modelscope_cli.report.sheet import Column, Sheet, field_columns, figure, percentage


def weight_label(row: PrunedLayer) -> str:
    """Return the name of a layer, with its parameter unless that is `weight`."""
    name = row.name or row.type
    return name if row.parameter == "weight" else f"{name}.{row.parameter}"


def _drift_columns(output: str) -> tuple[Column, ...]:
    """Return the columns of the drift."""
    unit = "output" if output == "pixels" else "logit"
    return (
        *field_columns(Drift, "amount", text=lambda r: f"{r.amount:g}"),
        *field_columns(Drift, "sparsity zeros"),
        percentage("agreement", "agreement", lambda r: r.agreement, rank=0),
        *field_columns(Drift, "kl_divergence"),
        figure("max_logit_change", f"max |{unit} change|", lambda r: r.max_logit_change, rank=1),
        percentage("accuracy", "accuracy", lambda r: r.accuracy and r.accuracy.value, rank=0),
    )


LAYER_COLUMNS = (
    Column("name", "layer", weight_label, is_number=False, rank=0),
    *field_columns(PrunedLayer, "type shape numel zeros zeros_before sparsity"),
)


def prune_columns(table: str, output: str = "classes") -> tuple[Column, ...]:
    """Return all columns of a table, `drift` or `layers`, for a kind of output."""
    return LAYER_COLUMNS if table == "layers" else _drift_columns(output)


def prune_sheet(record: PruneRecord, table: str = "drift") -> Sheet:
    """Return one of the tables: the drift by rising amount, or the layers in model order."""
    rows: tuple[Drift | PrunedLayer, ...] = record.layers if table == "layers" else record.sweep
    return Sheet(
        title=headline(record.run, record.images),
        columns=prune_columns(table, record.output),
        rows=rows,
        facts=tuple(_facts(record)),
        is_dim=lambda row: isinstance(row, PrunedLayer) and row.zeros == row.zeros_before,
        is_by_layer=table == "layers",
        is_bad=lambda row: isinstance(row, Drift) and row.agreement < 1,
    )


def answer(record: PruneRecord) -> str:
    """Return the drift at the amount asked for, and at the largest."""
    drift = next(row for row in record.sweep if row.amount == record.amount)
    words = f"{numbers.percent(drift.sparsity)} of the weights zero: {_answers(record, drift)}"
    if record.accuracy is not None and drift.accuracy is not None:
        before, after = (numbers.percent(one.value) for one in (record.accuracy, drift.accuracy))
        words += f", accuracy {after} instead of {before}"
    last = record.sweep[-1]
    if last.amount == record.amount:
        return words
    most = _answers(record, last)
    if record.output == "classes" and record.images == 1:
        most = "the same prediction" if last.agreement == 1 else "another prediction"
    return f"{words}; {numbers.percent(last.sparsity)} zero: {most}"


def _facts(record: PruneRecord) -> list[tuple[str, str]]:
    totals = record.totals
    drift = next(row for row in record.sweep if row.amount == record.amount)
    facts = [("cut", record.what_is_cut)]
    share = numbers.percent(totals.zeros / totals.params)
    n = f"{numbers.count(totals.zeros)} of {numbers.count(totals.numel)} weights"
    text = f"{n} in {counted(totals.layers, 'layer')} are zero"
    facts.append((f"at {record.amount:g}", f"{text}, {share} of all parameters; {_answers(record, drift)}"))
    if record.accuracy is not None and drift.accuracy is not None:
        before, after = (
            numbers.accuracy_words(one, record.images) for one in (record.accuracy, drift.accuracy)
        )
        facts += [("accuracy", after), ("unpruned", before)]
    if totals.zeros_before:
        facts.append(
            ("zero before", f"{numbers.count(totals.zeros_before)} of these weights were zero already")
        )
    if record.structured:
        facts.append(("left", "biases and batch norms: not pruned, so a pruned channel outputs a constant"))
    if record.kept is not None:
        text = f"{record.kept} outputs the scores: its channels are classes; --layer {record.kept} prunes it"
        facts.append(("kept", text))
    zeros = "zeroed channels" if record.structured else "unstructured zeros"
    removal = " until they are removed from the model" if record.structured else ""
    facts.append(("zeros alone", f"{zeros} save neither space nor time{removal}"))
    facts += hook_facts(record.hooks)
    if record.file is not None:
        facts.append(("weights", f"{record.file} ({numbers.memory(record.file_bytes or 0)})"))
    return facts


def _answers(record: PruneRecord, drift: Drift) -> str:
    if record.output != "classes":
        return f"{numbers.percent(drift.agreement)} of the predictions the same"
    n_same = round(drift.agreement * record.images)
    if record.images != 1:
        return f"same prediction for {n_same} of {record.images} images"
    before, after = record.before[0].top[0], record.after[0].top[0]
    names = [guess.label or f"class {guess.index}" for guess in (before, after)]
    scores = [numbers.percent(guess.score) for guess in (before, after)]
    change = f"stays {names[0]}" if names[0] == names[1] else f"changes from {names[0]} to {names[1]}"
    return f"the prediction {change} ({scores[0]} before, {scores[1]} after)"
