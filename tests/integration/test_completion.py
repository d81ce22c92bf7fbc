"""The completion scripts are ones that shells read, and offer what there is."""

import shutil
import subprocess
from pathlib import Path

import pytest

from cli.dev.completion import SHELLS
from cli.main import COMMANDS, main
from cli.terminal.exits import Exit


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == Exit.OK
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_verb_is_offered(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    for word in (*COMMANDS, "retry-failed", "dead-letters", "--dry-run", "--max-pages"):
        assert word.lstrip("-") in text


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_can_read_their_script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    file = tmp_path / "script"
    file.write_text(script(shell, capsys))
    subprocess.run([found, "-n", str(file)], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["orb", "ct"], {"ctl"}),
        (["orb", "ctl", "retry"], {"retry-failed"}),
        (["orb", "ctl", "seeds", ""], {"add", "delete"}),
        (["orb", "ctl", "apply", "--dry"], {"--dry-run"}),
        (["orb", "ctl", "get", "-o", "j"], {"json"}),
        (["orb", "ctl", "get", ""], {"crawls", "workers", "dead-letters"}),
        (["orb", "ctl", "describe", "wor"], {"workers"}),
        (["orb", "ctl", "apply", "-f", "here-i"], {"here-i-am.yaml"}),
    ],
)
def test_bash_completes_words(
    words: list[str], offered: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    file = tmp_path / "script"
    file.write_text(script("bash", capsys))
    (tmp_path / "here-i-am.yaml").touch()
    asked = " ".join(f"'{word}'" for word in words)
    commands = (
        f'source ./script; COMP_WORDS=({asked}); COMP_CWORD={len(words) - 1}; COMP_LINE="{" ".join(words)}"; '
        f"COMP_POINT=${{#COMP_LINE}}; "
        f"$(complete -p orb | sed 's/.*-F \\([^ ]*\\).*/\\1/') orb '{words[-1]}' '{words[-2]}'; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run([bash, "-c", commands], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert offered <= {word.strip() for word in done.stdout.splitlines()}, done.stderr
