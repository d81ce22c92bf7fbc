"""The response body of a plan: what a PUT of a declared resource would change."""

from collections.abc import Mapping
from typing import Any

import msgspec

from api.schemas.crawls import Change, changes_body
from api.schemas.model import Model, field
from shared.domain.crawl.spec_diff import spec_difference


class DeclarationPlan(Model):
    """What a PUT of this resource would change. The plan itself changes nothing."""

    action: str = field("What a PUT would do: `create`, `update` or `none`.", "update")
    changes: list[Change] = field("The fields that would change. Empty if it would be created.")
    warnings: list[str] = field("What must be there before the PUT.", ["there is no crawl 'docs'"])


def declaration_plan(
    before: Mapping[str, Any] | None, after: Mapping[str, Any], warnings: list[str] | None = None
) -> DeclarationPlan:
    """Return the plan for a PUT that replaces the declaration `before` with `after`. Both are JSON values.

    - `before`: None if the resource does not exist, so that the PUT would create it.
    - `warnings`: sentences for the user, such as which crawl must be created before the PUT.
    """
    if before is None:
        return DeclarationPlan(action="create", changes=[], warnings=warnings or [])
    differences = spec_difference(*(msgspec.json.encode(each).decode() for each in (before, after)))
    action = "update" if differences else "none"
    return DeclarationPlan(action=action, changes=changes_body(differences, below=""), warnings=warnings or [])
