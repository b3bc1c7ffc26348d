"""The driver of an elastic job: how it and the processes see their connection."""
