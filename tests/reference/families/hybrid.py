"""The hybrid and mixture-of-experts families."""

from hybrid import make
from hybrid_catalogue import catalogue

__all__ = ["catalogue", "make"]
