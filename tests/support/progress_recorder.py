"""A display of a run that records what the run reports."""

from cli.terminal.progress import Silent


class NoteRecorder(Silent):
    """Keeps the notes, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, line: str) -> None:
        self.notes.append(line)
