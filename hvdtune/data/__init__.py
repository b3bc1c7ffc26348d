"""Batch loaders, as in `horovod.data`: data_loader_base.

Knows no other room of hvdtune, and no framework.
"""

from hvdtune.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]
