"""A failpoint kills its process at the pass that it names."""

import signal
import subprocess
import sys

from shared.runtime.supervise import FAILPOINT


def test_a_failpoint_kills_at_the_pass_it_names() -> None:
    code = f"""if 1:
        from shared.runtime.supervise import failpoint_of
        here = failpoint_of({{"{FAILPOINT}": "stored:2"}})
        for name in ("stored", "other", "stored", "never"):
            print(name, flush=True)
            here(name)
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout.split() == [b"stored", b"other", b"stored"]
