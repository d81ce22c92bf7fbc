"""Finds and loads the compiled tag scanner, and decides whether to use it.

`cli.dev.native` builds the scanner from `tags.c`. The file name contains a checksum of the source and the version of
Python. So a file for another source or another Python is never loaded, and `tags.py` scans instead. The launcher
imports this module, so it must not import a third-party package.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import Final, cast

from shared.domain.errors import Unusable
from workers.parse.start_tags import Scan, ScanTags

VARIABLE: Final = "ORB_TAG_SCANNER"
"""The environment variable that chooses the scanner.

Its values: `auto` (compiled if it is built), `python`, or `compiled` (the start fails if it cannot be loaded).
"""

FLAGS: Final = ("-std=gnu11", "-O2", "-fPIC", "-shared")
SOURCE: Final = Path(__file__).with_name("tags.c")
BUILT: Final = SOURCE.parents[2] / ".venv" / "orb-compiled"
"""The folder of the compiled scanner in a clone of the repository, where the launcher builds it.

In a wheel, the compiled scanner is beside its source."""
REASON: Final = "reason.txt"
"""The file in `BUILT` with the reason why the build failed."""

_RawScan = Callable[[bytes, bool, bool, int], tuple[list[bytes], list[bytes], list[int], bytes, bool]]


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice between the two tag scanners.

    `scan`: the compiled scanner, None if `tags.py` must be used. `reason`: why the compiled one is not used.
    """

    scan: ScanTags | None
    reason: str = ""

    @property
    def name(self) -> str:
        """The name of the chosen scanner: `compiled` or `python`."""
        return "python" if self.scan is None else "compiled"

    def __str__(self) -> str:
        return f"python ({self.reason})" if self.reason else self.name


def chosen(environment: Mapping[str, str]) -> Choice:
    """Choose the tag scanner by the variable `VARIABLE` of `environment`: `auto` (the default), `python` or `compiled`.

    Raise Unusable for another value, or if the value is `compiled` and the compiled scanner cannot be loaded.
    """
    match environment.get(VARIABLE) or "auto":
        case "python":
            return Choice(None, f"{VARIABLE}=python")
        case "auto":
            return _built()
        case "compiled":
            choice = _built()
            if choice.scan is None:
                raise Unusable(f"{VARIABLE}=compiled, but there is no compiled tag scanner: {choice.reason}.")
            return choice
        case other:
            raise Unusable(f"{VARIABLE} is auto, python or compiled, not {other!r}.")


def stem() -> str:
    """Return the file name, without suffix, of the compiled scanner for the present source code."""
    source = SOURCE.read_bytes()
    return f"tags-{zlib.crc32(source, zlib.crc32(repr(FLAGS).encode())):08x}-{len(source)}"


def load(path: Path) -> ScanTags:
    """Load the compiled scanner from the file `path`. Raise ImportError if that fails."""
    name = "workers.parse._tags"
    loader = ExtensionFileLoader(name, str(path))
    module = module_from_spec(ModuleSpec(name, loader, origin=str(path)))
    loader.exec_module(module)
    scan = cast(_RawScan, module.scan)

    def scan_tags(html: bytes, *, images: bool = False, xml: bool = False, limit: int = 1_000_000) -> Scan:
        return Scan._make(scan(html, images, xml, limit))

    return scan_tags


def _built() -> Choice:
    """Return the scanner that was built from this source for this Python. If it cannot be loaded, choose `tags.py`."""
    try:
        name = stem()
    except OSError as error:
        return Choice(None, f"its source cannot be read: {error.strerror}")
    places = (folder / f"{name}{suffix}" for folder in (SOURCE.parent, BUILT) for suffix in EXTENSION_SUFFIXES)
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        return Choice(None, _why_not_built())
    try:
        return Choice(load(path))
    except (ImportError, AttributeError) as error:
        return Choice(None, f"the compiled one cannot be loaded: {error}")


def _why_not_built() -> str:
    try:
        return (BUILT / REASON).read_text(encoding="utf-8").strip()
    except OSError:
        return "the compiled one is not built for this source and this Python"
