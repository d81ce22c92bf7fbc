"""The real Terraform, where there is one: an estate in a folder, with the provider of this clone."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cli.dev.terraform import install, overrides

TERRAFORM: Final = shutil.which("terraform")


@dataclass(slots=True)
class Estate:
    """A folder with a configuration and a state. `environ` reaches Terraform and the provider."""

    folder: Path
    environ: Mapping[str, str]

    def __post_init__(self) -> None:
        (self.folder / "terraform.rc").write_text(overrides(install()))

    def configure(self, text: str, places: Mapping[str, str]) -> None:
        """Write the configuration `main.tf`, with other addresses."""
        (self.folder / "main.tf").write_text(_replaced(text, places))

    def start(self, *words: str, **more: str) -> "subprocess.Popen[str]":
        """Start a command of Terraform; its output can be read while it runs."""
        assert TERRAFORM is not None
        return self._started([TERRAFORM, *words], more)

    def shell(self, command: str, places: Mapping[str, str]) -> str:
        """Run a command line, with other addresses; return its output, whatever its exit code."""
        return self._started(["bash", "-c", _replaced(command, places)], {}).communicate(timeout=180)[0]

    def _started(self, words: Sequence[str], more: Mapping[str, str]) -> "subprocess.Popen[str]":
        ours = {"TF_CLI_CONFIG_FILE": str(self.folder / "terraform.rc"), "CHECKPOINT_DISABLE": "1", "HOME": "/nowhere"}
        plain = {f"TF_CLI_ARGS_{verb}": "-no-color" for verb in ("apply", "destroy", "import", "plan", "validate")}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ORB_", "TF_"))}
        return subprocess.Popen(
            words,
            cwd=self.folder,
            env=kept | ours | plain | dict(self.environ) | dict(more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str, code: int = 0, **more: str) -> str:
        """Run a command of Terraform; return its output. It must end with `code`."""
        running = self.start(*words, **more)
        said, _ = running.communicate(timeout=180)
        assert running.returncode == code, said
        return said


def _replaced(text: str, places: Mapping[str, str]) -> str:
    for old, new in places.items():
        text = text.replace(old, new)
    return text
