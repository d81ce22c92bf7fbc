"""`orb terraform install`: install the Terraform provider into its own virtual environment.

Only a clone of the project's git repository contains the provider.

The provider's framework requires another version of protobuf than this project, so it needs a separate environment.
Every package is checked against the hashes in the provider's lock file. A stamp file is written last, so the next use
repeats an interrupted installation.
"""

import argparse
import fcntl
import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cli.terminal.exits import Environment, Exit

_ROOT: Final = Path(__file__).resolve().parents[2]
PROVIDER: Final = _ROOT / "deploy" / "terraform" / "provider"
SOURCE: Final = "orbweaver/orb"
"""The provider's address in a configuration of Terraform, without the registry."""

EXECUTABLE: Final = "terraform-provider-orb"
"""The file name that Terraform expects of the provider's executable."""

_LOCK: Final = "requirements.lock"
_STAMP: Final = "orb-stamp"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True)
    summary = "set up the provider and print the block for ~/.terraformrc"
    verbs.add_parser("install", help=summary, description=summary, allow_abbrev=False)


def run(arguments: argparse.Namespace) -> int:
    """Install the provider, and print the configuration with which Terraform finds it."""
    folder = install()
    print("# in ~/.terraformrc, or in the file that TF_CLI_CONFIG_FILE names:")
    print(overrides(folder))
    return Exit.OK


def overrides(folder: Path) -> str:
    """Return text for Terraform's CLI configuration, which makes Terraform use the provider in `folder`."""
    path = str(folder).replace("\\", "\\\\").replace('"', '\\"')
    return f'provider_installation {{\n  dev_overrides {{ "{SOURCE}" = "{path}" }}\n  direct {{}}\n}}'


def install(provider: Path = PROVIDER) -> Path:
    """Set up the provider's virtual environment if it is missing or outdated. Return the folder of its executable.

    Raise Environment if the provider's files are missing: only a clone of the project's git repository has them. Raise
    Environment also if the set-up fails.
    """
    if not (provider / _LOCK).is_file():
        raise Environment("`orb terraform` works in a clone of the repository only.")
    venv = provider / ".venv"
    try:
        with _alone(provider):
            _set_up(provider, venv)
    except OSError as error:
        raise Environment(f"cannot set up {venv} ({error.strerror}); correct that and run the command again.") from None
    return venv / "bin"


@contextmanager
def _alone(provider: Path) -> Iterator[None]:
    """Hold the lock on the provider's environment until the `with` block ends. Wait while another process holds it."""
    with (provider / ".venv.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _set_up(provider: Path, venv: Path) -> None:
    lock, python, stamp = provider / _LOCK, venv / "bin" / "python", venv / _STAMP
    # The executable has absolute paths, so a clone that was moved is set up again.
    wanted = hashlib.sha256(lock.read_bytes() + os.fsencode(venv)).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted and python.exists():
        return
    print(f"orb: setting up {venv} from {lock.name} (once) ...", file=sys.stderr, flush=True)
    stamp.unlink(missing_ok=True)
    _ran("make an environment", sys.executable, "-I", "-m", "venv", "--clear", "--without-pip", venv)
    uv = (sys.executable, "-I", "-m", "uv", "pip", "sync", "--quiet", "--require-hashes", "--compile-bytecode")
    _ran("install the provider's packages", *uv, "--python", python, lock)
    _ran("compile the provider", python, "-I", "-m", "compileall", "-q", provider / "orb_provider")
    executable = venv / "bin" / EXECUTABLE
    started = f"{shlex.quote(str(python))} -sE {shlex.quote(str(provider / 'main.py'))}"
    executable.write_text(f'#!/bin/sh\nexec {started} "$@"\n')
    executable.chmod(0o755)
    stamp.write_text(wanted)


def _ran(what: str, *command: str | Path) -> None:
    """Run a command of the set-up until it ends. If it fails, raise Environment with the last line of its output.

    `what` says what the command does, for the message.
    """
    plain = {"PIP_USER": "0"}
    done = subprocess.run(
        command,
        env={**os.environ, **plain},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        said = done.stdout.strip().splitlines() or ["no output"]
        raise Environment(
            f"could not {what} ({said[-1]}); the first use needs the network or a package index that uv is "
            "configured for. Run the command again."
        )
