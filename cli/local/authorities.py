"""`--ca FILE`: authorities of the user's own that sign the certificates of the hosts of a crawl."""

import os
import ssl
from pathlib import Path

from cli.local.crawl_folder import CrawlFolder
from cli.terminal.exits import Usage

NONE = "none"


def check_authorities(named: str | None) -> None:
    """Raise Usage if `--ca` names a file that holds no certificate."""
    if named is None or named == NONE:
        return
    try:
        ssl.create_default_context(cafile=named)
    except ssl.SSLError:
        raise Usage(f"--ca: {named} has no PEM certificate (-----BEGIN CERTIFICATE-----).") from None
    except OSError as error:
        raise Usage(f"--ca: cannot read {named}: {error.strerror}.") from None


def put_authorities(folder: CrawlFolder, named: str | None) -> None:
    """Store the authorities of a checked file in the folder, after the authorities that are trusted by default.

    None keeps what an earlier command stored; `none` removes it.
    """
    if named is None:
        return
    if named == NONE:
        return folder.authorities.unlink(missing_ok=True)
    from workers.fetch.curl import default_ca_bundle

    staged = folder.authorities.with_suffix(".pem.new")
    parts = [Path(path).read_bytes().strip() for path in (default_ca_bundle(), named)]
    staged.write_bytes(b"\n".join(parts) + b"\n")
    os.replace(staged, folder.authorities)
