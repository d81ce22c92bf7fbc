"""The release after this one, as far as its schema goes: this program's migrations and one more, which only tests have.

Upgrades are a promise from the first release on. So they are tested before there is a second migration.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from alembic.script import ScriptDirectory

from shared.adapters.sql.engine import migrate
from shared.adapters.sql.engine.migrate import HEAD, migrations_folder

LATER: Final = "9999_of_tests"
"""Its migration, after every real one."""

_MIGRATION: Final = f'''
"""What only tests add."""

import sqlalchemy as sa
from alembic import op

revision = "{LATER}"
down_revision = "{HEAD}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("hosts", sa.Column("mood", sa.Integer(), nullable=False, server_default="7"))
    op.add_column("urls", sa.Column("note", sa.Text()))
    op.create_index("urls_note", "urls", ["crawl_id", "note"])
    op.create_table("notes", sa.Column("id", sa.Text(), primary_key=True), sa.Column("host_id", sa.BigInteger()))
'''


@contextmanager
def later_release(folder: Path) -> Iterator[None]:
    """Let this process have the migrations of the later release, which are made in `folder`, for the block."""
    scripts = folder / "migrations"
    shutil.copytree(migrations_folder(), scripts, ignore=shutil.ignore_patterns("__pycache__"))
    (scripts / "versions" / f"{LATER}.py").write_text(_MIGRATION.lstrip())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate, "migrations_folder", lambda: scripts)
        yield


def revisions() -> list[str]:
    """Return every migration of this process, in order."""
    scripts = ScriptDirectory(str(migrate.migrations_folder()))
    return [script.revision for script in scripts.walk_revisions()][::-1]
