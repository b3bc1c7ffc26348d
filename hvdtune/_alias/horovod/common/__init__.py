"""Horovod's framework-neutral parts: elastic, exceptions, process_sets, util."""
