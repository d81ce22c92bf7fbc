"""The request and response bodies of host policies."""

from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from api.schemas.model import MOMENT, ONE_LINE, WHOLE, Model, RequestModel, field, moment_of, ms_of
from shared.domain.ops.host_policies import MAX_DELAY_S, MAX_SLOTS, HostBlock, HostPolicySpec, StoredHostPolicy

EXAMPLE: Final[dict[str, Any]] = {
    "delay_s": 5.0,
    "block": {"reason": "maintenance of the site", "until": "2030-01-01T00:00:00Z"},
    "slots": 1,
}
MAX_REASON_CHARS: Final = 500


def _time(text: str) -> str:
    """Return `text` unchanged if it is a time with a time zone. Otherwise raise ValueError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"expected {MOMENT}") from error
    if moment.tzinfo is None:
        raise ValueError("has no time zone")
    ms_of(moment)
    return text


class BlockPolicy(RequestModel):
    """A block of a host: no crawl sends a request to it until the block ends. A block may have no end."""

    reason: Annotated[str, StringConstraints(min_length=1, max_length=MAX_REASON_CHARS, pattern=ONE_LINE)] = field(
        "Why the host is blocked. `explain` shows it.", "maintenance of the site"
    )
    until: (
        Annotated[
            str,
            StringConstraints(max_length=40, pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}.*$"),
            AfterValidator(_time),
        ]
        | None
    ) = Field(
        None,
        description="When the block ends. It needs a time zone. Default: when the policy is changed or deleted.",
        examples=["2030-01-01T00:00:00Z"],
    )


class HostPolicyInput(RequestModel):
    """The policy of a host, which applies to every crawl. A field that is left out sets nothing."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    delay_s: Annotated[float, Field(ge=0, le=MAX_DELAY_S)] | None = Field(
        None,
        description="The least seconds from the end of an answer of the host to the start of the next request to it. "
        "The longest of all delays counts, so it shortens none. Default: unset, so the delays of crawls and robots.txt "
        "apply.",
        examples=[5.0],
    )
    block: BlockPolicy | None = Field(
        None, description="Send no request to the host. Requests in progress are finished. Default: unset."
    )
    slots: Annotated[int, Field(ge=1, le=MAX_SLOTS), WHOLE] | None = Field(
        None,
        description="The most URL shards of the host that may be leased at a time. The fewest slots count, so it adds "
        "none to those of a crawl. Default: unset.",
        examples=[1],
    )

    def spec(self) -> HostPolicySpec:
        """Return the policy as the database stores it."""
        block = None if self.block is None else HostBlock(reason=self.block.reason, until=self.block.until)
        return HostPolicySpec(delay_s=self.delay_s, block=block, slots=self.slots)


class EffectiveHostPolicy(Model):
    """What a host policy sets at the time of the response. After the end of a block, `blocked` is false."""

    delay_s: float = field("The least delay in seconds, in whole milliseconds. 0: the policy sets none.", 5.0)
    blocked: bool = field("True if the policy lets no crawl send a request to the host now.", True)
    slots: int | None = field("The most URL shards of the host at a time. Null: the policy sets none.", 1)


class HostPolicySummary(Model):
    """The policy of a host. `delay_s`, `block` and `slots` have the values of the last PUT."""

    host: str = field("The host, as `name` or `name:port`. Its subdomains have policies of their own.", "example.org")
    delay_s: float | None = field("The least delay in seconds. Null if it is not set.", 5.0)
    block: BlockPolicy | None = field("Why and until when the host is blocked. Null if it is not set.")
    slots: int | None = field("The most URL shards of the host at a time. Null if it is not set.", 1)
    effective: EffectiveHostPolicy = field("What the policy sets now.")
    created_at: datetime = field("When it was created.", "2029-01-01T08:00:00Z")
    created_by: str = field("The name and id of the API key that created it.", "first-admin (76f4e1d9b2a0c3f5)")
    changed_at: datetime = field("When it was last changed.", "2029-01-01T08:00:00Z")
    changed_by: str = field("The name and id of the API key that last changed it.", "first-admin (76f4e1d9b2a0c3f5)")
    command: str = field(
        "The id of the command that applies it: see /v1/commands/{id}. Once the command is applied, the "
        "host's owner keeps to the policy.",
        "host-policy-12",
    )


def until_ms(policy: HostPolicyInput) -> int | None:
    """Return the end of the policy's block in Unix ms. Return None without a block, or if the block has no end."""
    until = None if policy.block is None else policy.block.until
    return None if until is None else max(0, ms_of(datetime.fromisoformat(until)))


def host_policy_body(stored: StoredHostPolicy, now_ms: int) -> HostPolicySummary:
    """Return a host policy as the API shows it. `now_ms` (Unix ms) decides whether its block is in effect."""
    spec, limits = stored.spec, stored.limits
    block = None if spec.block is None else BlockPolicy(reason=spec.block.reason, until=spec.block.until)
    effective = EffectiveHostPolicy(
        delay_s=limits.delay_ms / 1000, blocked=limits.blocked_until_ms > now_ms, slots=limits.slots or None
    )
    return HostPolicySummary(
        host=stored.host,
        delay_s=spec.delay_s,
        block=block,
        slots=spec.slots,
        effective=effective,
        created_at=moment_of(stored.created_at_ms),
        created_by=stored.created_by,
        changed_at=moment_of(stored.changed_at_ms),
        changed_by=stored.changed_by,
        command=stored.command_id,
    )
