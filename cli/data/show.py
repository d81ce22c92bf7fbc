"""`orb show`: print the state of a crawl, or everything that it has stored about one URL, with reasons."""

import argparse
import json
import time
from pathlib import Path
from typing import Any, Final

from cli.data.summary import as_json, as_text, host_json, hosts_text, summarized
from cli.local.crawl_args import STOP_FIRST, retry_command
from cli.local.crawl_folder import CrawlFolder, running
from cli.terminal.display_rates import amount, count
from cli.terminal.exits import Exit, Usage
from cli.terminal.printable import printable
from cli.terminal.summary_counts import ranked
from shared.adapters.sql.catalog.crawl_reader import CrawlReader
from shared.domain.archive.model import labelled_sha1
from shared.domain.crawl.spec import decode_spec
from shared.domain.explain.sentences import KINDS, counted, moment, priority_of, why
from shared.domain.frontier.seed_contexts import SeedContext, labels_of, source_of
from shared.domain.frontier.states import UrlState
from shared.domain.reads.views import FetchView, UrlView

TOP_HOSTS: Final = 10
_LABEL: Final = 15


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", type=Path, metavar="DIR", help="the crawl's folder; the crawl may be running")
    parser.add_argument("--url", metavar="URL", help="show the state of this URL and its reason")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    folder = CrawlFolder(arguments.dir).opened()
    if arguments.url is not None:
        return _show_url(folder, arguments.url, arguments.json)
    summary = summarized(folder, top=TOP_HOSTS)
    if summary is None:
        raise Usage(f"{folder.path} has no crawl results yet.")
    pid = running(folder)
    if arguments.json:
        hosts = [host_json(host) for host in summary.top_hosts]
        print(
            json.dumps(
                as_json(summary, folder, at_work=pid is not None)
                | {"running": pid is not None, "pid": pid, "top_hosts": hosts}
            )
        )
        return Exit.OK
    print(as_text(summary, folder, at_work=pid is not None))
    print(_field("at work", f"yes, as process {pid}" if pid is not None else "no", 11))
    if summary.top_hosts:
        print(f"\nhosts with the most pages\n{hosts_text(summary.top_hosts)}")
    return Exit.OK


def _show_url(folder: CrawlFolder, given: str, as_object: bool) -> int:
    from cli.data import unknown_url  # Both read the archive, whose libraries a summary does not need.
    from cli.data.warc import looked_up

    reader = CrawlReader(folder.database)
    try:
        row = reader.crawl()
        if row is None:
            raise Usage(f"{folder.path} has no crawl results yet.")
        url, view = looked_up(reader, row, given)
        unknown = unknown_url.explained(reader, folder, row, url) if view is None else None
    finally:
        reader.close()
    now_ms = time.time_ns() // 1_000_000
    if view is None:
        assert unknown is not None
        document, text = unknown_url.as_json(unknown), unknown_url.as_text(unknown, _LABEL)
    else:
        retry = retry_command(folder.path)
        spec = decode_spec(row.spec)
        reasons = why(view, spec, now_ms, retry=retry)
        if running(folder) is not None and any(retry in reason for reason in reasons):
            reasons.append(f"Before that, {STOP_FIRST}.")
        priority = priority_of(view.url, view, spec)
        document, text = _known_json(view, reasons, priority), _known_text(view, reasons, now_ms, priority)
    print(json.dumps(document, ensure_ascii=False) if as_object else text)
    return Exit.OK


# --- a URL the crawl knows --------------------------------------------------------------------------------------------


def _known_text(view: UrlView, reasons: list[str], now_ms: int, priority: str | None) -> str:
    host, fetch = view.host, view.fetch
    lines = [
        printable(view.url),
        _field("state", view.state.name.lower() + (f" ({view.reason})" if view.reason else "")),
        *(_field("why" if number == 0 else "", reason) for number, reason in enumerate(reasons)),
        _field("depth", f"{view.depth}{_hops(view)}"),
        _field("found on", view.chain[0] if view.chain else "nothing: it is a seed"),
        *([_field("found as", KINDS[view.kind])] if view.kind in KINDS else []),
        *(_field("", f"found on {page}") for page in view.chain[1:8]),
        *_context_text(view.context),
        *([_field("priority", priority)] if priority is not None else []),
        _field("attempts", str(view.attempts)),
    ]
    if fetch is not None:
        lines += _fetch_text(fetch)
    block = f", blocked until {moment(host.held_until_ms)}" if host.held_until_ms > now_ms else ""
    trouble = f", {counted(host.failures, 'failure')}, the last: {host.last_failure}" if host.failures else ""
    lines.append(
        _field(
            "host",
            f"{host.host}{f' ({host.ip})' if host.ip else ''}: {count(host.pages)} pages, "
            f"{count(host.queued + host.waiting)} queued, {count(host.leased)} in flight{block}{trouble}",
        )
    )
    if host.crawl_delay_ms or host.operator_delay_ms:
        lines.append(_field("host's delay", f"{max(host.crawl_delay_ms, host.operator_delay_ms) / 1000:g} s"))
    return "\n".join(lines)


