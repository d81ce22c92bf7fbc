"""Ask all workers to send their statuses to the masters now."""

import structlog

from shared.domain.errors import Transient
from shared.ports.broker import Broker
from shared.wire.subjects import STATUS_WANTED

log = structlog.get_logger("orb.control")


async def ask_statuses(broker: Broker) -> None:
    """Ask every worker for its status now. A lost request does no harm, because workers send a status every second."""
    try:
        await broker.tell(STATUS_WANTED, b"")
    except Transient as error:
        log.debug("status_request.failed", error=str(error))
