"""Services of Horovod's launcher: compute_service, which TensorFlow's data service needs."""

from .... import _absent

__getattr__ = _absent.refusing(__name__)
