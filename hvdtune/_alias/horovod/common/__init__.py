"""Horovod's framework-neutral parts: exceptions, process_sets, util."""
