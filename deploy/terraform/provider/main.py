"""The entry point of the provider.

The executable `terraform-provider-orb` runs this file in the provider's environment.
"""

import sys

from orb_provider.server import main

if __name__ == "__main__":
    sys.exit(main())
