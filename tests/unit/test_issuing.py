"""What `orb up` says of a database that does not answer."""

import pytest

from cli.issuing import unreached
from shared.domain.errors import Transient


@pytest.mark.parametrize(
    ("database", "place"),
    [
        ("postgresql://orb@db/orb", "db, port 5432,"),
        ("postgresql://orb@db:6000/orb", "db, port 6000,"),
        ("postgresql:///orb", "this machine's socket, port 5432,"),
        ("postgresql://orb@db1:5432,db2:5433/orb", "db1:5432,db2:5433,"),
    ],
)
def test_a_database_that_does_not_answer_is_told_with_its_place(database: str, place: str) -> None:
    said = unreached(database, Transient("the connection was refused"))
    assert said.startswith(f"the connection was refused. The database is {database}: ")
    assert f"check that PostgreSQL listens at {place} and that" in said
