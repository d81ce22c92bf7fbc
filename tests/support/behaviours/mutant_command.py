"""`orb` with mutants: `python -m tests.support.behaviours.mutant_command crawl ...`, also its master and workers.

ORB_NAMES says, as JSON, at which address each name (`name:port`) is. ORB_MUTANTS says in the same way which behaviour
each host serves. A visit of that host meets the mutant of that
behaviour and no other: the visit notes its behaviour in a context variable, which its tasks and threads inherit.
"""

import functools
import json
import os
import pkgutil
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

import cli.main
from tests.support.behaviours.mutants import EVERYWHERE, MUTANTS, Replacement
from workers.fetch.curl import CurlFetcher
from workers.visit import Visit

HOSTS: Final = "ORB_MUTANTS"
NAMES: Final = "ORB_NAMES"
ENTRY: Final = "tests.support.behaviours.mutant_command"
_behaviour: ContextVar[str] = ContextVar("behaviour", default="")


def install(hosts: Mapping[str, str]) -> None:
    """Replace what the mutants of these hosts' behaviours replace, in this process."""
    targets: defaultdict[str, dict[str, Replacement]] = defaultdict(dict)
    for name in set(hosts.values()) & MUTANTS.keys():
        for target, replacement in MUTANTS[name].items():
            targets[target][name] = replacement
    for target, replacements in targets.items():
        home, _, attribute = target.rpartition(".")
        owner = pkgutil.resolve_name(home)
        setattr(owner, attribute, _dispatched(getattr(owner, attribute), replacements))
    visited = Visit.run

    async def run(visit: Visit) -> bool:
        _behaviour.set(hosts.get(visit._shard.host, ""))
        return await visited(visit)

    setattr(Visit, "run", run)  # noqa: B010  mypy refuses what is the point of this module


def resolve(names: Mapping[str, str]) -> None:
    """Resolve these names to their addresses in this process, wherever a fetcher is made."""
    setattr(CurlFetcher, "__init__", functools.partialmethod(CurlFetcher.__init__, resolve=names))  # noqa: B010


def _dispatched(original: Callable[..., Any], replacements: Mapping[str, Replacement]) -> Callable[..., Any]:
    everywhere = next((replacements[name] for name in sorted(EVERYWHERE & replacements.keys())), None)

    @functools.wraps(original)
    def dispatch(*given: Any, **more: Any) -> Any:
        replacement = replacements.get(_behaviour.get(), everywhere)
        return original(*given, **more) if replacement is None else replacement(original, *given, **more)

    return dispatch


def main() -> int:
    """Run `orb`. The roles that its fork server forks have the mutants of ORB_MUTANTS and the names of ORB_NAMES."""
    product = cli.main.main

    def role(argv: Sequence[str] | None = None) -> int:
        resolve(json.loads(os.environ[NAMES]))
        install(json.loads(os.environ[HOSTS]))
        return product(argv)

    cli.main.main = role
    return product()


if __name__ == "__main__":
    # Run as __main__, this module would be a second copy of itself for those that import it.
    sys.exit(pkgutil.resolve_name(ENTRY).main())
