"""The environment that the peers run in: made once from their pinned requirements, made anew when those change."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

PEERS: Final = Path(__file__).resolve().parents[1] / "benchmarks" / "peers"
REQUIREMENTS: Final = PEERS / "requirements.txt"


def peers_python(directory: Path) -> Path:
    """The interpreter of the environment below `directory`; installs from PyPI the first time.

    A stamp with the digest of the requirements is written last, so that an interrupted installation is not taken for a
    complete one. Raises CalledProcessError when the installation fails (its output has been shown).
    """
    python = directory / "bin" / "python"
    stamp = directory / "requirements.sha256"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"making the peers' environment in {directory} (once)", file=sys.stderr)
    shutil.rmtree(directory, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(REQUIREMENTS)]
    subprocess.run(install, check=True, stdout=sys.stderr)
    stamp.write_text(wanted)
    return python
