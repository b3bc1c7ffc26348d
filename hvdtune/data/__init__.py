"""Loaders of batches, as `horovod.data` has them: data_loader_base.

It knows no other room of hvdtune, and no framework.
"""

from hvdtune.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]
