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


def _dead(row: WatchedLayer) -> float | None:
    return _end(row, "dead_fraction", -1) if is_rectifier(row.type) else None


LAYER_COLUMNS = (
    Column("name", "layer", label_of, is_number=False, rank=0),
    Column("type", "type", lambda r: r.type, is_number=False, rank=0),
    figure("mean_first", "mean first", lambda r: _end(r, "mean", 0), rank=4),
    figure("mean_last", "mean last", lambda r: _end(r, "mean", -1), rank=3),
    figure("std_first", "std first", lambda r: _end(r, "std", 0), rank=2),
    figure("std_last", "std last", lambda r: _end(r, "std", -1), rank=1),
    percentage("zero", "zero", lambda r: _end(r, "zero_fraction", -1), rank=0),
    percentage("near_zero", "near zero", lambda r: _end(r, "near_zero_fraction", -1), rank=6),
    percentage("dead", "dead", _dead, rank=0),
    figure("grad_norm_first", "|g| first", lambda r: _end(r, "grad_norm", 0), rank=5),
    figure("grad_norm_last", "|g| last", lambda r: _end(r, "grad_norm", -1), rank=2),
)


def most_dead(training: Training) -> float | None:
    """Return the largest fraction of dead channels of any ReLU; None if there are none."""
    return max((share for row in training.layers if (share := _dead(row)) is not None), default=None)


def _verdict(training: Training) -> Value:
    causes = (finding.code for finding in training.findings if finding.follows is None)
    return " ".join(dict.fromkeys(causes)) or (LEARNING if training.verdict == SOUND else training.verdict)


VARIANT_COLUMNS = (
    Column("variant", "variant", lambda r: r.name, is_number=False, rank=0),
    Column("steps", "steps", lambda r: r.steps, rank=2),
    figure("loss", "loss", lambda training: training.losses[-1] if training.losses else None, rank=0),
    figure("held_out_loss", "held-out loss", lambda r: r.held_out[-1].loss if r.held_out else None, rank=1),
    percentage("accuracy", "accuracy", lambda r: r.held_out[-1].accuracy if r.held_out else None, rank=0),
    percentage("training_accuracy", "training accuracy", lambda r: r.training_accuracy, rank=1),
    percentage("dead", "dead", most_dead, rank=0),
    Column("findings", "findings", _verdict, is_number=False, rank=0),
)


def train_columns(is_study: bool) -> tuple[Column, ...]:
    """Return all columns of a study, or of a single training."""
    return VARIANT_COLUMNS if is_study else LAYER_COLUMNS


def train_sheet(record: TrainRecord) -> Sheet:
    """Return the variants of a study, or the layers of a single training in execution order."""
    rows: tuple[Training, ...] | tuple[WatchedLayer, ...]
    rows = record.trainings if record.is_study else record.trainings[0].layers
    bad = {finding.layer for finding in record.findings}
    return Sheet(
        title=answer(record) if record.is_study else _title(record),
        columns=train_columns(record.is_study),
        rows=rows,
        facts=tuple(_facts(record)),
        definitions=("training accuracy", "accuracy", "dead"),
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
        return training_answer(first.findings, first.verdict, first.reason)
    wrong = [f"{one.name} ({_verdict(one)})" for one in record.trainings if one.findings]
    said = f"{record.comparison}{f'; something is wrong with {some(wrong, 4)}' if wrong else ''}"
    return f"{said[:1].upper()}{said[1:]}"


def course_facts(training: Training) -> list[tuple[str, str]]:
    """Return how a training was done, its loss and its accuracies: of which steps and which images."""
    facts = [("trained", settings_of(training))]
    if training.losses:
        first, end = (numbers.loss(loss) for loss in (training.losses[0], training.losses[-1]))
        facts.append(("loss", f"{first} at the first step, {end} at the last"))
    if training.training_accuracy is not None:
        accuracy = numbers.percent(training.training_accuracy)
        facts.append(("training", f"accuracy {accuracy} over the last third of the steps"))
    if training.held_out_labels:
        last, counts = training.held_out[-1], [n for _, n in training.held_out_labels]
        each = " to ".join(map(str, sorted({min(counts), max(counts)})))
        accuracy, loss = numbers.percent(last.accuracy), numbers.loss(last.loss)
        images = f"{counted(sum(counts), 'image')}, {each} of each class"
        guessing = f"guessing: {numbers.percent(training.guessing)}"
        facts.append(
            ("validation", f"accuracy {accuracy}, loss {loss} after the last step; {images}; {guessing}")
        )
    return facts


def settings_of(training: Training) -> str:
    """Return the training settings in one line."""
    settings = training.settings
    rate = f"lr {settings['lr']:g} {settings['schedule']}"
    batches = f"{counted(training.steps, 'step')} of {counted(settings['batch'], 'image')}"
    return f"{batches}, {settings['optimizer']}, {rate}"


def _facts(record: TrainRecord) -> list[tuple[str, str]]:
    first = record.trainings[0]
    facts = [("model", _title(record)), *study_facts(first)] if record.is_study else course_facts(first)
    for training in record.trainings:
        at = _at(training.name)
        facts += [("stopped", f"{at}step {event.step}: {event.message}") for event in training.events]
    told = [one for one in record.trainings if one.findings or one.verdict == UNKNOWN or not one.name]
    for training in told:
        lines = story(training.findings, training.verdict, training.reason, _at(training.name))
        # What to try is the same for all variants with the same cause
        facts += [line for line in lines if not (line in facts and line[1].startswith("try: "))]
    return facts if told else [*facts, ("verdict", "nothing wrong found in any variant")]


def study_facts(first: Training) -> list[tuple[str, str]]:
    """Return what the variants of a study have in common, and what its columns mean."""
    steps = f"{counted(first.settings['steps'], 'step')} of the same images in the same order, same seed"
    return [
        ("all", f"{steps}: with another seed, close variants may change places"),
        ("training accuracy", "over the last third of the steps"),
        ("accuracy", f"on the {counted(first.n_held_out, 'validation image')} after the last step"),
        ("dead", "channels of a ReLU that are zero for every image of the last batch"),
    ]


def _at(variant: str) -> str:
    return f"{variant}: " if variant else ""
