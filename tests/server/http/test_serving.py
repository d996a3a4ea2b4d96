"""What the server's process asks of its machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from server.http.serving import FILES

LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from server.http.serving import allow_open_files
allow_open_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "then"),
    [(256, FILES + 9, FILES), (256, 300, 300), (FILES + 5, FILES + 9, FILES + 5)],
    ids=["raised", "as far as allowed", "never lowered"],
)
def test_a_server_may_hold_all_the_connections_it_admits(soft: int, hard: int, then: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED.format(soft=soft, hard=hard)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == [str(then), str(hard)]
