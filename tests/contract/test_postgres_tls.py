"""PostgreSQL over mutual TLS, told by the URL alone: whom we speak to, and what we show."""

import asyncio
import shutil
from pathlib import Path

import pytest

from shared.adapters.sql.engine.postgres import PostgresSettings, PostgresStore
from shared.domain.errors import Transient, Unusable
from shared.tls import TlsSettings
from tests.support.database.store_tables import NOW_MS
from tests.support.engines.certificates import OPENSSL, Certificate, authority, signed
from tests.support.engines.postgres import PostgresServer
from tests.support.engines.postgres_tls_proxy import tls_front

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="the openssl command makes the certificates")

QUICK = PostgresSettings(connect_s=10.0)


def url_of(server_url: str, port: int, **parts: object) -> str:
    """The URL of a server behind its front."""
    database = server_url.partition("?")[0].rpartition("/")[2]
    return f"postgresql://orb@127.0.0.1:{port}/{database}?" + "&".join(f"{name}={part}" for name, part in parts.items())


def test_client_accepts_only_server_of_authority_and_shows_certificate(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    ca = authority(tmp_path)
    (tmp_path / "other").mkdir()
    other = authority(tmp_path / "other")
    own, db = signed(tmp_path, ca, "orb"), signed(tmp_path, ca, "db")
    stranger = signed(tmp_path / "other", other, "stranger")

    async def opened(url: str) -> None:
        store = await PostgresStore.open(url, QUICK)
        try:
            await store.open_cluster(8, "", NOW_MS)
        finally:
            await store.close()

    async def story() -> None:
        database = await postgres_server.database()
        async with tls_front(postgres_server.socket, TlsSettings(ca.cert, db.cert, db.key)) as port:

            def at(by: Path, shown: Certificate | None) -> str:
                mine: dict[str, object] = {} if shown is None else {"sslcert": shown.cert, "sslkey": shown.key}
                return url_of(database, port, sslmode="verify-full", sslrootcert=by, **mine)

            await opened(at(ca.cert, own))
            for refused in (at(other.cert, own), at(ca.cert, stranger), at(ca.cert, None)):
                with pytest.raises((Transient, Unusable)):
                    await opened(refused)
            with pytest.raises((Transient, Unusable)):
                await opened(url_of(database, port, sslmode="disable"))

    asyncio.run(story())


def test_a_renewed_certificate_is_shown_by_the_next_connection(postgres_server: PostgresServer, tmp_path: Path) -> None:
    ca = authority(tmp_path)
    (tmp_path / "other").mkdir()
    stranger = signed(tmp_path / "other", authority(tmp_path / "other"), "stranger")
    db, renewed = signed(tmp_path, ca, "db"), signed(tmp_path, ca, "renewed")

    async def story() -> None:
        database = await postgres_server.database()
        async with tls_front(postgres_server.socket, TlsSettings(ca.cert, db.cert, db.key)) as port:
            own = Certificate(tmp_path / "own.pem", tmp_path / "own.key")
            shutil.copy(renewed.cert, own.cert)
            shutil.copy(renewed.key, own.key)
            url = url_of(database, port, sslmode="verify-full", sslrootcert=ca.cert, sslcert=own.cert, sslkey=own.key)
            store = await PostgresStore.open(url, QUICK)
            shutil.copy(stranger.cert, own.cert)
            shutil.copy(stranger.key, own.key)
            with pytest.raises((Transient, Unusable)):
                await store.open_cluster(8, "", NOW_MS)
            shutil.copy(renewed.cert, own.cert)
            shutil.copy(renewed.key, own.key)
            await store.open_cluster(8, "", NOW_MS)
            await store.close()

    asyncio.run(story())
