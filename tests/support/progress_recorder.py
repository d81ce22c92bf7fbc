"""A watch of a run that keeps what is told."""

from cli.terminal.progress import Silent


class Noting(Silent):
    """Keeps the notes, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, line: str) -> None:
        self.notes.append(line)
