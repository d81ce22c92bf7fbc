"""Walks of the protocol's model that broke a promise once."""

from tests.conformance.test_protocol import Protocol
from tests.support.simulation.cluster import Site
from tests.support.simulation.web import Kind, Node
from tests.support.simulation.world import Fault

LINKS = (
    (12,),
    (),
    (11, 0, 1),
    (0, 1),
    (0, 1),
    (),
    (),
    (),
    (0,),
    (0, 1, 2),
    (11, 0, 1, 2, 3),
    (0, 1, 2, 3, 4),
    (0, 12, 1, 2, 3),
)


def test_host_delay_holds_for_a_crawl_that_is_not_loaded_yet() -> None:
    """An owner that has not loaded the crawl of a lease applies an operator's delay of its host. The grants of that
    lease keep to the delay, too."""
    nodes = [Node(host=0, kind=Kind.PAGE, links=links) for links in LINKS]
    nodes[4], nodes[10] = Node(0, Kind.DENIED, LINKS[4]), Node(1, Kind.PAGE, LINKS[10])
    walk = Protocol()
    walk.begin(site=Site(nodes=tuple(nodes), seeds=(0, 10), max_depth=None, delay_s=1.0, delays=()), batch=1, workers=2)
    walk.promises()
    walk.delay_host(delay_ms=0, host=0)
    walk.promises()
    walk.delay_host(delay_ms=0, host=0)
    walk.promises()
    walk.step(choices=[0, 0, 0])
    walk.promises()
    walk.fail(choice=1, fault=Fault.CRASH_BEFORE)
    walk.promises()
    walk.start_worker(batch=1)
    walk.promises()
    walk.replay_letter(letter=2)
    walk.promises()
    walk.replay_letters()
    walk.promises()
    walk.overtake(seconds=3.0)
    walk.promises()
    walk.kill(choice=0)
    walk.promises()
    walk.replay_letters()
    walk.promises()
    walk.replay_letters()
    walk.promises()
    walk.kill(choice=0)
    walk.promises()
    walk.replay_letters()
    walk.promises()
    walk.replay_letters()
    walk.promises()
    walk.replay_letters()
    walk.promises()
    walk.replay_letters()
    walk.promises()
    walk.delay_host(delay_ms=2500, host=0)
    walk.promises()
    walk.redeliver(choice=0)
    walk.promises()
    walk.take_over(loads_after_s=40.0)
    walk.promises()
    walk.add_seed(choice=0)
    walk.promises()
    walk.replay_letters()
    walk.promises()
    walk.teardown()
