"""Callbacks that keep an elastic state up to date during `fit`."""

from __future__ import annotations

from typing import Any

from hvdtune.keras.callbacks import _Callback

Logs = dict[str, Any] | None


class CommitStateCallback(_Callback):
    """Commits `state` every `batches_per_commit` batches, and at the end of an epoch.

    Put it after the other callbacks that change the state.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Logs = None) -> None:
        """Start counting again."""
        super().on_train_begin(logs)
        self.batches_remaining = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Commit, if it is time."""
        super().on_train_batch_end(batch, logs)
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining = self.batches_per_commit
            self.commit()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Commit."""
        self.commit()

    def commit(self) -> None:
        """`state.commit()`; subclasses may do more here."""
        self.state.commit()


class UpdateBatchStateCallback(_Callback):
    """Keeps `state.batch`, the number of finished batches of the epoch; 0 at its end.

    After a reset, the first epoch continues there. `params["steps"]` says so, but Keras no longer
    reads that: give `fit` `steps_per_epoch=steps - state.batch` for the epoch in which training
    starts over.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._done_before = 0
        self._steps: int | None = None

    def on_train_begin(self, logs: Logs = None) -> None:
        """Note how much was done before."""
        super().on_train_begin(logs)
        self._done_before = self.state.batch
        self._steps = None

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Tell other callbacks how many steps of the epoch are left."""
        if self.params and self.params.get("steps"):
            if self._steps is None:
                self._steps = self.params["steps"]
            self.params["steps"] = self._steps - self.state.batch

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Count the batch."""
        super().on_train_batch_end(batch, logs)
        self.state.batch = self._done_before + batch + 1

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Set the batch to 0 for the next epoch."""
        self._done_before = self.state.batch = 0


class UpdateEpochStateCallback(_Callback):
    """Keeps `state.epoch`, the total number of finished epochs.

    Call `fit` with `epochs=E - state.epoch`: it counts from 0 again after a reset.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._done_before = 0

    def on_train_begin(self, logs: Logs = None) -> None:
        """Note how much was done before."""
        super().on_train_begin(logs)
        self._done_before = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Count the epoch."""
        self.state.epoch = self._done_before + epoch + 1
