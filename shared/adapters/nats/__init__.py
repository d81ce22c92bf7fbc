"""The message broker and the stream of events on NATS JetStream (the ports `Broker` and `Events`).

`NatsBroker` connects to any broker. `EmbeddedServer` runs the bundled one for a single machine. No type of the client
library leaves this package. Its modules:

- `connection`: one reconnecting connection and its requests; `client`: the client library, with fixes.
- `accounts`: the permissions of masters and workers in NATS.
- `jetstream`: API calls and errors.
- `streams`: the declarations of streams and consumers.
- `reader`: reads a stream in order; `events`: the stream of events.
- `visits`: pulls and acknowledges URL shards; `queued_visits`: lists the queued ones.
- `requests`: messages that are not stored; `storage`: how full the broker's storage is, and whether it fails.
"""

from shared.adapters.nats.accounts import NatsUser
from shared.adapters.nats.broker import NatsBroker
from shared.adapters.nats.server import EmbeddedServer, Endpoint, ServerSettings
from shared.adapters.nats.settings import NatsLogin, StreamSettings

__all__ = ["EmbeddedServer", "Endpoint", "NatsBroker", "NatsLogin", "NatsUser", "ServerSettings", "StreamSettings"]
