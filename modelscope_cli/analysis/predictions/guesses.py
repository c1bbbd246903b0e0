"""The best guesses for images by name, as every command that changes a model or an image lists them."""

from collections.abc import Sequence

from modelscope_cli.analysis.outputs.answer import Answer
from modelscope_cli.analysis.outputs.said import Scoring
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.records.predict import Prediction
from modelscope_cli.records.run import Notice

_SOFTMAX = Scoring()


def predictions_of(
    answer: Answer,
    n: int,
    categories: Sequence[str] | None,
    batch: Batch,
    first: int,
    scoring: Scoring = _SOFTMAX,
) -> tuple[Prediction, ...]:
    """Return the `n` best guesses for every image of a batch, head by head; empty for what is not a prediction.

    Args:
        first: number of the batch's first image, its name where it comes from no file.
    """
    names = batch.names or tuple(str(first + number) for number in range(len(answer)))
    of_heads = [(path, part.guesses(n, categories, scoring)) for path, part in answer.parts]
    return tuple(
        Prediction(name, guesses[number], path if len(answer.parts) > 1 else None)
        for number, name in enumerate(names)
        for path, guesses in of_heads
        if guesses is not None
    )


def undecided(predictions: Sequence[Prediction]) -> tuple[Notice, ...]:
    """Warn of a model whose best classes have the same logit for every image, as a head of zeros makes it."""
    if not predictions or any(_has_favourite(prediction) for prediction in predictions):
        return ()
    message = (
        "the model gives its best classes the same logit, so its prediction means nothing; is it trained?"
    )
    return (Notice("undecided", message),)


def _has_favourite(prediction: Prediction) -> bool:
    # Of pixels and boxes one class alone is quite an answer.
    is_row = all(guess.share is None and guess.box is None for guess in prediction.top)
    return not is_row or len({guess.logit for guess in prediction.top}) > 1
