"""The columns of `train`: the layers of one training, or the variants of a study."""

from modelscope_cli.records.naming import counted, is_rectifier, label_of, some
from modelscope_cli.records.train import Training, TrainRecord
from modelscope_cli.records.watch import LEARNING, SOUND, UNKNOWN, WatchedLayer
from modelscope_cli.report import numbers
from modelscope_cli.report.sheet import Column, Sheet, Value, figure, percentage
from modelscope_cli.report.training_facts import story, training_answer


def _end(row: WatchedLayer, key: str, end: int) -> float | None:
    values = getattr(row.series, key)
    return values[end] if values else None


LAYER_COLUMNS = (
    Column("name", "layer", label_of, is_number=False, rank=0),
    Column("type", "type", lambda r: r.type, is_number=False, rank=0),
    figure("mean_first", "mean first", lambda r: _end(r, "mean", 0), rank=4),
    figure("mean_last", "mean last", lambda r: _end(r, "mean", -1), rank=3),
    figure("std_first", "std first", lambda r: _end(r, "std", 0), rank=2),
    figure("std_last", "std last", lambda r: _end(r, "std", -1), rank=1),
    percentage("zero", "zero", lambda r: _end(r, "zero_fraction", -1), rank=0),
    percentage("near_zero", "near zero", lambda r: _end(r, "near_zero_fraction", -1), rank=6),
    percentage("dead", "dead", lambda r: _end(r, "dead_fraction", -1), rank=0),
    figure("grad_norm_first", "|g| first", lambda r: _end(r, "grad_norm", 0), rank=5),
    figure("grad_norm_last", "|g| last", lambda r: _end(r, "grad_norm", -1), rank=2),
)


def first_layer(training: Training) -> WatchedLayer | None:
    return training.layers[0] if training.layers else None


def most_dead(training: Training, end: int = -1) -> float | None:
    """Return the largest fraction of dead channels of any ReLU; None if there are none."""
    shares = [_end(row, "dead_fraction", end) for row in training.layers if is_rectifier(row.type)]
    return max((share for share in shares if share is not None), default=None)


def _first(training: Training, key: str, end: int) -> float | None:
    row = first_layer(training)
    return _end(row, key, end) if row else None


def _accuracy(training: Training) -> float | None:
    return training.held_out[-1].accuracy if training.held_out else None


def _verdict(training: Training) -> Value:
    causes = (finding.code for finding in training.findings if finding.follows is None)
    return " ".join(dict.fromkeys(causes)) or (LEARNING if training.verdict == SOUND else training.verdict)


VARIANT_COLUMNS = (
    Column("variant", "variant", lambda r: r.name, is_number=False, rank=0),
    Column("steps", "steps", lambda r: r.steps, rank=2),
    figure("loss", "loss", lambda training: training.losses[-1] if training.losses else None, rank=0),
    figure("held_out_loss", "held-out loss", lambda r: r.held_out[-1].loss if r.held_out else None, rank=1),
    percentage("accuracy", "accuracy", _accuracy, rank=0),
    figure("std_first", "std first", lambda r: _first(r, "std", 0), rank=1),
    figure("std_last", "std last", lambda r: _first(r, "std", -1), rank=1),
    percentage("dead", "dead", most_dead, rank=0),
    Column("findings", "findings", _verdict, is_number=False, rank=0),
)


def train_columns(is_study: bool) -> tuple[Column, ...]:
    """Return all columns of a study, or of a single training."""
    return VARIANT_COLUMNS if is_study else LAYER_COLUMNS


def every_column() -> tuple[Column, ...]:
    return (*LAYER_COLUMNS, *VARIANT_COLUMNS)


def train_sheet(record: TrainRecord) -> Sheet:
    """Return the variants of a study, or the layers of a single training in execution order."""
    rows: tuple[Training, ...] | tuple[WatchedLayer, ...]
    rows = record.trainings if record.is_study else record.trainings[0].layers
    bad = {finding.layer for finding in record.findings}
    return Sheet(
        title=_title(record),
        columns=train_columns(record.is_study),
        rows=rows,
        facts=tuple(_facts(record)),
        definitions=("std", "dead"),
        is_by_layer=not record.is_study,
        is_bad=lambda row: bool(row.findings) if isinstance(row, Training) else label_of(row) in bad,
    )


def _title(record: TrainRecord) -> str:
    data = record.data
    n = numbers.count(data.training_pictures)
    return (
        f"{record.run.model.described} trained on {n} images of "
        f"{data.source}, {len(data.classes)} classes, {data.size}x{data.size}, {record.run.device}"
    )


def answer(record: TrainRecord) -> str:
    """Return the verdict on a training, or the best variant of a study and those that fail."""
    first = record.trainings[0]
    if not record.is_study:
        ends = [numbers.loss(loss) for loss in (first.losses[:1] + first.losses[-1:])]
        course = [f"loss {' to '.join(ends)}"] if ends else []
        course += [f"validation accuracy {numbers.percent(one.accuracy)}" for one in first.held_out[-1:]]
        return training_answer(first.findings, first.verdict, first.reason, ", ".join(course))
    words = []
    if any(_accuracy(one) is not None for one in record.trainings):
        best = max(record.trainings, key=lambda one: _accuracy(one) or 0.0)
        words.append(f"best is {best.name}, validation accuracy {numbers.percent(_accuracy(best))}")
    wrong = [f"{one.name} ({_verdict(one)})" for one in record.trainings if one.findings]
    words.append(f"something is wrong with {some(wrong, 4)}" if wrong else "no findings")
    return f"{len(record.trainings)} variants: {'; '.join(words)}"


def course_facts(training: Training) -> list[tuple[str, str]]:
    ends = [numbers.loss(loss) for loss in (*training.losses[:1], *training.losses[-1:])]
    course = [("loss", f"{ends[0]} at first, {ends[1]} at the end")] if ends else []
    return [("trained", settings_of(training)), *course]


def settings_of(training: Training) -> str:
    """Return the training settings in one line."""
    settings = training.settings
    rate = f"lr {settings['lr']:g} {settings['schedule']}"
    batches = f"{counted(training.steps, 'step')} of {counted(settings['batch'], 'image')}"
    return f"{batches}, {settings['optimizer']}, {rate}"


def _facts(record: TrainRecord) -> list[tuple[str, str]]:
    first = record.trainings[0]
    facts = study_facts(first) if record.is_study else []
    if not record.is_study:
        facts += course_facts(first)
        if first.held_out:
            last = first.held_out[-1]
            accuracy, loss = numbers.percent(last.accuracy), numbers.loss(last.loss)
            facts.append(
                ("validation", f"accuracy {accuracy}, loss {loss}, {record.data.held_out_pictures} images")
            )
    for training in record.trainings:
        at = _at(training.name)
        facts += [("stopped", f"{at}step {event.step}: {event.message}") for event in training.events]
    told = [one for one in record.trainings if one.findings or one.verdict == UNKNOWN]
    for training in told or record.trainings[:1]:
        at = _at(training.name) if told else ""
        facts += story(training.findings, training.verdict, training.reason, at)
    return facts


def study_facts(first: Training) -> list[tuple[str, str]]:
    """Return what the variants of a study have in common, and what its columns mean."""
    facts = [("all", f"{first.settings['steps']} steps of the same images in the same order, same seed")]
    row = first_layer(first)
    if row:
        facts.append(("std", f"the standard deviation of the output of the first layer, {label_of(row)}"))
    return [*facts, ("dead", "channels of a ReLU that are zero for every image of the last batch")]


def _at(variant: str) -> str:
    return f"{variant}: " if variant else ""
