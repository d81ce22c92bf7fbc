"""`orb openapi`: the REST API's document, as it is committed under openapi/."""

import argparse
import json

from cli.exits import Exit


def configure(parser: argparse.ArgumentParser) -> None:
    """It takes no arguments."""


def run(arguments: argparse.Namespace) -> int:
    """Print the document."""
    from api.http import application

    print(json.dumps(application().openapi(), indent=2, ensure_ascii=False))
    return Exit.OK
