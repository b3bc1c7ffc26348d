"""`hvdtune bench`: how fast collectives are here, and how fast this machine's memory allows."""
