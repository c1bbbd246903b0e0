"""Which class a word means: its label, in any case, or its index."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from modelscope_cli.errors import CannotRunError, nearest
from modelscope_cli.inputs.truth import Word
from modelscope_cli.records.naming import some


class ClassNames:
    """The classes of a model."""

    def __init__(self, labels: Sequence[str] | None, n_classes: int) -> None:
        self.labels = tuple(labels or ())
        self.n_classes = n_classes
        self._exact: dict[str, list[int]] = defaultdict(list)
        self._folded: dict[str, list[int]] = defaultdict(list)
        for index, label in enumerate(self.labels[:n_classes]):
            self._exact[label].append(index)
            self._folded[label.casefold()].append(index)

    def label(self, index: int) -> str | None:
        """Return the name of a class; None where nobody knows."""
        return self.labels[index] if index < len(self.labels) else None

    def labelled(self, word: str) -> list[int]:
        """Return the classes with this label; in another case where none is written so."""
        return self._exact.get(word) or self._folded.get(word.casefold()) or []

    def find(self, words: Iterable[Word], who: str) -> dict[Word, int]:
        """Return the index of every class that is named. `who`: names them, for a message.

        Raises:
            CannotRunError: a word is not a class of this model, or several have that label (exit 4).
        """
        found: dict[Word, int] = {}
        unknown: list[Word] = []
        for word in dict.fromkeys(words):
            indices = self.labelled(word) if isinstance(word, str) else [word]
            if not indices and str(word).isdecimal():
                indices = [int(word)]
            if len(indices) > 1:
                message = f"{who}: '{word}' is the label of the classes {', '.join(map(str, indices))}"
                raise CannotRunError(message, f"call them by their index: {indices[0]}")
            if indices and 0 <= indices[0] < self.n_classes:
                found[word] = indices[0]
            else:
                unknown.append(word)
        if unknown:
            raise self._unknown(unknown, who)
        return found

    def _unknown(self, words: Sequence[Word], who: str) -> CannotRunError:
        named = some([f"'{word}'" for word in words])
        near = nearest(str(words[0]), self.labels)
        verb = "is" if len(words) == 1 else "are"
        message = f"{who}: {named} {verb} not among the {self.n_classes} classes of the model"
        if not self.labels:
            message += ", which have no labels"
        return CannotRunError(
            message + (f": {near}" if near else ""),
            f"--labels FILE   gives the classes other names; or use an index of 0..{self.n_classes - 1}",
        )
