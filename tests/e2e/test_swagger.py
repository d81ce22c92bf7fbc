"""Swagger UI as a person uses it in a browser: authorise, create a crawl from the example, watch it run."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.processes.up_process import UpProcess, upped
from tests.support.web.chromium import Browser, browser, chromium_program
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SITE: Final = SyntheticSite(pages=20)


@pytest.fixture(scope="module")
def program() -> str:
    """A Chromium; without one the test is skipped, or fails where CI is set."""
    found = chromium_program()
    if found is None:
        reason = "Chromium is not installed: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with upped(tmp_path_factory.mktemp("swagger") / "orb.cluster", "--masters", "1", "--workers", "1") as made:
        yield made


@pytest.fixture
def page(program: str, tmp_path: Path) -> Iterator[Browser]:
    with browser(program, tmp_path) as opened:
        yield opened


class Operation:
    """One operation of the page, by its id."""

    def __init__(self, page: Browser, tag: str, name: str) -> None:
        self.at = f"#operations-{tag}-{name}"
        self._page = page
        page.click(f"{self.at} .opblock-summary-control")
        page.until(f"document.querySelector('{self.at} .execute') !== null")

    def execute(self) -> tuple[int, Any]:
        """Press Execute: the status and the body that are then shown. What an earlier one showed is cleared away."""
        answer = f"{self.at} .live-responses-table tbody"
        if self._page.value(f"document.querySelector('{self.at} .btn-clear') !== null"):
            self._page.click(f"{self.at} .btn-clear")
            self._page.until(f"document.querySelector('{answer}') === null")
        self._page.click(f"{self.at} .execute")
        status = int(self._page.text(f"{answer} .response-col_status").split()[0])
        return status, json.loads(self._page.text(f"{answer} .response-col_description .highlight-code code"))

    def write(self, field: str, text: str) -> None:
        self._page.write(f"{self.at} {field}", text)


def outside(page: Browser, up: UpProcess) -> list[str]:
    """What the page asked of anybody else."""
    return [url for url in page.asked if not url.startswith((f"{up.address}/", "data:", "blob:", "about:"))]


def test_a_crawl_is_created_from_the_example_and_watched(
    up: UpProcess, page: Browser, web: Callable[..., Web], tmp_path: Path
) -> None:
    page.go(up.facts["docs"])
    page.until("document.querySelectorAll('.opblock').length > 20")
    page.picture(tmp_path / "1-docs.png")
    listing = Operation(page, "crawls", "list_crawls")
    assert listing.execute()[0] == 401, "nothing is answered to who has no key"
    page.errors.clear()  # of which that answer is one

    page.click(".btn.authorize")
    assert up.key is not None
    page.write(".auth-container input", up.key)
    page.picture(tmp_path / "2-authorise.png")
    page.click(".auth-btn-wrapper .authorize")
    page.click(".auth-btn-wrapper .btn-done")

    # The example is a crawl as it stands.
    creating = Operation(page, "crawls", "create_crawl")
    page.picture(tmp_path / "3-example.png")
    status, made = creating.execute()
    assert (status, made["name"], made["spec"]["seeds"][0]["url"]) == (201, "docs", "https://example.org/")
    page.picture(tmp_path / "4-created.png")

    # The same with a site of this machine is fetched.
    served = web(SITE)
    example = json.loads(page.value(f"document.querySelector('{creating.at} textarea').value"))
    example["name"] = "here"
    example["spec"] |= {
        "seeds": [f"{served.origins[0]}/"],
        "politeness": {"delay_s": 0.0},
        "egress": {"allow": ["127.0.0.0/8"]},
    }
    creating.write("textarea", json.dumps(example))
    assert creating.execute()[0] == 201

    watching = Operation(page, "progress", "get_progress")
    watching.write("input[placeholder='name']", "here")

    def over() -> bool:
        return bool(watching.execute()[1]["state"] == "finished")

    up.until(over, "the crawl that is watched is finished")
    assert watching.execute()[1]["pages"] == len(SITE.expected_pages(served.origins))
    page.picture(tmp_path / "5-watched.png")
    assert page.errors == []
    assert outside(page, up) == []


def test_redoc_shows_every_operation_and_asks_nobody_else(up: UpProcess, page: Browser, tmp_path: Path) -> None:
    operations = sum(len(item) for item in httpx.get(up.facts["openapi"]).json()["paths"].values())
    assert operations > 20
    page.go(up.facts["redoc"])
    page.until(f"document.querySelectorAll('[data-section-id*=\"/operation/\"]').length >= {operations}")
    page.picture(tmp_path / "1-redoc.png")
    assert page.errors == []
    assert outside(page, up) == []
