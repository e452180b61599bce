"""`python -m umlm VERB ...`: the same as `umlm VERB ...`."""

from __future__ import annotations

import sys

from umlm.cli import main

if __name__ == "__main__":
    sys.exit(main())
