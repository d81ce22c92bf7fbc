"""How arguments are read: what is wrong with them is one sentence, with what was perhaps meant."""

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from cli.exits import Usage
from shared.domain.meant import nearest


class Parser(argparse.ArgumentParser):
    """Reports a wrong argument as Usage, so that there is one place where errors end. Each parser below it judges what
    is left over by itself: it knows which flags it has."""

    def error(self, message: str) -> NoReturn:
        raise Usage(f"{message}; see `{self.prog} --help`")

    # The framework's own types say less than what it passes on.
    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        parsed, left = super().parse_known_args(args, namespace)
        if left:
            flags = [word for word in left if word.startswith("-") and word != "-"]
            self.error("; ".join(map(self._no_flag, flags)) if flags else f"nothing takes {left[0]!r} here")
        return parsed, left

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(each) for each in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"`{self.prog}` has no verb {value!r}{meant(str(value), known, before=f'{self.prog} ')}")
        said = f"expected one of {', '.join(known)}, got {value!r}"
        raise argparse.ArgumentError(action, said + meant(str(value), known))

    def _no_flag(self, word: str) -> str:
        name = word.partition("=")[0]
        known = [flag for action in self._actions for flag in action.option_strings]
        return f"there is no flag {name}{meant(name, known)}"


def meant(name: str, known: Iterable[str], *, before: str = "") -> str:
    """` (did you mean ...?)` where something known is close, with what stands `before` it; else nothing."""
    found = nearest(name, known)
    return "" if found is None else f" (did you mean `{before}{found}`?)"
