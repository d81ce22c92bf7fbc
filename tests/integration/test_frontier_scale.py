"""The bench of a large frontier, in small: what holds at any size is asserted, times and rates are not."""

import json

import pytest

from tests.benchmarks.frontier_scale import main


@pytest.mark.long
def test_a_frontier_grows_is_taken_over_and_worked_on_within_its_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--urls", "6000", "--rounds", "1"])
    told = json.loads(capsys.readouterr().out.splitlines()[0])
    assert told["urls"] >= 6000
    assert told["settled: URLs"] > 500
    assert 100 < told["bytes a known URL"] < 185
    assert 100 < told["bytes a fetched URL more"] < 250
    assert 0 < told["hosts in memory"] <= told["urls"] / 50 + 100
