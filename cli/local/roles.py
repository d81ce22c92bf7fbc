"""`orb _master` and `orb _worker`: run the master or a worker of a local crawl. Only `orb crawl` starts them."""

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare no arguments, because the settings come from environment variables."""


def run(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "_master":
            import api.main

            return api.main.main()
        case _:
            import workers.main

            return workers.main.main()
