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


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://orb:s3cr/et@127.0.0.1:1/orb",
        "postgresql://orb:s3cr?et@127.0.0.1:1/orb",
        "postgresql://orb:s3cr#et@127.0.0.1:1/orb",
        "postgresql://orb@127.0.0.1:99999/orb",
        "postgresql://orb@127.0.0.1:54x/orb",
        "postgresql://orb@[::1/orb",
        "postgresql://orb@a..b/orb",
    ],
)
@pytest.mark.parametrize("command", [("migrate", "--check"), ("db", "check"), ("key", "create")])
def test_mistyped_url_is_refused_without_a_part_of_its_password(
    command: tuple[str, ...], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--database", url]) == Exit.ENVIRONMENT
    out, err = capsys.readouterr()
    assert "the database's URL cannot be read: write special characters of the password as %2F (/)" in err
    assert err.endswith(", from --database.\n")
    assert "s3cr" not in out + err


def test_password_that_begins_as_a_port_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "create", "--database", "postgresql://localhost:1/et@127.0.0.1/orb"]) == Exit.ENVIRONMENT
    _, err = capsys.readouterr()
    assert "/et" not in err
