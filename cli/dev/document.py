"""`orb openapi`: print the OpenAPI document of the REST API, which is also committed in openapi/."""

import argparse
import json

from cli.terminal.exits import Exit


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare no arguments, because the command has none."""


def run(arguments: argparse.Namespace) -> int:
    """Print the OpenAPI document of the REST API as JSON."""
    from api.server.app import application

    print(json.dumps(application().openapi(), indent=2, ensure_ascii=False))
    return Exit.OK
