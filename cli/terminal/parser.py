"""The parser of arguments: an error is one sentence, with a suggestion."""

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from cli.terminal.exits import Usage
from shared.domain.suggestions import nearest


class Parser(argparse.ArgumentParser):
    """Raises Usage for an invalid argument, so that all errors end in one place. Each subparser checks for unknown
    flags itself, because it has the known ones for the suggestion."""

    def error(self, message: str) -> NoReturn:
        raise Usage(f"{message}; see `{self.prog} --help`")

    # argparse's own types are narrower than the arguments it passes.
    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        parsed, left = super().parse_known_args(args, namespace)
        if left:
            flags = [word for word in left if word.startswith("-") and word != "-"]
            self.error("; ".join(map(self._no_flag, flags)) if flags else f"unexpected argument {left[0]!r}")
        return parsed, left

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(each) for each in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"`{self.prog}` has no command {value!r}{meant(str(value), known, before=f'{self.prog} ')}")
        problem = f"expected one of {', '.join(known)}, got {value!r}"
        raise argparse.ArgumentError(action, problem + meant(str(value), known))

    def _no_flag(self, word: str) -> str:
        name = word.partition("=")[0]
        known = [flag for action in self._actions for flag in action.option_strings]
        return f"there is no flag {name}{meant(name, known)}"


def meant(name: str, known: Iterable[str], *, before: str = "") -> str:
    """Return ` (did you mean ...?)`, with `before` in front of the name, if a known name is close. Else return ""."""
    close = nearest(name, known)
    return "" if close is None else f" (did you mean `{before}{close}`?)"
