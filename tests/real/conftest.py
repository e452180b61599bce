"""Weights are mapped on Linux alone; elsewhere there is nothing to ask of memory."""

from __future__ import annotations

import sys

collect_ignore_glob = [] if sys.platform == "linux" else ["test_real_memory.py"]
