"""/v1/config: the hot configuration, which can be changed without a restart."""

from typing import Annotated, Final

from fastapi import Path, Response
from pydantic import ValidationError

from api.http.deps import CONDITIONAL, UNCHANGED, By, Expected, Page, Served, Services, etag, problems
from api.http.errors import ApiProblem, ProblemKind
from api.http.fields import FieldError, field_errors
from api.http.routing import Router
from api.schemas.config import ConfigRevision, HotConfiguration, config_of, config_settings, revision_body
from api.schemas.config_values import (
    ConfigValue,
    ConfigValueInput,
    Scalar,
    Setting,
    names_to_suggest,
    setting_of,
    tag_of,
    value_body,
)
from api.schemas.model import Listing
from api.schemas.plans import DeclarationPlan, declaration_plan
from shared.domain.ops.config import HotConfig, StoredConfig, decode_config, with_value
from shared.domain.ops.watermarks import OF_STORAGE
from shared.domain.reads.declared import Actor
from shared.domain.suggestions import did_you_mean
from shared.ports.catalog import Stale
from shared.wire.events import EventKind
from shared.wire.keys import SETTINGS

router = Router(prefix="/v1/config", tags=["config"])

ValueName = Annotated[
    str,
    Path(
        max_length=100,
        description="The name of a setting: its place in the configuration, with dots.",
        examples=["worker.max_visits", "pools.browser.max_visits", "log_level"],
    ),
]
_UNUSABLE: Final = "the configuration cannot be used"


@router.get("", summary="Get the hot configuration", dependencies=[CONDITIONAL], responses=UNCHANGED)
async def get_config(served: Served, response: Response) -> ConfigRevision:
    """Return the newest revision of the hot configuration.

    A setting that it leaves out has the value with which each member was started. /v1/cluster shows which members do
    not run this revision yet.
    """
    stored = await served.desired.config()
    response.headers.update(etag(stored.tag))
    return revision_body(stored)


@router.put("", summary="Replace the hot configuration", responses=problems(412))
async def put_config(
    wanted: HotConfiguration, served: Served, by: By, expected: Expected, response: Response
) -> ConfigRevision:
    """Replace the whole hot configuration.

    A setting that is left out gets the value with which each member was started. Members apply the configuration within
    about two seconds, without a restart. /v1/cluster lists members that have not yet done so as `outdated_members`. If
    the configuration is the same as before, no revision is created.
    """
    config = _usable(wanted, served)
    stored, changed = await served.desired.put_config(
        config, expected=expected, actor=by, now_ms=served.clock.unix_ms()
    )
    _announce(stored, changed, served)
    response.headers.update(etag(stored.tag))
    return revision_body(stored)


@router.post("/plan", summary="Plan a change of the hot configuration")
async def plan_config(wanted: HotConfiguration, served: Served) -> DeclarationPlan:
    """Return what a PUT of the configuration would change, without changing anything.

    The request is validated as for a PUT.
    """
    config = _usable(wanted, served)
    stored = await served.desired.config()
    return declaration_plan(config_settings(stored.config), config_settings(config))


@router.get("/revisions", summary="List revisions of the hot configuration")
async def list_config_revisions(served: Served, page: Page, response: Response) -> Listing[ConfigRevision]:
    """List the revisions of the hot configuration, newest first."""
    before = page.place(int, 2**31 - 1, greatest=2**31 - 1)
    rows = await served.desired.config_revisions(before=before, max_count=page.max_count)
    place = rows[-1].revision if rows and rows[-1].revision > 1 else None
    return Listing(items=[revision_body(stored) for stored in rows], next=page.next(place, response))


@router.get(
    "/revisions/{revision}", summary="Get a revision of the hot configuration",
    dependencies=[CONDITIONAL], responses={**problems(404), **UNCHANGED},
)  # fmt: skip
async def get_config_revision(
    revision: Annotated[int, Path(ge=1, le=2**31 - 1)], served: Served, response: Response
) -> ConfigRevision:
    """Return a revision of the hot configuration. To restore it, PUT its `config`."""
    stored = await served.desired.config_revision(revision)
    response.headers.update(etag(stored.tag))
    return revision_body(stored)


@router.get(
    "/{value}", summary="Get one value of the hot configuration",
    dependencies=[CONDITIONAL], responses={**problems(404), **UNCHANGED},
)  # fmt: skip
async def get_config_value(value: ValueName, served: Served, response: Response) -> ConfigValue:
    """Return a setting: the value that was put, its default, the value in effect, its unit and its limits."""
    setting = _setting(value)
    return _shown(setting, await served.desired.config(), served, response)


