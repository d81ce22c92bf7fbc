"""The live display fits any terminal and falls silent when the terminal is gone."""

import io
import sys

import msgspec
import pytest
from rich.console import Console

from cli.terminal.display import LiveDisplay, fitted, picture
from cli.terminal.display_rates import ProgressRates
from cli.terminal.summary_counts import errors, ranked, status_classes
from shared.domain.crawl.spec import Budget
from shared.wire.messages import HostProgress, Progress, WorkerStatus

BUSY = Progress(
    crawl=1,
    name="docs",
    revision=1,
    state="running",
    counters={
        "pages": 1_234_567,
        "bytes": 98_765_432_100,
        "queued": 7_654_321,
        "leased": 4_321,
        "discovered": 9_876_543,
        "done": 1_300_000,
        "failed": 17,
        "excluded": 400,
    },
    tallies={
        "status": {"200": 1_234_567, "301": 900, "404": 80, "500": 9, "999": 1},
        "failed": {"http_404": 80, "first_byte_timeout": 7},
        "host_failures": {"robots_dns": 3},
        "excluded": {"robots": 300, "depth": 100},
    },
    active_ms=3_600_000,
    hosts_in_motion=812,
    hosts_known=40_000,
    slowest=[HostProgress("a-very-long-host-name.department.example.org:8443", 12_345, 99, 61_000)],
    workers=[WorkerStatus("w1", "default", 64, 60), WorkerStatus("w2", "default", 64, 4)],
    dead_letters=2,
    alarms=["the stream was made anew"],
)


def drawn(progress: Progress | None, width: int, *, phase: str | None = None) -> list[str]:
    pace = ProgressRates(0.0, Budget())
    if progress is not None:
        pace.seen(progress, 1.0)
    console = Console(file=io.StringIO(), width=200, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(picture("docs.example.org.crawl", progress, pace, 65.0, width, phase=phase))
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [30, 46, 79, 109])
@pytest.mark.parametrize("progress", [None, BUSY])
def test_no_line_is_wider_than_the_terminal(progress: Progress | None, width: int) -> None:
    lines = drawn(progress, width)
    assert max(map(len, lines)) <= width
    assert len(lines) <= 11


def test_everything_that_matters_is_there_at_eighty_columns() -> None:
    text = "\n".join(drawn(BUSY, 79))
    for expected in (
        "running  1:05",
        "1,234,567",
        "98.8 GB",
        "7,654,321 waiting",
        "812 in motion",
        "2 workers, 64 visits",
        "2xx 1,234,567  3xx 900  4xx 80  5xx 9  other 1",
        "HTTP 404 80  slow 7  robots.txt dns 3",
        "robots 300",
        "12.3 s an answer",
        "2 dead letters",
        "the stream was made anew",
    ):
        assert expected in text


def test_the_phase_of_a_run_is_shown_instead_of_the_crawls_state() -> None:
    assert "stopping  1:05" in drawn(BUSY, 79, phase="stopping")[0]
    assert "starting  1:05" in drawn(None, 79)[0]


def test_markup_in_a_hosts_name_or_alarm_is_text() -> None:
    odd = Progress(crawl=1, name="a", revision=1, state="running", alarms=["[red]not markup[/red] :smile:"])
    assert "[red]not markup[/red] :smile:" in "\n".join(drawn(odd, 79))


def test_what_does_not_fit_is_left_out_from_the_end() -> None:
    assert fitted(["one", "two", "three"], 8) == "one  two"
    assert fitted(["one", "two", "three"], 7) == "one"
    assert fitted(["abcdefgh", "two"], 5) == "abcd…"


def test_tallies_in_words() -> None:
    assert status_classes({"200": 2, "204": 1, "404": 3}) == {"2xx": 3, "4xx": 3}
    assert errors({"failed": {"dns": 1}, "host_failures": {"dns": 2, "tls": 1}}) == {"dns": 3, "tls": 1}
    assert ranked({"dns": 1, "http_404": 5, "tls": 0}) == ["HTTP 404 5", "dns 1"]


class _Gone(io.StringIO):
    """A terminal that has hung up."""

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


def test_a_terminal_that_is_gone_ends_the_display_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    live = LiveDisplay("a", ProgressRates(0.0, Budget()), now=lambda: 1.0)
    live._console.file = _Gone()
    live.progress(BUSY)
    live.tick()
    live.note("nobody hears this")
    live.phase("stopping")
    live.close()


def test_a_line_that_is_as_good_as_finished_says_nothing_of_time_left() -> None:
    pace = ProgressRates(0.0, Budget(max_seconds=60))
    for active_ms, told in ((30_000, True), (59_500, False), (60_000, False)):
        progress = msgspec.structs.replace(BUSY, active_ms=active_ms)
        console = Console(file=io.StringIO(), width=200)
        with console.capture() as captured:
            console.print(picture("docs", progress, pace, 65.0, 109))
        assert (" left" in captured.get().splitlines()[0]) is told
