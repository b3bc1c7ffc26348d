"""hvdtune's version. pip reads it here; hvdtune compares it between hosts and in recordings."""

__version__ = "0.1.0"
