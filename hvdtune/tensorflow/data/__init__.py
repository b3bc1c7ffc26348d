"""TensorFlow's data service: compute_worker runs it as a job, compute_service makes use of it.

Knows `hvdtune.compute_service`.
"""
