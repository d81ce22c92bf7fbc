"""Adapts resources and data sources to the classes, schemas and diagnostics of the framework `tf`.

An operation does not raise its errors. Each becomes a diagnostic, on the attribute that it is about if there is one.
"""

import json
import os
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from tf import iface, schema, types
from tf.utils import Diagnostics

from orb_provider.access import PROVIDER, access_of
from orb_provider.client import Client
from orb_provider.fields import UNKNOWN, Field, FieldType, Shape, Source, Values, is_known
from orb_provider.findings import Finding, Refusal, Rejected, refusal_findings
from orb_provider.kinds import RESOURCES, SOURCES
from orb_provider.lifecycle import Lifecycle, Plan, checked
from orb_provider.sources import DataSource

SCHEMA_VERSION: Final = 1
ADDRESS: Final = "registry.terraform.io/orbweaver/orb"

_Done = TypeVar("_Done")
_Failed = TypeVar("_Failed")

_TYPES: Final = {
    FieldType.TEXT: types.String(),
    FieldType.JSON: types.String(),
    FieldType.TIME: types.String(),
    FieldType.WHOLE: types.Number(),
    FieldType.NUMBER: types.Number(),
    FieldType.SWITCH: types.Bool(),
    FieldType.TEXTS: types.List(types.String()),
    FieldType.LABELS: types.Map(types.String()),
}


def schema_of(shape: Shape) -> schema.Schema:
    """Return the framework's schema for `shape`: the attributes of a resource, a data source or the provider.

    An optional attribute with a default is also marked as computed, because the plan may then set it to the default.
    """
    return schema.Schema(
        attributes=[_attribute(field) for field in shape.fields], version=SCHEMA_VERSION, description=shape.text
    )


def _attribute(field: Field) -> schema.Attribute:
    optional = field.source is Source.OPTIONAL
    return schema.Attribute(
        field.name,
        _TYPES[field.type],
        description=_description(field),
        required=field.source is Source.REQUIRED,
        optional=optional,
        computed=field.source is Source.COMPUTED or (optional and field.default is not None),
        sensitive=field.sensitive,
        requires_replace=field.replaces,
    )


def _description(field: Field) -> str:
    """Return the description of an attribute, with its default if it has one."""
    if field.default in (None, {}, ""):
        return field.text
    shown = field.default if field.type is FieldType.TEXT else json.dumps(field.default)
    return f"{field.text} Default: `{shown}`."


def ours(value: Any) -> Any:
    """Return a value of the framework in which each Unknown of the framework is replaced by our UNKNOWN."""
    return _swapped(value, types.Unknown, UNKNOWN)


def theirs(value: Any) -> Any:
    """Return a value with each UNKNOWN replaced by the framework's Unknown. It is the inverse of `ours`."""
    return _swapped(value, UNKNOWN, types.Unknown)


def _swapped(value: Any, old: object, new: object) -> Any:
    if value is old:
        return new
    match value:
        case dict():
            return {key: _swapped(each, old, new) for key, each in value.items()}
        case list():
            return [_swapped(each, old, new) for each in value]
        case _:
            return value


def report(diags: Diagnostics, findings: Iterable[Finding]) -> None:
    """Add each finding to the diagnostics, as an error or a warning on its attribute."""
    for each in findings:
        add = diags.add_warning if each.warning else diags.add_error
        add(each.summary, each.detail, path=list(each.path) or None)


def attempted(
    diags: Diagnostics, shape: Shape, operation: Callable[[], _Done], failed: _Failed, whole: str = ""
) -> _Done | _Failed:
    """Return the result of `operation()`. If it fails, add the reason to the diagnostics and return `failed`.

    - `shape`: the attributes of the resource. An error about one of them is shown on this attribute.
    - `whole`: the attribute on which an error about any other API field is shown. Empty: show it without an attribute.
    """
    try:
        return operation()
    except Rejected as rejected:
        # The address of the API is an attribute of the provider, not of a resource.
        known = [each if _has(shape, each) else Finding(each.summary, each.detail) for each in rejected.findings]
        report(diags, known)
    except Refusal as refusal:
        report(diags, refusal_findings(refusal, shape, whole))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        remedy = "Masters and provider are of different releases, or the state was edited by hand."
        report(diags, [Finding(f"The answer of the API cannot be read ({what}).", remedy)])
    return failed


def _has(shape: Shape, finding: Finding) -> bool:
    return not finding.path or finding.path[0] in shape.by_name


