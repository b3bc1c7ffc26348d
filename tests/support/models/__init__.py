"""What results have to be: collectives in NumPy, random programs of them, a simulated training."""
