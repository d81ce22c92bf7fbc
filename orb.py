"""The entry point of the command `orb`. Only this module and the package `cli` import both master and worker code."""

import sys

from cli.main import main

if __name__ == "__main__":
    sys.exit(main())