def _context_text(context: SeedContext | None) -> list[str]:
    """Return lines with the labels and the source of the seed from which the URL was found.

    Omit what the seed lacks.
    """
    labels = ", ".join(f"{name}={value}" for name, value in labels_of(context).items())
    source = source_of(context)
    return [
        *([_field("seed's labels", labels)] if labels else []),
        *([_field("seed's source", source)] if source else []),
    ]


def _fetch_text(fetch: FetchView) -> list[str]:
    parts = [
        str(fetch.status) if fetch.status else fetch.reason or "no answer",
        fetch.mime or "",
        amount(fetch.size) if fetch.size else "",
        f"{fetch.latency_ms} ms",
        fetch.detail or "",
    ]
    lines = [_field("last fetch", f"{moment(fetch.at_ms)}: " + ", ".join(part for part in parts if part))]
    if fetch.title:
        lines.append(_field("title", fetch.title))
    if fetch.redirect:
        lines.append(_field("redirect to", fetch.redirect))
    if fetch.location is not None:
        place = fetch.location
        lines.append(_field("stored", f"{place.segment} at {place.offset}, {place.length} bytes"))
    if fetch.truncated:
        lines.append(_field("cut", fetch.truncated))
    if fetch.page or fetch.left_out:
        lines.append(_field("outlinks", _outlinks(fetch)))
    lines += [
        _field("before" if number == 0 else "", f"{moment(at_ms)}: {status or 'no answer'}{_because(reason)}")
        for number, (at_ms, status, reason) in enumerate(fetch.history)
    ]
    return lines


def _outlinks(fetch: FetchView) -> str:
    if fetch.links_found is None:
        return count(fetch.links)
    left_out = ", ".join(ranked(fetch.left_out))
    return f"{count(fetch.links)} taken of {count(fetch.links_found)} found" + (
        f"; left out: {left_out}" if left_out else ""
    )


def _hops(view: UrlView) -> str:
    """Return text with the redirects and extra hops to a URL, such as `, after 2 redirects, 1 hop beyond the scope`.

    Omit a number that is 0. For a sitemap or requisite, omit the redirects. Return "" if nothing is left.
    """
    # The hops of a sitemap or requisite also count the sitemaps or stylesheets that led to it.
    redirects = f", after {counted(view.hops, 'redirect')}" if view.hops and view.kind not in KINDS else ""
    return redirects + (f", {counted(view.extra_hops, 'hop')} beyond the scope" if view.extra_hops else "")


def _because(reason: str) -> str:
    return "" if reason == "-" else f", {reason}"


def _known_json(view: UrlView, reasons: list[str], priority: str | None) -> dict[str, Any]:
    return {
        "url": view.url,
        "known": True,
        "state": view.state.name.lower(),
        "reason": view.reason,
        "why": reasons,
        "fingerprint": view.fingerprint.hex(),
        "depth": view.depth,
        "hops": view.hops,
        "extra_hops": view.extra_hops,
        "priority": view.priority,
        "priority_rule": priority,
        "attempts": view.attempts,
        "due_at": moment(view.due_ms) if view.state is UrlState.WAITING else None,
        "discovered_from": list(view.chain),
        "labels": labels_of(view.context),
        "source": source_of(view.context),
        "fetch": None if view.fetch is None else _fetch_json(view.fetch),
        "host": host_json(view.host),
        "evidence": list(view.evidence),
    }


def _fetch_json(fetch: FetchView) -> dict[str, Any]:
    place = fetch.location
    return {
        "at": moment(fetch.at_ms),
        "status": fetch.status or None,
        "page": fetch.page,
        "reason": fetch.reason,
        "detail": fetch.detail,
        "latency_ms": fetch.latency_ms,
        "size": fetch.size,
        "mime": fetch.mime,
        "title": fetch.title,
        "redirect": fetch.redirect,
        "links": fetch.links,
        "links_found": fetch.links_found,
        "left_out": dict(fetch.left_out),
        "truncated": fetch.truncated,
        "digest": labelled_sha1(fetch.digest) if fetch.digest else None,
        "record": None if place is None else {"segment": place.segment, "offset": place.offset, "length": place.length},
        "history": [
            {"at": moment(at_ms), "status": status or None, "reason": None if reason == "-" else reason}
            for at_ms, status, reason in fetch.history
        ],
    }


def _field(label: str, text: str, width: int = _LABEL) -> str:
    return f"{label:<{width}}{printable(text)}"
