"""Sets up the .venv of a clone from a lock file. The launcher runs it with Python 3.11 or later, without any package.

Every package, including the installer, is checked against the hashes in the lock file. If several commands start in a
new clone at the same time, one does the set-up, and the others wait for a kernel lock. A killed process releases the
lock. A stamp file is written last, so the next command repeats an interrupted set-up. A .venv that does not work is
created anew.
"""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

ENVIRONMENT: Final = 4
"""Exit code: something outside this program is missing. It equals `Exit.ENVIRONMENT` of cli.terminal.exits. This file
must not import that module."""

LOCKS: Final = {"runtime": "requirements.lock", "dev": "requirements-dev.lock"}
LAUNCHER_LOCK: Final = "requirements-launcher.lock"
STAMP: Final = "orb-stamp"
LOG: Final = "orb-setup.log"
OWN: Final = ("orb.py", "cli", "api", "workers", "shared", "alembic")
"""The product's own modules and packages. The set-up compiles them to bytecode, like the installed packages."""


class CannotSetUp(Exception):
    """Raised if the .venv of a clone cannot be set up. The message says what is missing and what to do."""


class Setup:
    """Sets up the .venv of the clone at `root`. The caller must call `run` inside `with held()`.

    - `wanted`: the set of packages, a key of LOCKS: `runtime` or `dev`.
    - `locks`: an identifier of the present lock files. The stamp file stores it.
    """

    def __init__(self, root: Path, wanted: str, locks: str) -> None:
        self._root = root
        self._wanted = wanted
        self._locks = locks
        self._venv = root / ".venv"
        self._python = self._venv / "bin" / "python"
        self._log: list[str] = []
        self._lock: tuple[int, ...] = ()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock on the clone's set-up until the `with` block ends. Wait while another process holds it.

        Raise CannotSetUp if the clone is not writable.
        """
        try:
            file = os.open(self._root / ".venv.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise CannotSetUp(
                f"cannot write in {self._root} ({error.strerror}); make it writable for its set-up."
            ) from None
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"orb: waiting for another set-up of {self._venv} to end ...", file=sys.stderr, flush=True)
                fcntl.flock(file, fcntl.LOCK_EX)
            self._lock = (file,)
            yield
        finally:
            self._lock = ()
            os.close(file)

    def run(self) -> None:
        """Install the packages of the lock file into .venv. Do nothing if it has them already.

        Raise CannotSetUp if that fails.
        """
        held = self._stamped()
        if held in (self._wanted, "dev"):
            return
        wanted = self._developer_before() or self._wanted
        print(f"orb: setting up {self._venv} from {LOCKS[wanted]} (once) ...", file=sys.stderr, flush=True)
        (self._venv / STAMP).unlink(missing_ok=True)
        self._make_venv()
        self._install(self._root / LOCKS[wanted])
        self._build_native()
        self._compile()
        staged = self._venv / f"{STAMP}.new"
        staged.write_text(f"{wanted} {self._locks}\n")
        staged.replace(self._venv / STAMP)

    def _stamped(self) -> str | None:
        """Return the set of packages that .venv has: "runtime" or "dev".

        Return None if .venv was installed from other lock files, is incomplete, or does not work.
        """
        match self._stamp_words():
            case [held, *locks] if " ".join(locks) == self._locks and self._answers():
                return held
            case _:
                return None

    def _developer_before(self) -> str | None:
        """Return "dev" if the stamp file says that .venv has the packages for development. Otherwise None.

        The set-up then installs these packages, even if `wanted` is "runtime".
        """
        match self._stamp_words():
            case ["dev", *_]:
                return "dev"
            case _:
                return None

    def _stamp_words(self) -> list[str]:
        try:
            return (self._venv / STAMP).read_text().split()
        except FileNotFoundError:
            return []

    def _answers(self, *modules: str) -> bool:
        """Return True if .venv has a working Python, 3.11 or later, that can import `modules`."""
        check = f"import sys{''.join(f', {name}' for name in modules)}; sys.exit(sys.version_info < (3, 11))"
        return self._try([self._python, "-I", "-c", check])

    def _make_venv(self) -> None:
        if self._answers("pip") or (self._answers() and self._try([self._python, "-I", "-m", "ensurepip"])):
            return
        if find_spec("ensurepip") is None or find_spec("venv") is None:
            major, minor = sys.version_info[:2]
            raise CannotSetUp(
                f"{sys.executable} cannot make virtual environments; install that part of Python "
                f"(Debian and Ubuntu: apt install python{major}.{minor}-venv) and run the same command again."
            )
        if not self._try([sys.executable, "-I", "-m", "venv", "--clear", self._venv]):
            raise self._failed("could not make a virtual environment")

    def _install(self, lock: Path) -> None:
        pip: list[str | Path] = [self._python, "-I", "-m", "pip", "--disable-pip-version-check", "--no-input"]
        plain = {"PIP_USER": "0"}
        if not self._try([*pip, "install", "--require-hashes", "-r", self._root / LAUNCHER_LOCK], plain):
            raise self._failed("could not install the installer (uv)")
        if self._try([self._python, "-I", "-m", "uv", "pip", "sync", "--python", self._python, lock]):
            return
        # A package index may be configured for pip only; pip installs the same packages.
        if not self._try([*pip, "install", "--retries", "0", "--no-deps", "--require-hashes", "-r", lock], plain):
            raise self._failed(f"could not install the packages of {lock.name}")

    def _build_native(self) -> None:
        """Build the compiled tag scanner. Ignore a failure, such as a missing C compiler.

        The Python scanner is then used instead, and `orb version` prints the reason.
        """
        own = {"PYTHONPATH": os.fspath(self._root), "PYTHONSAFEPATH": "1"}
        self._try([self._python, "-m", "cli.dev.native"], own)

    def _compile(self) -> None:
        """Compile all modules to bytecode. Skip a module that cannot be compiled."""
        own = [path for path in (self._root / name for name in OWN) if path.exists()]
        self._try([self._python, "-I", "-m", "compileall", "-q", "-j", "0", self._venv / "lib", *own])

    def _try(self, command: Sequence[str | Path], settings: Mapping[str, str] | None = None) -> bool:
        """Run `command` until it ends, and append its output to the log. Return True if its exit code is 0.

        `settings` are additional environment variables.
        """
        self._log.append("$ " + " ".join(map(str, command)))
        try:
            done = subprocess.run(
                command,
                cwd=self._root,
                env={**os.environ, **(settings or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                check=False,
                pass_fds=self._lock,  # an installer that outlives us still keeps others out
            )
        except OSError as error:
            self._log.append(str(error))
            return False
        self._log.append(done.stdout)
        return done.returncode == 0

    def _failed(self, what: str) -> CannotSetUp:
        """Return the error to raise after a command of the set-up has failed. `what` says what could not be done.

        Write the output of all commands of the set-up to a file, which the error names.
        """
        log = self._root / f".venv.{LOG}"
        try:
            log.write_text("\n".join(self._log))
            where = f"the full output is in {log}"
        except OSError as error:
            where = f"its output could not be kept ({error.strerror})"
        if "No space left" in self._log[-1]:
            return CannotSetUp(f"{what}: the disk is full. Make room and run the same command again; {where}.")
        return CannotSetUp(
            f"{what}. The first use needs the network (or a package index that pip and uv are configured for); "
            f"connect and run the same command again; {where}."
        )


def main(root: str, wanted: str, locks: str) -> int:
    setup = Setup(Path(root), wanted, locks)
    try:
        with setup.held():
            setup.run()
    except CannotSetUp as problem:
        print(f"orb: {problem}", file=sys.stderr)
        return ENVIRONMENT
    except OSError as error:
        print(
            f"orb: could not set up {root}/.venv ({error}); correct that and run the same command again.",
            file=sys.stderr,
        )
        return ENVIRONMENT
    except KeyboardInterrupt:
        print("orb: set-up interrupted; run the same command again to resume it.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
