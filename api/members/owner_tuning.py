"""Convert between the settings of owners (`FrontierSettings`) and the hot configuration of a master (`MasterTuning`).

- `started_as`: the settings with which a master was started, as values of the hot configuration.
- `limits_of`: the settings of owners, with the present values of the hot configuration.
"""

from msgspec.structs import replace

from api.crawls.seed_upload import BUSY
from api.frontier.capacity import SHARDS_PER_VISIT
from api.frontier.ownership import FrontierSettings
from shared.domain.ops.config import LogLevel, MasterTuning


def started_as(frontier: FrontierSettings, log_level: LogLevel) -> MasterTuning:
    """Return the values with which the master was started, for the settings that the hot configuration may change."""
    return MasterTuning(
        grant_s=frontier.grant_s,
        log_level=log_level,
        dispatch_ahead_ratio=SHARDS_PER_VISIT,
        dispatch_batch_size=frontier.dispatch_batch_size,
        max_hosts=frontier.max_hosts,
        report_batch_size=frontier.batch,
        sweep_interval_s=frontier.sweep_interval_s,
        split_after_expiries=frontier.split_after_expiries,
        dead_letter_after_expiries=frontier.dead_letter_after_expiries,
        seed_upload_refusal_ratio=BUSY,
    )


def limits_of(started: FrontierSettings, tuning: MasterTuning) -> FrontierSettings:
    """Return a copy of the owners' settings `started` with the values of the hot configuration (`tuning`)."""
    return replace(
        started,
        grant_s=tuning.grant_s,
        # An earlier owner may have given grants of `started.grant_s` seconds, and a new owner allows for them.
        longest_grant_s=max(started.grant_s, started.longest_grant_s),
        dispatch_batch_size=tuning.dispatch_batch_size,
        max_hosts=tuning.max_hosts,
        batch=tuning.report_batch_size,
        sweep_interval_s=tuning.sweep_interval_s,
        split_after_expiries=tuning.split_after_expiries,
        dead_letter_after_expiries=tuning.dead_letter_after_expiries,
    )
