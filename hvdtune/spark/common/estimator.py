"""The base classes of the frameworks' estimators and models."""

from __future__ import annotations

import secrets
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pyspark.ml import Estimator, Model
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types as T

from hvdtune.spark.common import util
from hvdtune.spark.common.backend import Backend, SparkBackend
from hvdtune.spark.common.datamodule import DataModule
from hvdtune.spark.common.params import ESTIMATOR, MODEL, Entry, TableParams
from hvdtune.spark.common.plan import TrainingPlan
from hvdtune.spark.common.prediction import Predict, with_predictions
from hvdtune.spark.common.serialization import Persistent
from hvdtune.spark.common.store import Store


class HorovodEstimator(TableParams, Estimator[Any], Persistent):
    """Trains a model on a DataFrame: writes the data to the store, then trains over the ranks."""

    entries: ClassVar[tuple[Entry, ...]] = ESTIMATOR
    #: The prefix of generated run ids.
    run_prefix: ClassVar[str] = "run"
    #: The default class of the ranks' data.
    default_data_module: ClassVar[type[DataModule]]

    def fit_on_parquet(
        self, params: Mapping[Any, Any] | None = None, dataset_idx: int | None = None
    ) -> Any:
        """Train the model on data that are already in the store.

        params: parameters for this call only. dataset_idx: the number of the data, from
        `prepare_data`; None for folders without a number. Validation data are used if
        `validation` has any value.
        """
        estimator = self.copy(params) if params else self
        return estimator._fit_on_parquet(dataset_idx)

    def _fit(self, dataset: Any) -> Any:
        self._check_params()
        backend, store = self._backend(), self._store()
        with util.prepare_data(
            backend.num_processes(),
            store,
            dataset,
            label_columns=self.value("label_cols"),
            feature_columns=self.value("feature_cols"),
            validation=self.value("validation"),
            sample_weight_col=self.value("sample_weight_col"),
            compress_sparse=self.value("compress_sparse_cols"),
            partitions_per_process=self.value("partitions_per_process"),
            verbose=self.value("verbose"),
            random_seed=self.value("random_seed"),
        ) as dataset_idx:
            return self._train(backend, store, dataset_idx)

    def _fit_on_parquet(self, dataset_idx: int | None) -> Any:
        self._check_params()
        return self._train(self._backend(), self._store(), dataset_idx)

    def _train(self, backend: Backend, store: Store, dataset_idx: int | None) -> Any:
        weight = self.value("sample_weight_col")
        changes = self.value("transformation_fn") is not None
        labels, features = self.value("label_cols"), self.value("feature_cols")
        train_rows, val_rows, metadata, row_bytes = util.get_simple_meta_from_parquet(
            store, labels, features, weight, dataset_idx, bool(self.value("validation"))
        )
        ranks = backend.num_processes()
        self._require_rows("training", train_rows, ranks)
        if self.value("validation"):
            self._require_rows("validation", val_rows, ranks)
        if not changes:
            self._check_shapes(metadata)
        run_id = self.value("run_id") or self._new_run_id()
        if self.value("verbose"):
            print(
                f"Training {run_id}: {train_rows} rows of about {row_bytes:.0f} bytes, "
                f"{val_rows} for validation, on {ranks} rank(s)"
            )
        plan = self._plan(store, run_id, dataset_idx, train_rows, val_rows, metadata)
        checkpoint = self._last_checkpoint(store, run_id)
        fn, args = self._training(plan, checkpoint)
        results = backend.run(fn, args=(plan, *args), env=self._environment())
        return self._model(results[0], plan)

    def _plan(
        self,
        store: Store,
        run_id: str,
        dataset_idx: int | None,
        train_rows: int,
        val_rows: int,
        metadata: util.Metadata,
    ) -> TrainingPlan:
        labels = self.value("label_cols")
        loss_weights = util.to_list(self.value("loss_weights"), len(labels))
        return TrainingPlan(
            run_id=run_id,
            store=store.to_remote(run_id, dataset_idx),
            feature_columns=self.value("feature_cols"),
            label_columns=labels,
            metadata=metadata,
            train_rows=train_rows,
            val_rows=val_rows,
            val_batch_size=self.value("val_batch_size") or self.value("batch_size"),
            loss_weights=loss_weights or [1.0 / len(labels)] * len(labels),
            transform_fn=self.value("transformation_fn"),
            data_module=self._data_module(),
            data_options=self._data_options(),
            **{
                name: self.value(name)
                for name in (
                    *("sample_weight_col", "batch_size", "epochs", "verbose", "random_seed"),
                    *("train_steps_per_epoch", "validation_steps_per_epoch", "label_shapes"),
                    *("shuffle", "use_gpu", "gradient_compression", "backward_passes_per_step"),
                )
            },
        )

    def _data_module(self) -> type[DataModule]:
        given = self.value("data_module") if self.hasParam("data_module") else None
        return given or self.default_data_module

    def _data_options(self) -> dict[str, Any]:
        return {
            "inmemory_cache_all": self.value("inmemory_cache_all"),
            "shuffle_buffer_size": self.value("shuffle_buffer_size"),
            "edit_fields": self.value("transformation_edit_fields"),
            "removed_fields": self.value("transformation_removed_fields"),
            "train_reader_worker_count": self.value("train_reader_num_workers"),
            "val_reader_worker_count": self.value("val_reader_num_workers"),
        }

    # ---- checks before anything is started ----

    def _check_params(self) -> None:
        name = type(self).__name__
        for needed in ("model", "store", "feature_cols", "label_cols"):
            if not self.value(needed):
                raise ValueError(
                    f"{name} needs {needed}: give it, or call its setter before fit()."
                )
        if self.value("backend") is not None and self.value("num_proc") is not None:
            raise ValueError(
                f"{name}: backend and num_proc exclude each other: the backend has a number of "
                "processes of its own."
            )
        util.check_validation(self.value("validation"))
        labels = self.value("label_cols")
        for one in ("loss_weights", "label_shapes"):
            try:
                util.to_list(self.value(one), len(labels))
            except ValueError as error:
                raise ValueError(f"{one}: one is needed for each of label_cols: {error}") from None

    def _check_shapes(self, metadata: util.Metadata) -> None:
        util.check_shape_compatibility(
            metadata,
            self.value("feature_cols"),
            self.value("label_cols"),
            input_shapes=self._input_shapes(),
            label_shapes=self.value("label_shapes"),
        )

    def _input_shapes(self) -> list[Any] | None:
        return None

    def _require_rows(self, what: str, rows: int, ranks: int) -> None:
        if rows < ranks:
            raise ValueError(
                f"{rows} row(s) for {what} are too few for {ranks} rank(s): each needs one."
            )

    def _store(self) -> Store:
        store: Store = self.value("store")
        return store

    def _backend(self) -> Backend:
        backend: Backend | None = self.value("backend")
        return backend or SparkBackend(
            self.value("num_proc"), env=self._environment(), verbose=self.value("verbose")
        )

    def _environment(self) -> dict[str, str]:
        """The ranks' variables."""
        return {}

    def _new_run_id(self) -> str:
        return f"{self.run_prefix}_{int(time.time())}_{secrets.token_hex(3)}"

    def _has_checkpoint(self, run_id: str) -> bool:
        path = self._store().get_checkpoint_path(run_id)
        return path is not None and self._store().exists(path)

    def _last_checkpoint(self, store: Store, run_id: str) -> bytes | None:
        """The checkpoint of the run that this one continues, if any."""
        path = store.get_checkpoint_path(run_id)
        return store.read(path) if path is not None and store.exists(path) else None

    # ---- the framework's part ----

    @abstractmethod
    def _training(
        self, plan: TrainingPlan, checkpoint: bytes | None
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The function that ranks call, and its arguments after the plan."""

    @abstractmethod
    def _model(self, result: Any, plan: TrainingPlan) -> Any:
        """The transformer, from rank 0's result."""


class HorovodModel(TableParams, Model, Persistent):
    """A trained model, which adds columns of predictions to DataFrames."""

    entries: ClassVar[tuple[Entry, ...]] = MODEL

    def _transform(self, dataset: Any) -> Any:
        labels = self.value("label_columns") or []
        names = self.value("output_cols") or [f"{label}__output" for label in labels]
        for needed in ("model", "feature_columns", "label_columns"):
            if not self.value(needed):
                raise ValueError(f"{type(self).__name__} needs {needed} before transform().")
        if len(names) != len(labels):
            raise ValueError(
                f"setOutputCols: {len(names)} name(s) were given ({', '.join(names)}), but the "
                f"model has {len(labels)} output(s), for {', '.join(labels)}."
            )
        metadata = self.value("_metadata") or {}
        outputs = [
            (name, _spark_type(metadata, label, dataset), metadata.get(label, {}).get("outputs"))
            for name, label in zip(names, labels, strict=True)
        ]
        return with_predictions(
            dataset,
            self._loader(),
            self.value("feature_columns"),
            outputs,
            self.value("batch_size"),
        )

    @abstractmethod
    def _loader(self) -> Callable[[], Predict]:
        """A function that is sent to the tasks, and makes the predictor there."""


def _spark_type(metadata: util.Metadata, label: str, df: Any) -> Any:
    """The label's type in the training data, or in the DataFrame if it has the label."""
    if label in metadata:
        name = metadata[label]["spark_data_type"]
        if name.startswith("decimal"):  # predictions are floating-point numbers
            return T.DoubleType()
        return VectorUDT() if name == "vector" else _SCALARS.get(name)
    kind = df.schema[label].dataType if label in df.columns else T.DoubleType()
    return T.DoubleType() if isinstance(kind, T.DecimalType) else kind


_SCALARS = {
    kind.simpleString(): kind
    for kind in (
        *(T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType()),
        *(T.FloatType(), T.DoubleType(), T.BooleanType()),
    )
}
