"""``Trainer(sync_batchnorm=True)``: batch normalisation over the batches of all ranks."""

from __future__ import annotations

import torch

import hvdtune.torch as hvd
from hvdtune.lightning.package import pl

_BatchNorm = torch.nn.modules.batchnorm._BatchNorm


class SyncBatchNormLayers(pl.plugins.LayerSync):
    """Replaces batch normalisation with ``hvdtune.torch.SyncBatchNorm``, and undoes that.

    Parameters stay the same objects, so optimizers and names in checkpoints are not affected.
    """

    def __init__(self) -> None:
        self._originals: list[tuple[torch.nn.Module, str, _BatchNorm]] = []

    def apply(self, model: torch.nn.Module) -> torch.nn.Module:
        """Replace the layers of ``model`` in place."""
        for parent in list(model.modules()):
            for name, child in parent.named_children():
                if isinstance(child, _BatchNorm) and not isinstance(child, hvd.SyncBatchNorm):
                    self._originals.append((parent, name, child))
                    setattr(parent, name, hvd.SyncBatchNorm.convert_sync_batchnorm(child))
        return model

    def revert(self, model: torch.nn.Module) -> torch.nn.Module:
        """Restore the original layers, with the current statistics."""
        for parent, name, original in self._originals:
            current = getattr(parent, name)
            for buffer in original._buffers:
                # Some buffers have been replaced, not changed in place.
                setattr(original, buffer, getattr(current, buffer))
            setattr(parent, name, original.train(current.training))
        self._originals.clear()
        return model
