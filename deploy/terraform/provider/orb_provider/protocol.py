"""Terraform's plugin protocol, where the framework's servicer is not enough (decision 0051).

- Plans of creations and deletions call the resource as well, so that they can be refused during the plan.
- A plan starts from the configuration, so an attribute that the user removed there gets its default again.
- Refined unknown values, such as `"${x}-suffix"`, are read as unknown values.
- A state that was edited by hand, or that a later version wrote, is converted to the schema.
- A stop ends waits. Requests in progress are finished, so that the state contains what they create.
"""

import json
from typing import Any, Final

import msgpack
from tf import provider as framework
from tf.gen import tfplugin_pb2 as pb
from tf.types import Unknown
from tf.utils import Diagnostics, to_dynamic_value

from orb_provider.adapter import OrbProvider, ResourceAdapter, theirs
from orb_provider.fields import Field, FieldType, Values
from orb_provider.lifecycle import decimal

_UNKNOWN_CODES: Final = (0, 12)
"""The codes of the MessagePack extensions for unknown values: plain (0), and refined (12), which means that Terraform
knows something of the value, such as its prefix."""

_PYTHON: Final = {
    FieldType.TEXT: str,
    FieldType.JSON: str,
    FieldType.TIME: str,
    FieldType.WHOLE: int | float,
    FieldType.NUMBER: int | float | str,
    FieldType.SWITCH: bool,
    FieldType.TEXTS: list,
    FieldType.LABELS: dict,
}


def _extension(code: int, data: bytes) -> Any:
    return Unknown if code in _UNKNOWN_CODES else msgpack.ExtType(code, data)


def read_value(value: pb.DynamicValue) -> Any:
    """Decode a value of a Terraform message. Each unknown part becomes the framework's Unknown.

    Return None for an empty message.
    """
    if value.json:
        return json.loads(value.json)
    if value.msgpack:
        return msgpack.unpackb(value.msgpack, ext_hook=_extension, strict_map_key=False)
    return None


framework.read_dynamic_value = read_value  # every message is read by this function


class OrbServicer(framework.ProviderServicer):
    """The gRPC service that Terraform calls.

    It overrides methods of the framework as described at the top of the module.
    """

    def __init__(self, app: OrbProvider) -> None:
        super().__init__(app)
        self._provider = app

    def GetProviderSchema(self, request: Any, context: Any) -> pb.GetProviderSchema.Response:
        response = super().GetProviderSchema(request, context)
        response.server_capabilities.plan_destroy = True
        return response

    def PlanResourceChange(self, request: Any, context: Any) -> pb.PlanResourceChange.Response:
        diags = Diagnostics()
        resource: ResourceAdapter = self.app.new_resource(self._get_res_cls(request.type_name))
        prior, proposed = read_value(request.prior_state), read_value(request.proposed_new_state)
        if proposed is None:
            resource.planned_destroy(diags, prior)
            return pb.PlanResourceChange.Response(planned_state=to_dynamic_value(None), diagnostics=diags.to_pb())
        plan = resource.planned(diags, read_value(request.config), prior)
        if plan is None:
            return pb.PlanResourceChange.Response(planned_state=request.proposed_new_state, diagnostics=diags.to_pb())
        return pb.PlanResourceChange.Response(
            planned_state=to_dynamic_value(theirs(plan.values)),
            requires_replace=[framework._to_attribute_path([name]) for name in plan.replaced],
            diagnostics=diags.to_pb(),
        )

    def UpgradeResourceState(self, request: Any, context: Any) -> pb.UpgradeResourceState.Response:
        diags = Diagnostics()
        state = json.loads(request.raw_state.json)
        shape = self._get_res_cls(request.type_name).kind.SHAPE
        values: Values = {field.name: _fitting(field, state.get(field.name)) for field in shape.fields}
        return pb.UpgradeResourceState.Response(upgraded_state=to_dynamic_value(values), diagnostics=diags.to_pb())

    def StopProvider(self, request: Any, context: Any) -> pb.StopProvider.Response:
        self._provider.stop()
        return pb.StopProvider.Response()


def _fitting(field: Field, value: Any) -> Any:
    """Return a value of a state file if it has the attribute's type, else None.

    The next read replaces None by the API's value.
    """
    if not isinstance(value, _PYTHON[field.type]):
        return None
    return decimal(value) if field.type is FieldType.NUMBER else value
