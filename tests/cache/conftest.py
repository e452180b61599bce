"""What a process has had in memory is asked of /proc, which only Linux has."""

from __future__ import annotations

import sys

collect_ignore_glob = [] if sys.platform == "linux" else ["test_activations.py"]
