"""The columns of `train`: its layers at the first and at the last step."""

from statistics import fmean

from modelscope_cli.records.naming import counted, is_rectifier, label_of
from modelscope_cli.records.train import Training, TrainRecord
from modelscope_cli.records.watch import SOUND, WatchedLayer
from modelscope_cli.report import numbers
from modelscope_cli.report.sheet import Column, Sheet, figure, percentage
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
    percentage(
        "dead", "dead", lambda r: _end(r, "dead_fraction", -1) if is_rectifier(r.type) else None, rank=0
    ),
    figure("grad_norm_first", "|g| first", lambda r: _end(r, "grad_norm", 0), rank=5),
    figure("grad_norm_last", "|g| last", lambda r: _end(r, "grad_norm", -1), rank=2),
)


def train_sheet(record: TrainRecord) -> Sheet:
    """Return the layers in execution order."""
    bad = {finding.layer for finding in record.findings}
    training = record.training
    stops = [("stopped", f"step {event.step}: {event.message}") for event in training.events]
    verdict = story(training.findings, training.verdict, training.reason)
    overfits = overfitting(training)
    if overfits and training.findings:
        verdict.append(("overfitting", overfits))
    elif overfits:
        sentence = answer(record)
        verdict = [("verdict", sentence[0].lower() + sentence[1:])]
    return Sheet(
        title=_title(record),
        columns=LAYER_COLUMNS,
        rows=training.layers,
        facts=(*course_facts(training), *stops, *verdict),
        answer=tuple(label for label, _ in verdict),
        is_by_layer=True,
        is_bad=lambda row: label_of(row) in bad,
    )


def _title(record: TrainRecord) -> str:
    data = record.data
    n = numbers.count(data.training_pictures)
    return (
        f"{record.run.model.described} trained on {n} images of "
        f"{data.source}, {len(data.classes)} classes, {data.size}x{data.size}, {record.run.device}"
    )


def answer(record: TrainRecord) -> str:
    """Return the verdict on the training."""
    training = record.training
    sentence = training_answer(training.findings, training.verdict, training.reason)
    if not (overfits := overfitting(training)):
        return sentence
    if training.findings:
        return f"{sentence}; overfitting {overfits}"
    rest = training.reason if training.verdict == SOUND else sentence[0].lower() + sentence[1:]
    return f"Overfitting {overfits}" + f"; {rest}" * bool(rest)


_RISE, _LEAST_RISE = 1.1, 0.05  # of the loss in validation: times its lowest, and more than it
_BELOW = 0.5  # times the loss in validation, that in training


def overfitting(training: Training) -> str:
    """Say since which step the loss rises in validation and falls in training; empty if not for a third of them."""
    held = [(one.loss, one.step) for one in training.held_out if one.loss is not None]
    (lowest, step), end = min(held, default=(0.0, 0)), training.steps
    late = [loss for loss, at in held if 3 * at > 2 * end]
    losses = [loss for loss in training.losses if loss is not None]
    is_long = 3 * step <= 2 * end and len(late) > 1 and min(late) > max(_RISE * lowest, lowest + _LEAST_RISE)
    if not is_long or not losses:
        return ""
    trained = fmean(losses[-max(len(losses) // 10, 1) :])
    if trained > _BELOW * late[-1]:
        return ""
    now = f"and is {numbers.loss(late[-1])} now, {numbers.loss(trained)} in training"
    return f"since step {step}: the validation loss was lowest then, {numbers.loss(lowest)}, {now}"


def course_facts(training: Training) -> list[tuple[str, str]]:
    """Return how a training was done, its loss and its accuracies: of which steps and which images."""
    facts = [("trained", settings_of(training))]
    if training.losses:
        first, end = (numbers.loss(loss) for loss in (training.losses[0], training.losses[-1]))
        facts.append(("loss", f"{first} at the first step, {end} at the last"))
    if training.training_accuracy is not None:
        accuracy = numbers.percent(training.training_accuracy)
        facts.append(("training", f"accuracy {accuracy} over the last third of the recorded steps"))
    if training.held_out_labels:
        last, counts = training.held_out[-1], [n for _, n in training.held_out_labels]
        each = " to ".join(map(str, sorted({min(counts), max(counts)})))
        accuracy, loss = numbers.percent(last.accuracy), numbers.loss(last.loss)
        images = f"{counted(sum(counts), 'image')}, {each} of each class"
        guessing = f"chance {numbers.percent(training.guessing)}"
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