@router.put("/{value}", summary="Set one value of the hot configuration", responses=problems(404, 412))
async def put_config_value(
    value: ValueName, wanted: ConfigValueInput, served: Served, by: By, expected: Expected, response: Response
) -> ConfigValue:
    """Set one value and keep all other values. This creates a revision, unless the value is the same as before.

    The ETag belongs to this value only, so a change of another value does not change the ETag.
    """
    setting = _setting(value)
    try:
        given = setting.read(wanted.value)
    except ValidationError as error:
        wrong: list[FieldError] = []
        for each in error.errors():
            wrong += field_errors({**each, "loc": ("body", "value")})
        raise ApiProblem(ProblemKind.INVALID, _UNUSABLE, errors=wrong) from error
    stored = await _change(setting, given, served, by, expected)
    return _shown(setting, stored, served, response)


@router.delete("/{value}", summary="Restore the default of one value", responses=problems(404, 412))
async def delete_config_value(
    value: ValueName, served: Served, by: By, expected: Expected, response: Response
) -> ConfigValue:
    """Remove a value from the configuration, so that each member uses the value with which it was started.

    A repeated request changes nothing.
    """
    setting = _setting(value)
    stored = await _change(setting, None, served, by, expected)
    return _shown(setting, stored, served, response)


def _setting(name: str) -> Setting:
    """Return the setting with this name. If there is none, raise ApiProblem (404), which suggests a similar name."""
    setting = setting_of(name)
    if setting is None:
        hint = did_you_mean(name, names_to_suggest(name))
        raise ApiProblem(ProblemKind.NOT_FOUND, f"there is no setting {name!r}", hint=hint)
    return setting


def _shown(setting: Setting, stored: StoredConfig, served: Services, response: Response) -> ConfigValue:
    shown = value_body(setting, stored.config, served.longest_grant_s)
    response.headers.update(etag(tag_of(shown)))
    return shown


async def _change(
    setting: Setting, value: Scalar | None, served: Services, by: Actor, expected: frozenset[str] | None
) -> StoredConfig:
    """Store the newest configuration with one value changed, or removed if `value` is None. Return the stored revision.

    If another revision is stored meanwhile, apply the change to that one.

    `expected`: the ETags in If-Match. Raise Stale if the ETag of the setting's present value is not among them. Raise
    ApiProblem if the new value cannot be used together with other settings.
    """
    while True:
        before = await served.desired.config()
        tag = tag_of(value_body(setting, before.config, served.longest_grant_s))
        if expected is not None and tag not in expected:
            raise Stale(tag)
        document = with_value(before.text, setting.path, value)
        config = decode_config(document)
        wrong = _conflict(config, served)
        # A conflict that was there before must not keep other values from being changed.
        if wrong is not None and (wrong.path == setting.name or wrong != _conflict(before.config, served)):
            error = FieldError("value", f"{wrong.path} {wrong.message}", wrong.hint)
            raise ApiProblem(ProblemKind.INVALID, _UNUSABLE, errors=[error])
        try:
            stored, changed = await served.desired.put_config(
                config,
                document=document,
                expected=frozenset((before.tag,)),
                actor=by,
                now_ms=served.clock.unix_ms(),
            )
        except Stale:  # Another change came between: apply this one to it.
            continue
        _announce(stored, changed, served)
        return stored


def _announce(stored: StoredConfig, changed: bool, served: Services) -> None:
    if changed:
        served.plane.wake()
        data = {"revision": stored.revision, "by": stored.changed_by}
        served.telling.publish(EventKind.CONFIG, SETTINGS, "updated", data=data)


def _usable(wanted: HotConfiguration, served: Services) -> HotConfig:
    """Return the configuration in the request. Raise ApiProblem if its values cannot be used together."""
    config = config_of(wanted)
    if (wrong := _conflict(config, served)) is not None:
        raise ApiProblem(ProblemKind.INVALID, _UNUSABLE, errors=[wrong])
    return config


def _conflict(config: HotConfig, served: Services) -> FieldError | None:
    """Return an error for the first value that cannot be used in `config`. Return None if all can.

    - `storage.low_watermark_ratio` must not exceed `storage.high_watermark_ratio`.
    - `master.grant_s` must not exceed the `grant_s` with which this master was started.
    """
    default, storage = OF_STORAGE, config.storage
    high, low = storage.high_watermark_ratio or default.high, storage.low_watermark_ratio or default.low
    if low > high:
        return FieldError(
            "storage.low_watermark_ratio",
            f"is {low:g}, above storage.high_watermark_ratio, {high:g}",
            "set both, the low one below the high one",
        )
    # A new owner waits for the grants of earlier owners, but only for the start-up value of `grant_s`.
    grant_s = config.master.grant_s
    if grant_s is not None and grant_s > served.longest_grant_s:
        return FieldError(
            "master.grant_s",
            f"is above the masters' start-up value, {served.longest_grant_s:g}",
            "start the masters with a longer --grant-s to be able to turn it that far",
        )
    return None
