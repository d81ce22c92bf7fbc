"""Terraform's core in small: it plans and applies over the plugin protocol, and holds the provider to the protocol.

The rules are those of Terraform 1.11: a planned value is that of the configuration or the present one, an unknown one
is computed, and an apply gives what was planned. Terraform calls a breach "a bug in the provider".
"""

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cli.dev.terraform import EXECUTABLE, install

UNKNOWN: Final[dict[str, Any]] = {"$unknown": True}
REFINED: Final[dict[str, Any]] = {"$refined": True}
_BRIDGE: Final = Path(__file__).with_name("plugin_bridge.py")

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """What the provider says of an attribute, whose path is as `labels.team`."""

    summary: str
    detail: str
    path: str
    warning: bool


@dataclass(slots=True)
class Failed(Exception):
    """The provider refused an operation."""

    diagnostics: list[Diagnostic]

    def __str__(self) -> str:
        return "; ".join(f"{each.path}: {each.summary} {each.detail}" for each in self.diagnostics)


class Plugin:
    """A provider process. `schemas` has the attributes of each type by their names."""

    def __init__(self, environ: Mapping[str, str], errors: Path) -> None:
        python = install() / "python"
        with errors.open("w") as log:
            self.process = subprocess.Popen(
                [python, "-I", _BRIDGE, install() / EXECUTABLE],
                env={name: value for name, value in os.environ.items() if not name.startswith("ORB_")} | dict(environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._errors = errors
        self._lock, self._waiting = threading.Lock(), dict[int, Future[Values]]()
        self._reader = threading.Thread(target=self._read, name="plugin", daemon=True)
        self._reader.start()
        schema = self.call("GetProviderSchema")
        assert schema["server_capabilities"]["plan_destroy"] is True
        self.provider = _attributes(schema["provider"])
        self.resources = {name: _attributes(each) for name, each in schema["resource_schemas"].items()}
        self.sources = {name: _attributes(each) for name, each in schema["data_source_schemas"].items()}

    def call(self, call: str, **fields: Any) -> Values:
        """Make a call and return its answer. Raise Failed for errors among its diagnostics."""
        answered: Future[Values] = Future()
        with self._lock:
            number = len(self._waiting)
            self._waiting[number] = answered
            assert self.process.stdin is not None
            print(json.dumps({"id": number, "call": call, "fields": fields}), file=self.process.stdin, flush=True)
        answer = answered.result(150)
        assert "error" not in answer, f"{call}: {answer['error']}; {self.log()}"
        wrong = [each for each in diagnostics(answer) if not each.warning]
        if wrong:
            raise Failed(wrong)
        return answer

    def configure(self, **config: Any) -> None:
        """Configure the provider; what is left out is null."""
        whole = dict.fromkeys(self.provider) | config
        self.call("ValidateProviderConfig", config=whole)
        self.call("ConfigureProvider", config=whole, terraform_version="1.11.4")

    def source(self, type_name: str, **config: Any) -> Values:
        """Read a data source."""
        whole = dict.fromkeys(self.sources[type_name]) | config
        self.call("ValidateDataResourceConfig", type_name=type_name, config=whole)
        state: Values = self.call("ReadDataSource", type_name=type_name, config=whole)["state"]
        assert set(state) == set(self.sources[type_name])
        assert not _has_unknown(state)
        return state

    def log(self) -> str:
        """What the provider wrote to standard error."""
        return self._errors.read_text()

    def close(self) -> int:
        """End the provider as Terraform does; return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(60)
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            self._waiting[said["id"]].set_result(said["answer"])
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result({"error": "the plugin ended"})


@contextmanager
def plugin(folder: Path, environ: Mapping[str, str], **config: Any) -> Iterator[Plugin]:
    """A configured provider; its end must be a clean one."""
    running = Plugin(environ, folder / f"plugin-{len(list(folder.glob('plugin-*')))}.err")
    try:
        running.configure(**config)
        yield running
    finally:
        code = running.close()
    assert code == 0, running.log()


@dataclass(slots=True)
class Resource:
    """A resource of an estate, with its state; None before the first apply."""

    plugin: Plugin
    type_name: str
    state: Values | None = None
    replaced: list[str] = field(default_factory=list)
    warnings: list[Diagnostic] = field(default_factory=list)

    @property
    def attributes(self) -> dict[str, Values]:
        return self.plugin.resources[self.type_name]

    def validate(self, **config: Any) -> Values:
        """Validate a configuration; return it with null for what it leaves out."""
        whole = dict.fromkeys(self.attributes) | config
        self.plugin.call("ValidateResourceConfig", type_name=self.type_name, config=whole)
        return whole

    def plan(self, **config: Any) -> Values:
        """Refresh and plan; return the planned values, which keep the protocol's rules."""
        whole = self.validate(**config)
        self.refresh()
        return self._planned(whole, self.state)

    def _planned(self, config: Values, prior: Values | None) -> Values:
        answer = self.plugin.call(
            "PlanResourceChange",
            type_name=self.type_name,
            config=config,
            prior_state=prior,
            proposed_new_state=self._proposed(config, prior),
        )
        planned: Values = answer["planned_state"]
        self._check_plan(config, prior, planned)
        self.warnings = [each for each in diagnostics(answer) if each.warning]
        steps = [each["steps"][0]["attribute_name"] for each in answer.get("requires_replace", ())]
        self.replaced = [name for name in steps if prior is not None and planned[name] != prior[name]]
        return planned

    def changes(self, **config: Any) -> set[str]:
        """Plan; return the attributes that would change. A new resource changes all."""
        planned = self.plan(**config)
        return {name for name in planned if self.state is None or planned[name] != self.state[name]}

    def apply(self, **config: Any) -> Values:
        """Plan and apply; a change that needs another resource deletes this one first. Return the new state."""
        planned = self.plan(**config)
        if self.replaced:
            self.destroy()
            planned = self._planned(self.validate(**config), None)
        return self.applied(planned)

    def applied(self, planned: Values) -> Values:
        """Apply a plan; return the new state. The state stays if that fails."""
        answer = self.plugin.call(
            "ApplyResourceChange", type_name=self.type_name, prior_state=self.state, planned_state=planned
        )
        new: Values = answer["new_state"]
        assert not _has_unknown(new), f"unknown after apply: {new}"
        differing = {name for name, value in planned.items() if not _has_unknown(value) and new[name] != value}
        assert differing == set(), f"inconsistent after apply: {differing}"
        self.state = new
        return new

    def refresh(self) -> None:
        """Read the resource, after bringing its state through the file."""
        if self.state is None:
            return
        raw = self.plugin.call("UpgradeResourceState", type_name=self.type_name, version=1, raw_state=self.state)
        answer = self.plugin.call("ReadResource", type_name=self.type_name, current_state=raw["upgraded_state"])
        self.state = answer["new_state"]

    def destroy(self) -> None:
        """Plan and apply a deletion."""
        self.plugin.call(
            "PlanResourceChange", type_name=self.type_name, config=None, prior_state=self.state, proposed_new_state=None
        )
        answer = self.plugin.call(
            "ApplyResourceChange", type_name=self.type_name, prior_state=self.state, planned_state=None
        )
        assert answer["new_state"] is None
        self.state = None

    def import_(self, text: str) -> Values:
        """Import, and read as Terraform does afterwards."""
        (self.state,) = self.plugin.call("ImportResourceState", type_name=self.type_name, id=text)["imported_resources"]
        self.refresh()
        assert self.state is not None
        return self.state

    def _proposed(self, config: Values, prior: Values | None) -> Values:
        """Merge a configuration with the present values as Terraform does."""
        return {
            name: prior[name]
            if value is None and prior is not None and self.attributes[name].get("computed")
            else value
            for name, value in config.items()
        }

    def _check_plan(self, config: Values, prior: Values | None, planned: Values) -> None:
        """Hold a plan to Terraform's rules."""
        assert set(planned) == set(self.attributes)
        for name, value in planned.items():
            given, kept = config[name], None if prior is None else prior[name]
            fine = value in (given, UNKNOWN if given == REFINED else given)
            fine = fine or (value == kept and kept is not None and given is not None)
            fine = fine or (given is None and bool(self.attributes[name].get("computed")))
            assert fine or _has_unknown(given), f"planned {name} = {value!r}, configured {given!r}, present {kept!r}"


def diagnostics(answer: Values) -> list[Diagnostic]:
    """Return the diagnostics of an answer."""
    return [
        Diagnostic(
            each.get("summary", ""),
            each.get("detail", ""),
            ".".join(next(iter(step.values())) for step in each.get("attribute", {}).get("steps", ())),
            each["severity"] == "WARNING",
        )
        for each in answer.get("diagnostics", ())
    ]


def _attributes(schema: Values) -> dict[str, Values]:
    return {each["name"]: each for each in schema["block"]["attributes"]}


def _has_unknown(value: Any) -> bool:
    match value:
        case {"$unknown": True} | {"$refined": True}:
            return True
        case dict():
            return any(map(_has_unknown, value.values()))
        case list():
            return any(map(_has_unknown, value))
        case _:
            return False
