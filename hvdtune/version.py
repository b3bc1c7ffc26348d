"""hvdtune's version: pip reads it here; hosts and recordings are compared by it."""

__version__ = "0.1.0"
