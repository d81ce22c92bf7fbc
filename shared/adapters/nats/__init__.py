"""NATS JetStream behind the Broker port.

`NatsBroker` speaks to any broker; `EmbeddedServer` runs the bundled one for a single machine. Inside: `connection`
(one reconnecting connection, its questions), `jetstream` (API calls and errors), `streams` (what is declared),
`reader` (of a stream, in order), `events`, `backlog` (what is not applied), `visits` (the queue of shards), `talk`
(what is not stored). Nothing of the client library leaves this package.
"""

from shared.adapters.nats.broker import NatsBroker
from shared.adapters.nats.server import EmbeddedServer, Endpoint, ServerSettings
from shared.adapters.nats.settings import StreamSettings

__all__ = ["EmbeddedServer", "Endpoint", "NatsBroker", "ServerSettings", "StreamSettings"]
