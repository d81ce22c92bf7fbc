"""The `orb` command. It and the package behind it, `cli`, are the only code that sees both master and worker."""

import sys

from cli.main import main

if __name__ == "__main__":
    sys.exit(main())
