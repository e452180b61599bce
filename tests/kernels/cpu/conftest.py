"""The CPU kernels exist on Linux alone; elsewhere there is nothing to collect here."""

import sys

collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]
