"""The verb bench: speed and memory of a model, alone or against other engines."""

from umlm.bench.verb import main

__all__ = ["main"]
