"""An operator who changes the scope of a crawl in the model of the protocol, as the leader would carry it out."""

from collections.abc import Iterable

from shared.domain.crawl.spec import Scope, ScopeMode
from shared.domain.frontier.commands import CommandKind
from tests.support.simulation.recrawl_invariants import ALL, RecrawlOperator


def without(hosts: Iterable[int]) -> Scope:
    """Return the scope of all hosts but these."""
    return Scope(mode=ScopeMode.ANY, exclude=tuple(f"^http://h{host}.test/" for host in sorted(hosts)))


class ScopeOperator(RecrawlOperator):
    """Changes the scope of a crawl whose workers leave out what the scope excludes.

    A wider scope is followed by the command that finds in the archive what it admits.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cluster.scoped = True

    def rescope(self, *hosts: str) -> None:
        """Change the scope to all hosts but these."""
        super().rescope(*hosts)
        cluster = self.cluster
        widened = cluster.world.do(cluster.operator, cluster.store.widened_revision(cluster.crawl_id))
        if widened is not None:
            self.rediscovery = cluster.command(CommandKind.REDISCOVER, revision=int(widened))

    def settle(self) -> None:
        """Admit all hosts again, and let the crawl come to its end: all that is within reach must be found.

        A scope that admits all is not changed once more: a second reading would find what the first one missed.
        """
        self.cluster.heal()
        if self.cluster.scope != ALL:
            self.rescope()
        self.cluster.settle()
