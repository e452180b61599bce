"""`python -m umlm.bench ...`: the same as `umlm bench ...`."""

from __future__ import annotations

import sys

from umlm.bench.verb import main

if __name__ == "__main__":
    sys.exit(main())
