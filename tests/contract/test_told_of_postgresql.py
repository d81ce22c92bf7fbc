"""What a command says of a PostgreSQL that it reached: where its schema is another, nobody looks for the server."""

import asyncio
from collections.abc import Callable

import asyncpg
import pytest

from cli.main import main
from cli.terminal.exits import Exit
from tests.support.engines.postgres import PostgresServer


def turned(url: str, statement: str) -> None:
    async def story() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(story())


def newer(url: str) -> str:
    turned(url, "UPDATE alembic_version SET version_num = '9999_later'")
    return url


def standby(url: str) -> str:
    turned(url, f'ALTER DATABASE "{url.partition("@/")[2].partition("?")[0]}" SET default_transaction_read_only = on')
    return url


def of_nobody(url: str) -> str:
    return url.replace("orb@", "nobody@")


def of_none(url: str) -> str:
    return url.replace("@/orb_", "@/none_")


@pytest.mark.parametrize(
    ("become", "reached", "ending"),
    [
        (newer, True, ", from --database."),
        (standby, True, ", from --database: run the same command again."),
        (of_nobody, False, "then run the same command again."),
        (of_none, False, "then run the same command again."),
    ],
)
def test_a_key_that_cannot_be_made_is_told_with_what_to_look_at(
    become: Callable[[str], str],
    reached: bool,
    ending: str,
    postgres_server: PostgresServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = become(asyncio.run(postgres_server.database()))
    assert main(["key", "create", "--database", url]) == Exit.ENVIRONMENT
    said = capsys.readouterr().err
    assert ("check that PostgreSQL listens" not in said) == reached, said
    assert f"The database is {url}" in said
    assert said.endswith(f"{ending}\n")
