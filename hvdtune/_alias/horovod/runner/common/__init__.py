"""The part that Horovod's launcher shares with its other runners: service, util."""

from ... import _absent

__getattr__ = _absent.refusing(__name__)
