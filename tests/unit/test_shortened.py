"""URLs kept without the name of their host come back as they were, whatever they are."""

from hypothesis import given
from hypothesis import strategies as st

from shared.adapters.sql.engine.url_compression import shortened, whole
from shared.domain.web.url import canonicalize, host_of

HOSTS = st.sampled_from(["a.example", "a.example:8080", "a.example.", "[::1]:81", "192.0.2.7", "https", "a"])
PATHS = st.text("/:?@.#%aé", max_size=12)


@given(st.sampled_from(["http", "https"]), HOSTS, PATHS, HOSTS)
def test_whole_undoes_shortened_and_no_byte_is_added(scheme: str, host: str, path: str, other: str) -> None:
    url = canonicalize(f"{scheme}://{host}/{path}")
    if url is None:
        return
    for name in (host_of(url), other):
        kept = shortened(url, name)
        assert whole(kept, name) == url
        assert len(kept) <= len(url)


@given(st.sampled_from(["http", "https"]), HOSTS, PATHS)
def test_the_host_is_left_out_of_what_it_begins_and_of_nothing_else(scheme: str, host: str, path: str) -> None:
    url = canonicalize(f"{scheme}://{host}/{path}")
    if url is None:
        return
    begins = f"{scheme}://{host_of(url)}/"
    assert (shortened(url, host_of(url)) != url) == url.startswith(begins)
    assert whole(url, "another.example") == url
