"""What is said of redirects that leave a crawl without a page."""

import pytest

from shared.domain.explain.redirects import Redirect, redirects_end
from shared.domain.explain.sentences import no_page

A, B = "http://a.test/", "http://a.test/b"


@pytest.mark.parametrize(
    ("redirects", "refused", "said"),
    [
        ([Redirect(A, 302, A)], "", f"{A} redirects to itself (status 302); the site may need cookies"),
        ([Redirect(A, 302, B), Redirect(B, 301, A)], "", f"in a circle ({A} -> {B} -> {A}); the site may need cookies"),
        ([Redirect(A, 302, B), Redirect(B, 301, B)], "", f"{B} redirects to itself (status 301)"),
        ([Redirect(A, 304, None)], "", f"{A} answered with status 304, which names no other page."),
        (
            [Redirect(A, 301, "http://b.test/")],
            "other host",
            "redirects to http://b.test/, which is out of scope: other",
        ),
    ],
)
def test_redirects_without_a_page_say_where_they_end(redirects: list[Redirect], refused: str, said: str) -> None:
    assert said in redirects_end(redirects, refused)
    assert said in no_page({"status": {str(redirects[0].status): 1}}, {}, redirects_end(redirects, refused))


def test_redirects_that_explain_nothing_are_not_called_out_of_scope() -> None:
    """Each crawl of redirects alone was said to lead out of scope."""
    assert redirects_end([], "") == redirects_end([Redirect(A, 301, B)], "") == ""
    assert no_page({"status": {"301": 2}}, {}) == "the servers answered mostly with status 301."
    assert no_page({"status": {"200": 2}}, {}, "of redirects") == "the servers answered mostly with status 200."
