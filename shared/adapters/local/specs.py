"""Published specs as files in a folder, for the processes of one machine."""

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import structlog

from shared.domain.crawl.spec import CrawlSpec, decode_spec, encode_spec
from shared.domain.errors import ResourceFull, Transient
from shared.domain.ids import CrawlId, Revision
from shared.ports.specs import PublishedSpec

log = structlog.get_logger(__name__)

_POLL_S: Final = 0.05
_TURN_S: Final = 0.25
LOOK_S: Final = 0.02
"""The seconds for which a worker uses a spec without checking its file again (`look_s` of LocalSpecs)."""

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_Signature = tuple[int, int, int]


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `<crawl id>.json`: a published spec. Fields of a later version are ignored."""

    revision: int
    partitions: int
    gone: bool = False
    paused: bool = False
    spec: msgspec.Raw


_decoder: Final = msgspec.json.Decoder(_File)


class LocalSpecs:
    """Published specs as files in a folder: one process writes them, and any number read them.

    It implements `SpecPublisher` and `SpecSource`. A file is replaced as a whole, so a reader sees one revision or the
    next. A reader decodes a file only if it was replaced, and checks this at most every `look_s` seconds. The spec of a
    deleted crawl has `gone` set. The file of a new crawl may not exist yet.
    """

    def __init__(self, folder: Path, *, wait_s: float = 2.0, look_s: float = 0.0) -> None:
        self._folder = folder
        self._folder_name = os.fspath(folder)
        self._wait_s = wait_s
        self._look_s = look_s
        self._seen: dict[CrawlId, tuple[_Signature, PublishedSpec, float]] = {}

    async def publish(self, spec: PublishedSpec) -> None:
        """Publish a crawl's spec. Do nothing if this spec or a later revision is published.

        Replace a file that cannot be read. Raise ResourceFull if the disk is full, and OSError for other errors of the
        system.
        """
        path = self._path(spec.crawl_id)
        known = self._readable(spec.crawl_id)
        if known == spec or (known is not None and known.revision > spec.revision):
            return
        content = _File(
            revision=spec.revision,
            partitions=spec.partitions,
            gone=spec.gone,
            paused=spec.paused,
            spec=msgspec.Raw(encode_spec(spec.spec)),
        )
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            scratch.write_bytes(msgspec.json.encode(content))
            os.replace(scratch, path)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            with suppress(FileNotFoundError):
                scratch.unlink()
            raise ResourceFull(f"no room for the spec of crawl {spec.crawl_id} in {path}: {error.strerror}") from error

    async def spec(self, crawl_id: CrawlId, revision: Revision) -> PublishedSpec:
        """Return the crawl's spec at `revision` or later. Wait for it up to `wait_s` seconds.

        Raise Transient if it does not arrive in time, or if the file cannot be read.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._wait_s
        while True:
            published = self._read(crawl_id)
            if published is not None and published.revision >= revision:
                return published
            if loop.time() >= until:
                seen = "not published" if published is None else f"published at revision {published.revision}"
                raise Transient(f"crawl {crawl_id} is {seen}, revision {revision} is wanted")
            await asyncio.sleep(_POLL_S)

    def latest(self, crawl_id: CrawlId) -> PublishedSpec | None:
        """Return the crawl's newest published spec, without waiting. Return None if it is missing or unreadable."""
        return self._readable(crawl_id)

    def _readable(self, crawl_id: CrawlId) -> PublishedSpec | None:
        try:
            return self._read(crawl_id)
        except Transient as error:
            log.debug("spec_lookup.delayed", crawl=crawl_id, error=str(error))
            return None

    async def changes(self) -> AsyncIterator[None]:
        """Yield at once, and then each time a file that this object has read before has changed. It never ends.

        It checks the files four times a second, because a replaced file sends no notification.
        """
        known: dict[CrawlId, PublishedSpec] = {}
        yield
        while True:
            await asyncio.sleep(_TURN_S)
            for crawl_id in list(self._seen):
                self._readable(crawl_id)
            before, known = known, {crawl_id: published for crawl_id, (_, published, _) in self._seen.items()}
            if any(before.get(crawl_id) is not published for crawl_id, published in known.items()):
                yield

    def _read(self, crawl_id: CrawlId) -> PublishedSpec | None:
        seen, now = self._seen.get(crawl_id), time.monotonic()
        if seen is not None and now < seen[2] + self._look_s:
            return seen[1]
        path = f"{self._folder_name}/{crawl_id}.json"
        try:
            stat = os.stat(path)
            signature = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if seen is not None and seen[0] == signature:
                self._seen[crawl_id] = (signature, seen[1], now)
                return seen[1]
            content = _decoder.decode(Path(path).read_bytes())
            spec: CrawlSpec = decode_spec(bytes(content.spec))
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise Transient(f"the spec of crawl {crawl_id} cannot be read from {path}: {error}") from error
        published = PublishedSpec(
            crawl_id, Revision(content.revision), spec, content.partitions, content.gone, content.paused
        )
        self._seen[crawl_id] = (signature, published, now)
        return published

    def _path(self, crawl_id: CrawlId) -> Path:
        return self._folder / f"{crawl_id}.json"

    def __repr__(self) -> str:
        return f"<LocalSpecs {self._folder} crawls={len(self._seen)}>"
