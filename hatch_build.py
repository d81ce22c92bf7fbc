"""The build hook of the wheel. It adds the compiled tag scanner on Linux with a C compiler.

Elsewhere the wheel is pure Python. The scanner uses only Python's limited API, so one wheel serves Python 3.11 and
every later version on its platform.
"""

import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledScanner(BuildHookInterface[Any]):
    """A Hatch build hook that compiles the tag scanner into the wheel and names the wheel after the platform.

    If the scanner cannot be compiled, it prints a warning, and the wheel is pure Python.
    """

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
