"""`orb completion`: print a script with which a shell completes commands, options and file names."""

import argparse
from pathlib import Path

from cli.terminal.exits import Exit

SHELLS = ("bash", "zsh", "fish")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)
    parser.epilog = (
        "bash: source <(orb completion bash); zsh: orb completion zsh > a folder of $fpath, as _orb; "
        "fish: orb completion fish > ~/.config/fish/completions/orb.fish"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the completion script for the chosen shell."""
    import shtab

    from cli.main import COMMANDS, parser_of

    parser = parser_of(tuple(COMMANDS))
    _complete_paths(parser, shtab.FILE, shtab.DIRECTORY)
    _complete_kinds(parser)
    print(shtab.complete(parser, shell=arguments.shell))
    return Exit.OK


def _complete_kinds(parser: argparse.ArgumentParser) -> None:
    """Change `parser` so that KIND arguments are completed with the kinds of resources."""
    from cli.ctl.resources import RESOURCES

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _complete_kinds(below)
        elif action.metavar == "KIND":
            action.choices = [resource.name for resource in RESOURCES]


def _complete_paths(parser: argparse.ArgumentParser, file: object, folder: object) -> None:
    """Change `parser` so that paths are completed: folders for DIR, files for FILE and for arguments of type Path.

    `file` and `folder` are shtab's markers for the completion of files and folders.
    """
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _complete_paths(below, file, folder)
        elif action.metavar == "DIR":
            action.complete = folder  # type: ignore[attr-defined]  # where shtab looks for it
        elif action.metavar == "FILE" or action.type is Path:
            action.complete = file  # type: ignore[attr-defined]  # as above
