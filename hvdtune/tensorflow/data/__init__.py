"""TensorFlow's data service: compute_worker runs it as a job, compute_service uses it.

Knows `hvdtune.compute_service`.
"""