class OrbProvider(iface.Provider):
    """The provider as the framework calls it: its schema, its configuration, and its resources and data sources.

    `client` is None before the provider is configured, and if its configuration is unknown or wrong.
    """

    def __init__(self) -> None:
        self.client: Client | None = None

    def get_model_prefix(self) -> str:
        return "orb_"

    def full_name(self) -> str:
        return ADDRESS

    def get_provider_schema(self, diags: Diagnostics) -> schema.Schema:
        return schema_of(PROVIDER)

    def validate_config(self, diags: Diagnostics, config: Values) -> None:
        report(diags, checked(PROVIDER, ours(config)))

    def configure_provider(self, diags: Diagnostics, config: Values) -> None:
        access = attempted(diags, PROVIDER, lambda: access_of(ours(config), os.environ), None)
        self.client = None if access is None else Client(access)

    def get_resources(self) -> list[type[iface.Resource]]:
        return [type(f"Orb{kind.__name__}", (ResourceAdapter,), {"kind": kind}) for kind in RESOURCES]

    def get_data_sources(self) -> list[type[iface.DataSource]]:
        return [type(f"Orb{kind.__name__}", (SourceAdapter,), {"kind": kind}) for kind in SOURCES]

    def stop(self) -> None:
        """End all waits for a retry or for a command, because Terraform is stopping."""
        if self.client is not None:
            self.client.stop()


class ResourceAdapter(iface.Resource):
    """One kind of resource as the framework calls it. Each call runs an operation of `kind`, a Lifecycle.

    A subclass sets `kind`. An error becomes a diagnostic.
    """

    kind: type[Lifecycle]

    def __init__(self, provider: OrbProvider) -> None:
        self._provider = provider
        self._life = self.kind(provider.client)

    @classmethod
    def get_name(cls) -> str:
        return cls.kind.SHAPE.name

    @classmethod
    def get_schema(cls) -> schema.Schema:
        return schema_of(cls.kind.SHAPE)

    def validate(self, diags: Diagnostics, type_name: str, config: Values) -> None:
        report(diags, checked(self.kind.SHAPE, ours(config)))

    def planned(self, diags: Diagnostics, config: Values, prior: Values | None) -> Plan | None:
        """Return the plan for a configuration. Return None, with errors in `diags`, if there is no plan.

        `prior` has the values of the state, None if the resource is to be created.
        """
        plan = self._attempt(diags, lambda: self._life.plan(ours(config), prior), None)
        if plan is not None:
            report(diags, plan.findings)
        return plan

    def planned_destroy(self, diags: Diagnostics, prior: Values) -> None:
        """Add an error to `diags` if the resource must not be deleted. `prior` has the values of the state."""
        self._attempt(diags, lambda: self._life.plan_destroy(prior), None)

    def create(self, ctx: iface.CreateContext, planned: Values) -> Values | None:
        return self._attempt(ctx.diagnostics, lambda: self._life.create(ours(planned)), None)

    def read(self, ctx: iface.ReadContext, current: Values) -> Values | None:
        if self._provider.client is None:  # its configuration is unknown while planning
            return current
        return self._attempt(ctx.diagnostics, lambda: self._life.read(current), current)

    def update(self, ctx: iface.UpdateContext, current: Values, planned: Values) -> Values | None:
        return self._attempt(ctx.diagnostics, lambda: self._life.update(current, ours(planned)), current)

    def delete(self, ctx: iface.DeleteContext, current: Values) -> Values | None:
        return self._attempt(ctx.diagnostics, lambda: self._life.delete(current), current)

    def import_(self, ctx: iface.ImportContext, id: str) -> Values | None:
        return self._attempt(ctx.diagnostics, lambda: self._life.import_(id), None)

    def _attempt(self, diags: Diagnostics, operation: Callable[[], _Done], failed: _Failed) -> _Done | _Failed:
        return attempted(diags, self.kind.SHAPE, operation, failed, self.kind.WHOLE)


class SourceAdapter(iface.DataSource):
    """One kind of data source as the framework calls it. A subclass sets `kind`. An error becomes a diagnostic."""

    kind: type[DataSource]

    def __init__(self, provider: OrbProvider) -> None:
        self._provider = provider

    @classmethod
    def get_name(cls) -> str:
        return cls.kind.SHAPE.name

    @classmethod
    def get_schema(cls) -> schema.Schema:
        return schema_of(cls.kind.SHAPE)

    def validate(self, diags: Diagnostics, type_name: str, config: Values) -> None:
        report(diags, checked(self.kind.SHAPE, ours(config)))

    def read(self, ctx: iface.ReadDataContext, config: Values) -> Values | None:
        client = self._provider.client
        if client is None or not is_known(ours(config)):
            finding = Finding("The provider's configuration is not known yet.", "Apply what it depends on first.")
            report(ctx.diagnostics, [finding])
            return None
        return attempted(ctx.diagnostics, self.kind.SHAPE, lambda: self.kind(client).read(config), None)
