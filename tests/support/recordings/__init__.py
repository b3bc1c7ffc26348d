"""Recordings and status of jobs that ran or never did, and reading them in a simple way."""
