"""A progress listener that keeps what a function says on the way."""

from modelscope_cli.records.progress import Silent


class Told(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)
