"""The real Terraform, where there is one: an estate in a folder, with the provider of this clone."""

import os
import shutil
import subprocess
from collections.abc import Mapping
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

    def start(self, *words: str, **more: str) -> "subprocess.Popen[str]":
        """Start a command of Terraform; its output can be read while it runs."""
        assert TERRAFORM is not None
        ours = {"TF_CLI_CONFIG_FILE": str(self.folder / "terraform.rc"), "CHECKPOINT_DISABLE": "1", "HOME": "/nowhere"}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ORB_", "TF_"))}
        return subprocess.Popen(
            [TERRAFORM, words[0], *(() if words[0] == "state" else ("-no-color",)), *words[1:]],
            cwd=self.folder,
            env=kept | ours | dict(self.environ) | more,
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
