"""What an estate costs in Terraform: apply of 100 crawls, plan of 1,000, on a real master with the real Terraform.

    orb bench terraform [--crawls 1000] [--apply 100]

It needs the `terraform` binary. One master runs with its own etcd and broker; the crawls are not started. The bench
applies the first crawls, plans the whole estate (of which the rest is new, so each needs `/plan`), applies it, and
plans it again, which must show no difference. It prints the seconds of each command, and the CPU seconds of Terraform
and the provider.
"""

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.support.api.cluster_clients import address, admin
from tests.support.processes.cluster import cluster
from tests.support.terraform.terraform_command import TERRAFORM, Estate

_TIMEOUT_S: Final = 1_800
_CONFIGURATION: Final = """\
terraform {{
  required_providers {{
    orb = {{ source = "orbweaver/orb" }}
  }}
}}

resource "orb_crawl" "many" {{
  count  = {count}
  name   = "many-${{count.index}}"
  labels = {{ team = "search" }}
  spec   = jsonencode({{ seeds = ["https://example.org/"], budget = {{ max_pages = 1000 + count.index }} }})
  start  = false
}}
"""


def measured(estate: Estate, name: str, *words: str, code: int = 0) -> None:
    """Run a command of Terraform and print what it took. Raise RuntimeError if it ends with another code."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    running = estate.start(*words)
    said, _ = running.communicate(timeout=_TIMEOUT_S)
    took = time.monotonic() - began
    if running.returncode != code:
        raise RuntimeError(f"terraform {' '.join(words)} ended with {running.returncode}:\n{said[-4000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{name}: {took:.1f} s, {spent:.1f} s CPU of Terraform and the provider; load {load}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="orb bench terraform", description=__doc__)
    parser.add_argument("--crawls", type=int, default=1_000)
    parser.add_argument("--apply", type=int, default=100)
    told = parser.parse_args()
    if TERRAFORM is None:
        parser.error("there is no terraform binary on the PATH")
    if not 0 < told.apply < told.crawls:
        parser.error("--apply must be less than --crawls")
    with tempfile.TemporaryDirectory() as name, cluster(Path(name)) as made:
        made.master("m1")
        made.wait_until(lambda: made.leader() is not None, "there is a leader")
        folder = Path(name) / "estate"
        folder.mkdir()
        key = admin(made)["Authorization"].removeprefix("Bearer ")
        estate = Estate(folder, {"ORB_SERVER": address(made, "m1"), "ORB_API_KEY": key})
        estate.configure(_CONFIGURATION.format(count=told.apply), {})
        measured(estate, f"apply of {told.apply:,}", "apply", "-auto-approve")
        estate.configure(_CONFIGURATION.format(count=told.crawls), {})
        rest = told.crawls - told.apply
        measured(estate, f"plan of {told.crawls:,}, {rest:,} new", "plan", "-detailed-exitcode", code=2)
        measured(estate, f"apply of {rest:,}", "apply", "-auto-approve")
        measured(estate, f"plan of {told.crawls:,} without a difference", "plan", "-detailed-exitcode")


if __name__ == "__main__":
    main()
