"""hvdtune on Spark."""
