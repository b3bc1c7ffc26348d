"""hvdtune's version: pip reads it here, and hosts and recordings are told apart by it."""

__version__ = "0.1.0"
