"""A master's request for the statuses of all workers."""

import structlog

from shared.domain.errors import Transient
from shared.ports.broker import Broker
from shared.wire.subjects import STATUS_WANTED

log = structlog.get_logger("orb.control")


async def ask_statuses(broker: Broker) -> None:
    """Ask every worker for its status now. If the request is lost, the statuses still come within a second."""
    try:
        await broker.tell(STATUS_WANTED, b"")
    except Transient as error:
        log.debug("status_request.failed", error=str(error))
