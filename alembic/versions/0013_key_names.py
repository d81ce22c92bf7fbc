"""Makes the name of each API key that is not revoked unique and valid in a path.

Adds indexes of names and certificates. Before this version a key could have any name, and several keys the same name.
A key whose name is not valid gets a valid one made from it. If that name is empty or taken, the key's id is added.
"""

from alembic import op

revision = "0013_key_names"
down_revision = "0012_seed_sets"
branch_labels = None
depends_on = None

_CHARS = 63


def upgrade() -> None:
    connection = op.get_bind()
    mark = "?" if connection.dialect.name == "sqlite" else "%s"
    rows = connection.exec_driver_sql(
        "SELECT key_id, name, spec FROM api_keys WHERE revoked_at_ms IS NULL ORDER BY created_at_ms, key_id"
    ).fetchall()
    taken = set()
    # Names that are right already stay, first those that were declared.
    for key_id, name, _ in sorted(rows, key=lambda row: (row.name != _plain(row.name), row.spec is None)):
        free = _plain(name)
        if not free or free in taken:
            free = f"{free[: _CHARS - 17].rstrip('-') or 'key'}-{key_id}"
        taken.add(free)
        connection.exec_driver_sql(f"UPDATE api_keys SET name = {mark} WHERE key_id = {mark}", (free, key_id))
    for statement in (
        "DROP TABLE IF EXISTS declared_keys",  # development versions had the names there
        "CREATE INDEX api_keys_name ON api_keys (name, key_id)",
        "CREATE INDEX api_keys_certificate ON api_keys (certificate)",
    ):
        connection.exec_driver_sql(statement)


def _plain(name: str) -> str:
    """Return a name reduced to lower-case letters, digits and inner hyphens, at most 63 characters. It may be empty."""
    letters = "".join(each if each.isascii() and each.isalnum() else "-" for each in name.lower())
    return "-".join(filter(None, letters.split("-")))[:_CHARS].rstrip("-")
