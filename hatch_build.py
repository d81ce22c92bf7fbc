"""The wheel's build hook: on Linux with a C compiler the wheel gets the compiled tag scanner, elsewhere it is pure
Python.

The scanner uses only Python's limited API, so one wheel serves Python 3.11 and every later one of its platform.
"""

import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledScanner(BuildHookInterface[Any]):
    """Adds the compiled tag scanner to the wheel, beside its source, and the platform to the wheel's name."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable" or not sys.platform.startswith("linux"):
            return
        sys.path.insert(0, self.root)
        try:
            from cli.dev.native import CannotBuild, build
        finally:
            sys.path.remove(self.root)
        self._scratch = tempfile.TemporaryDirectory()
        try:
            built = build(Path(self._scratch.name), ".abi3.so")
        except CannotBuild as problem:
            self.app.display_warning(f"the wheel has no compiled tag scanner: {problem}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{sysconfig.get_platform().translate(str.maketrans('-.', '__'))}"
        build_data["force_include"][str(built)] = f"workers/parse/{built.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        scratch = getattr(self, "_scratch", None)
        if scratch is not None:
            scratch.cleanup()
