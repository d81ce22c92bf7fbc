"""What must hold of pages that are fetched again, of exclusions and of changed scopes, in the model of the protocol."""

from collections import Counter
from dataclasses import dataclass, field

from shared.domain.crawl.spec import Scope, ScopeMode
from shared.domain.frontier.commands import CommandKind
from shared.domain.frontier.page_history import ChangeKind, unpacked
from shared.domain.frontier.states import RETRY, REVISIT
from shared.domain.web.url import host_of
from tests.support.database.url_rows import URLS
from tests.support.simulation.cluster import LONGEST_S, Cluster

ALL = Scope(mode=ScopeMode.ANY)


@dataclass(eq=False)
class RecrawlOperator:
    """Excludes hosts and changes the scope of the cluster's crawl. `out`: the hosts that the command excludes."""

    cluster: Cluster
    out: dict[str, tuple[str, frozenset[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cluster.scope = ALL
        self.cluster.web.excluded = self.excluded

    def exclude(self, host: str) -> None:
        """Exclude a host instead of the one before."""
        self.out["exclusion"] = self.cluster.exclude(host), frozenset({host})

    def lift(self) -> None:
        """End the exclusion."""
        self.out.pop("exclusion", None)
        self.cluster.in_force()

    def rescope(self, *hosts: str) -> None:
        """Change the scope to all hosts but these."""
        self.out.pop("scope", None)
        scope = Scope(mode=ScopeMode.ANY, exclude=tuple(f"^http://{host}/" for host in hosts))
        revision = self.cluster.change_scope(scope)
        self.out["scope"] = self.cluster.command(CommandKind.RESCOPE, revision=revision), frozenset(hosts)

    def excluded(self, url: str) -> bool:
        """Return True if a command that is applied excludes the URL."""
        host = host_of(url)
        return any(host in hosts and self.applied(command) for command, hosts in self.out.values())

    def applied(self, command: str) -> bool:
        """Return True if the partition has applied the command."""
        return bool(self.cluster.database.rows("SELECT 1 FROM commands WHERE id = :id", id=command))

    def look(self) -> None:
        """Blame a lease of what an applied command excludes."""
        cluster = self.cluster
        for url, crawl_id in cluster.database.rows(f"SELECT u.url, u.crawl_id FROM {URLS} u WHERE u.state = 2"):
            if crawl_id == cluster.crawl_id and self.excluded(url):
                cluster.world.blame(f"{url} is leased, and an applied command excludes it")

    def settle(self) -> None:
        """Take back what is excluded, and let every stored page be fetched again; each must be."""
        cluster = self.cluster
        cluster.heal()
        self.lift()
        self.rescope()
        until = cluster.world.now + LONGEST_S
        while not self._rests() and cluster.world.now < until and not cluster.world.violations:
            cluster.world.run_for(10.0)
            cluster.judge.look()
            until = max(until, cluster.left_alone_until() + LONGEST_S)
        begun = cluster.world.now
        while (left := self._not_fetched_since(begun)) and cluster.world.now < until + 100.0:
            if cluster.world.violations:
                return
            cluster.world.run_for(5.0)
            cluster.judge.look()
        if left:
            cluster.world.blame(f"{sorted(left)} were due and are not fetched again; {cluster.judge.summary()}")
        self._changes()

    def _rests(self) -> bool:
        """Return True if all new URLs and retries are done, and the scope is applied."""
        rows = self.cluster.database.rows(
            f"SELECT 1 FROM urls WHERE crawl_id = :c AND state < 3 AND (flags & {REVISIT} = 0 OR flags & {RETRY} <> 0)"
            " LIMIT 1",
            c=self.cluster.crawl_id,
        )
        return not rows and (self.cluster.lossy or self.applied(self.out["scope"][0]))

    def _not_fetched_since(self, begun: float) -> set[str]:
        """Return the stored pages without a request since `begun`, of those that are to be fetched again.

        What failed, is excluded or gone is not, nor is a seed that was deleted after it had been fetched.
        """
        waiting = self.cluster.database.rows(
            f"SELECT u.url FROM {URLS} u JOIN fetches f USING (crawl_id, host_id, fingerprint)"
            " WHERE crawl_id = :c AND f.page AND u.state < 4 AND coalesce(u.reason, '') <> 'gone'",
            c=self.cluster.crawl_id,
        )
        asked = {request.url for seen in self.cluster.web.seen.values() for request in seen if request.start > begun}
        taken_back = self.cluster.judge.taken_back.get(self.cluster.crawl_id, set())
        return {url for (url,) in waiting} - asked - taken_back

    def _changes(self) -> None:
        """Blame a version that is not in the log of changes once, or equals the one before."""
        cluster, logged = self.cluster, Counter[tuple[bytes, str, int]]()
        for (entries,) in cluster.database.rows("SELECT entries FROM page_changes WHERE crawl_id = :c",
                                                c=cluster.crawl_id):  # fmt: skip
            logged.update(
                (each.prefix, each.kind.name, each.version)
                for each in unpacked(bytes(entries))
                if each.kind is not ChangeKind.GONE
            )
        wanted = Counter[tuple[bytes, str, int]]()
        for key, digest in cluster.database.rows(
            "SELECT fingerprint, digest FROM fetches WHERE crawl_id = :c AND page", c=cluster.crawl_id
        ):
            older = cluster.database.rows(
                "SELECT version, digest FROM page_versions WHERE crawl_id = :c AND fingerprint = :f ORDER BY version",
                c=cluster.crawl_id, f=key,
            )  # fmt: skip
            numbers = [row[0] for row in older] + [len(older) + 1]
            wanted.update((bytes(key)[:8], "NEW" if n == 1 else "CHANGED", n) for n in numbers)
            digests = [bytes(row[1]) for row in older] + [bytes(digest)]
            if digests != sorted(set(digests)):
                cluster.world.blame(f"versions of a page are {[int.from_bytes(each, 'big') for each in digests]}")
        if logged != wanted:
            more, less = sorted((logged - wanted).elements()), sorted((wanted - logged).elements())
            cluster.world.blame(f"the log of changes has {more} too much and lacks {less}")
