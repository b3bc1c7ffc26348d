"""Estimators on a real Spark: what is trained, what is predicted, what is kept."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed")
pytest.importorskip("torch")
pytest.importorskip("pyarrow")

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.linalg import DenseVector, SparseVector, Vectors, VectorUDT
from pyspark.sql import functions as F
from pyspark.sql import types as T
from rank_programs import estimator_rank
from support.jobs.ranks import run_ranks
from support.tiers import EVERY

from hvdtune.spark.common import util
from hvdtune.spark.common.backend import Backend, LocalBackend, SparkBackend
from hvdtune.spark.common.params import ESTIMATOR, MODEL
from hvdtune.spark.common.store import Store
from hvdtune.spark.torch import TorchEstimator, TorchModel
from hvdtune.spark.torch.datamodule import TorchDataModule
from hvdtune.spark.torch.objective import constructed
from hvdtune.torch import Compression

# What the ranks get of this file goes with its code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

PYTHONPATH = os.environ.get("PYTHONPATH")
LIGHTNINGS = "PYTORCH_NVML_BASED_CUDA_CHECK"
WEIGHTS = np.array([1.0, -2.0, 0.5, 3.0])
ROWS = 120


class RanksBackend(Backend):
    """Ranks as other tests start them: forked from a process that has PyTorch."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.output = ""

    def run(
        self,
        fn: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        call = cloudpickle.dumps((fn, tuple(args), dict(kwargs or {})))
        # The session's path is for Spark's workers, and what Lightning sets when it is imported is
        # for its own process; with either, ranks cannot be forked.
        own = {**(env or {}), "PYTHONPATH": PYTHONPATH, LIGHTNINGS: None}
        result = run_ranks(self.count, estimator_rank.run, dict(env or {}), call, env=own)
        self.output = result[0].stdout
        return list(result.values)

    def num_processes(self) -> int:
        return self.count


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The JVM and its Python workers serve many tests: `classic_spark` looks at the end."""
    monkeypatch.setenv("HVDTUNE_AUTOTUNE_STORE", "")
    monkeypatch.setenv("HVDTUNE_TEST_DIRECTORY", str(tmp_path))


@pytest.fixture
def store(tmp_path: Path) -> Any:
    return Store.create(str(tmp_path / "store"))


@pytest.fixture(scope="module")
def df(classic_spark: Any) -> Any:
    """Features as columns, dense and sparse vectors and arrays; labels of several types."""
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, 4))
    y = x @ WEIGHTS + 1.0
    rows = [
        (
            *map(float, one),
            Vectors.dense(one),
            Vectors.sparse(4, [(0, float(one[0])), (3, float(one[3]))]),
            [float(value) for value in one],
            float(label),
            int(label > 0),
            Vectors.dense([label, -label]),
            float(number % 2),
            number % 4 == 0,
        )
        for number, (one, label) in enumerate(zip(x, y, strict=True))
    ]
    schema = T.StructType(
        [
            *(T.StructField(name, T.DoubleType()) for name in "abcd"),
            T.StructField("dense", VectorUDT()),
            T.StructField("sparse", VectorUDT()),
            T.StructField("array", T.ArrayType(T.DoubleType())),
            T.StructField("y", T.DoubleType()),
            T.StructField("positive", T.IntegerType()),
            T.StructField("pair", VectorUDT()),
            T.StructField("weight", T.DoubleType()),
            T.StructField("held_out", T.BooleanType()),
        ]
    )
    return classic_spark.createDataFrame(rows, schema).repartition(3).cache()


def linear(outputs: int = 1, inputs: int = 4) -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(inputs, outputs)


def estimator(store: Any, model: Any = None, ranks: int = 2, **more: Any) -> TorchEstimator:
    model = model or linear()
    given: dict[str, Any] = {
        "backend": RanksBackend(ranks),
        "store": store,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05),
        "loss": torch.nn.functional.mse_loss,
        "feature_cols": ["dense"],
        "label_cols": ["y"],
        "batch_size": 10,
        "epochs": 4,
        "verbose": 0,
        "random_seed": 1,
        "use_gpu": False,
        "partitions_per_process": 2,
    }
    return TorchEstimator(**{**given, **more})


def losses(model: Any, stage: str = "train") -> list[float]:
    return [told[stage]["loss"] for told in model.getHistory()]


def predicted(model: Any, *features: np.ndarray[Any, Any]) -> Any:
    with torch.no_grad():
        return model(*(torch.tensor(one, dtype=torch.float32) for one in features))


# ---- training and predicting ----


def test_fit_and_transform(df: Any, store: Any):
    backend = RanksBackend(2)
    net = linear()
    first = net.weight.detach().clone()
    model = estimator(
        store, net, backend=backend, validation="held_out", verbose=1, epochs=6,
        metrics=[torch.nn.functional.l1_loss], gradient_compression=Compression.fp16,
    ).fit(df)  # fmt: skip
    assert isinstance(model, TorchModel)
    told = model.getHistory()
    assert [one["epoch"] for one in told] == list(range(6))
    for stage in ("train", "validation"):
        assert losses(model, stage)[-1] < losses(model, stage)[0] / 20
        [[metric]] = told[0][stage]["all_metrics"]
        assert metric["l1_loss_y"] > 0
    assert "epoch 6/6: loss" in backend.output
    assert torch.equal(net.weight, first)  # the estimator's own is as it was

    out = model.transform(df)
    assert out.columns == [*df.columns, "y__output"]
    assert out.schema["y__output"].dataType == T.DoubleType()
    rows = out.select("dense", "y__output").collect()
    features = np.stack([row["dense"].toArray() for row in rows])
    expected = predicted(model.getModel(), features).numpy()[:, 0]
    assert np.abs(np.array([row["y__output"] for row in rows]) - expected).max() <= 1e-6
    with pytest.MonkeyPatch.context() as older:
        older.delattr(F, "arrow_udf")  # as before Spark 4.1
        assert model.transform(df).select("dense", "y__output").collect() == rows
    # The store has the rows, a half of them apart, and the state at the end.
    trained = store.get_parquet_dataset(store.get_train_data_path(0)).read().num_rows
    val = store.get_parquet_dataset(store.get_val_data_path(0)).read().num_rows
    assert (trained, val) == (ROWS * 3 // 4, ROWS // 4)
    assert store.exists(store.get_checkpoint_path(model.getRunId()))


@pytest.mark.parametrize(("ranks", "passes"), [(1, 1), (1, 2), (2, 1)])
def test_as_a_single_process_would(df: Any, store: Any, ranks: int, passes: int):
    """With one rank the same batches, or two backward passes a step, one for each half of a batch;
    with two ranks, the mean over two halves at twice the rate."""
    model = estimator(
        store, ranks=ranks, shuffle=False, batch_size=ROWS // ranks // passes,
        backward_passes_per_step=passes,
    ).fit(df)  # fmt: skip
    table = store.get_parquet_dataset(store.get_train_data_path(0)).read()
    x = torch.tensor(np.stack(table["dense"].to_numpy()), dtype=torch.float32)
    y = torch.tensor(table["y"].to_numpy(), dtype=torch.float32)[:, None]
    net = linear()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05 * ranks)
    for _ in range(4):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    for ours, theirs in zip(model.getModel().parameters(), net.parameters(), strict=True):
        assert (ours - theirs).abs().max() <= 1e-6


@pytest.mark.parametrize("compress", [False, True] if EVERY else [True])
def test_vectors_and_labels_of_several_types(df: Any, store: Any, compress: bool):
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = linear(1, 8), linear(2, 8)
            self.third = linear(2, 8)

        def forward(self, dense: Any, sparse: Any, a: Any) -> Any:
            assert dense.shape[1:] == (2, 2)
            assert a.shape[1:] == (1,)
            x = torch.cat([dense.reshape(-1, 4), sparse[:, :3], a], 1)
            return self.one(x), self.two(x), self.third(x)

    def of_first(output: Any, label: Any) -> Any:
        return (output[:, 0] - label).abs().mean()

    net = Net()
    model = estimator(
        store, net, feature_cols=["dense", "sparse", "a"], label_cols=["positive", "pair", "b"],
        input_shapes=[[-1, 2, 2], [4], [1]], loss_weights=[0.5, 0.25, 0.25],
        loss=[torch.nn.MSELoss(), torch.nn.functional.mse_loss, of_first],
        compress_sparse_cols=compress, validation=0.25,
    ).fit(df)  # fmt: skip
    assert losses(model)[-1] < losses(model)[0]
    stored = store.get_parquet_dataset(store.get_train_data_path(0)).schema
    assert str(stored.field("sparse").type).startswith("struct" if compress else "list")
    out = model.setOutputCols(["p", "q", "r"]).transform(df)
    kinds = {name: out.schema[name].dataType for name in "pqr"}
    assert kinds == {"p": T.IntegerType(), "q": VectorUDT(), "r": VectorUDT()}
    row = out.select("dense", "sparse", "a", "p", "q", "r").first()
    p, q, r = predicted(
        model.getModel(), row["dense"].toArray().reshape(1, 2, 2),
        row["sparse"].toArray()[None], np.array([[row["a"]]]),
    )  # fmt: skip
    assert row["p"] == round(p.item())
    assert isinstance(row["q"], DenseVector)
    assert np.allclose(row["q"].toArray(), q[0], atol=1e-6)
    assert np.allclose(row["r"].toArray(), r[0], atol=1e-6)


def test_classes_sample_weights_and_arrays(df: Any, store: Any):
    """A row of weight 0 teaches nothing: all labels with such weights are wrong."""
    wrong = df.selectExpr(
        "array", "CASE WHEN weight = 0 THEN 1 - positive ELSE positive END AS class", "weight"
    )
    model = estimator(
        store, linear(2), loss=torch.nn.CrossEntropyLoss(), feature_cols=["array"], epochs=12,
        label_cols=["class"], sample_weight_col="weight", inmemory_cache_all=True,
    ).fit(wrong)  # fmt: skip
    out = model.transform(df.select("array", "positive")).collect()
    right = [row["class__output"].toArray().argmax() == row["positive"] for row in out]
    assert np.mean(right) > 0.9


def test_own_step_and_own_data(df: Any, store: Any):
    """A training step, a data module, a loss and a transformation of one's own."""

    class Doubled(TorchDataModule):
        short_name = "doubled"

        def train_data(self) -> Any:
            assert (self.shard_count, self.train_batch_size) == (2, 10)
            for batch in super().train_data():
                yield {**batch, "y": batch["y"] * 2}

    def step(model, optimizer, transform_outputs, loss_fn, inputs, labels, weights):
        optimizer.zero_grad()
        outputs, labels = transform_outputs(model(*inputs), labels)
        loss = loss_fn(outputs, labels, weights) + 100
        loss.backward()
        optimizer.step()
        return outputs, loss

    def swap(frame: pd.DataFrame) -> pd.DataFrame:
        frame["dense"] = frame["dense"].map(lambda row: row[:3].astype(np.float32))
        return frame

    model = estimator(
        store, linear(1, 3), train_minibatch_fn=step, data_module=Doubled, loss=None,
        loss_constructors=[lambda: torch.nn.MSELoss()], transformation_fn=swap, epochs=1,
        transformation_edit_fields=[("dense", np.float32, (3,), False)],
    ).fit(df)  # fmt: skip
    assert losses(model)[0] > 100


def test_loss_constructors_get_what_they_name():
    known = {"model": 1, "optimizer": 2, "plan": 3}
    made = constructed(
        [
            lambda **given: given,
            lambda model, **given: (model, given),
            lambda optimizer=0, *, plan: (optimizer, plan),
            lambda *model: model,
            lambda: "nothing",
            torch.nn.MSELoss,
        ],
        known,
    )
    assert made[:5] == [known, (1, {"optimizer": 2, "plan": 3}), (2, 3), (), "nothing"]
    assert made[5].reduction == "mean"


# ---- what is kept ----


def test_resuming_and_data_that_lie_there(df: Any, store: Any, tmp_path: Path):
    df.select("dense", "y").limit(60).write.parquet(store.get_train_data_path())
    with pytest.raises(ValueError, match="no column 'z'"):
        estimator(store, label_cols=["z"]).fit_on_parquet()
    first = estimator(store, run_id="mine", feature_cols=["dense"], compress_sparse_cols=True)
    model = first.fit_on_parquet()
    assert model.getRunId() == "mine"
    again = first.fit_on_parquet(params={first.epochs: 1})
    assert len(again.getHistory()) == 1
    assert losses(again)[0] < losses(model)[-1] < losses(model)[0]
    # The rate is not multiplied by the number of ranks a second time.
    assert again.getOptimizer().param_groups[0]["lr"] == pytest.approx(0.1)
    unkept = Store.create(str(tmp_path / "other"), save_runs=False)
    df.select("dense", "y").write.parquet(unkept.get_train_data_path(5))
    estimator(unkept, run_id="mine", epochs=1).fit_on_parquet(dataset_idx=5)
    assert not unkept.exists(unkept.get_run_path("mine"))


def test_without_validation_nobody_looks_for_its_data(store: Any, monkeypatch: pytest.MonkeyPatch):
    """A store on Databricks would wait for them."""
    folder = Path(store.get_localized_path(store.get_train_data_path()))
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"dense": [[1.0] * 4] * 3, "y": [1.0] * 3}), folder / "p.parquet")
    looks, look = [], store.is_parquet_dataset
    monkeypatch.setattr(store, "is_parquet_dataset", lambda path: looks.append(path) or look(path))
    for validation, folders in ((None, 1), (0.5, 2)):
        with pytest.raises(ValueError, match=r"3 row\(s\) for training are too few for 200"):
            estimator(store, validation=validation, backend=RanksBackend(200)).fit_on_parquet()
        paths = [store.get_train_data_path(), store.get_val_data_path()]
        assert looks == paths[:folders]
        looks.clear()


def test_data_are_written_once(df: Any, store: Any):
    def prepare(frame: Any, **more: Any) -> tuple[int, set[str]]:
        with util.prepare_data(2, store, frame, ["y"], ["dense"], **more) as number:
            path = store.get_train_data_path(number)
            return number, set(store.get_parquet_dataset(path).files)

    number, files = prepare(df)
    assert prepare(df) == (number, files)
    assert prepare(df.select("*")) == (number, files)  # the same query
    assert prepare(df.filter("a > 0"))[0] == number + 1
    assert prepare(df, validation=0.5)[0] == number + 2
    # Removed files are written again.
    for file in files:
        Path(file).unlink()
    assert prepare(df)[0] == number + 3
    util.clear_training_cache()
    with (
        util.prepare_data(2, store, df, ["y"], ["dense"]) as first,
        util.prepare_data(2, store, df.limit(3), ["y"], ["dense"]) as second,
    ):
        assert first != second


def test_metadata(df: Any, store: Any):
    columns = ["a", "dense", "sparse", "array", "positive"]
    with util.prepare_data(2, store, df, ["positive"], columns, compress_sparse=True) as number:
        rows, val_rows, metadata, size = util.get_simple_meta_from_parquet(
            store, ["positive"], columns, dataset_idx=number
        )
    assert (rows, val_rows) == (ROWS, 0)
    assert {name: (told["spark_data_type"], told["shape"]) for name, told in metadata.items()} == {
        "a": ("double", 1),
        "dense": ("vector", 4),
        "sparse": ("vector", 4),
        "array": ("array<double>", 4),
        "positive": ("int", 1),
    }
    assert 50 < size < 200
    assert util.get_metadata(df.schema, ["dense", "a"])["a"]["shape"] == 1
    train, val, share = util.train_val_split(df, "weight")  # a number: those above 0
    assert (train.count(), val.count(), share) == (ROWS // 2, ROWS // 2, 0.5)
    assert "weight" not in train.columns


def test_saving_and_pipelines(df: Any, store: Any, tmp_path: Path):
    stages = [
        VectorAssembler(inputCols=list("abcd"), outputCol="assembled"),
        estimator(store, feature_cols=["assembled"]),
    ]
    pipeline = Pipeline(stages=stages)
    pipeline.write().overwrite().save(str(tmp_path / "pipeline"))
    loaded = Pipeline.load(str(tmp_path / "pipeline")).getStages()[1]
    assert loaded.getBatchSize() == 10
    fitted = pipeline.fit(df)
    fitted.write().overwrite().save(str(tmp_path / "fitted"))
    expected = [row["y__output"] for row in fitted.transform(df).collect()]
    again = PipelineModel.load(str(tmp_path / "fitted"))
    assert [row["y__output"] for row in again.transform(df).collect()] == expected
    assert again.stages[1].getHistory() == fitted.stages[1].getHistory()
    assert again.stages[1].getOptimizer().param_groups[0]["lr"] == pytest.approx(0.1)
    # A loaded estimator trains: its optimizer has the loaded model's parameters.
    assembled = stages[0].transform(df)
    model = loaded.fit(assembled)
    assert losses(model)[-1] < losses(model)[0]
    model.save(str(tmp_path / "model"))
    with pytest.raises(ValueError, match=r"holds a .*TorchModel, not a .*TorchEstimator"):
        TorchEstimator.load(str(tmp_path / "model"))


# ---- parameters and mistakes ----


def test_parameters(store: Any):
    one = estimator(store)
    for entry in ESTIMATOR:
        name = "".join(word.capitalize() for word in entry.name.split("_"))
        assert hasattr(one, entry.name)
        getter, setter = getattr(one, f"get{name}"), getattr(one, f"set{name}")
        assert setter(None) is one
        assert getter() == entry.default, entry.name
    assert one.setInMemoryCacheAll(True).getInmemoryCacheAll() is True
    assert one.setShufflingBufferSize(5).getShuffleBufferSize() == 5
    assert one.setEpochs(3).copy({one.epochs: 7}).getEpochs() == 7
    assert one.getEpochs() == 3
    assert "batch_size" in one.explainParams()
    assert {entry.name for entry in MODEL} >= {"history", "model", "output_cols", "_metadata"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batch_size": 0}, "batch_size=0 is not accepted: give a whole number, 1 or more"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step=0 .* 1 or more"),
        ({"validation": 1.5}, "validation=1.5 is not accepted: give a fraction"),
        ({"validation": "nobody"}, "no column 'nobody'"),
        ({"validation": "dense"}, "'dense' names a column of type .*vector"),
        ({"num_proc": 2}, "backend and num_proc exclude each other"),
        ({"loss_constructors": [torch.nn.MSELoss]}, "not both: both were"),
        ({"loss": None}, "either loss or loss_constructors"),
        ({"loss": [torch.nn.MSELoss()] * 2}, "loss: one is needed for each of label_cols"),
        ({"loss_weights": [1.0, 2.0]}, "loss_weights: one is needed for each"),
        ({"feature_cols": None}, "TorchEstimator needs feature_cols"),
        ({"label_cols": ["nothing"]}, "no column 'nothing'; it has a, b"),
        ({"optimizer": None}, "needs optimizer"),
        ({"optimizer": torch.optim.SGD(linear().parameters())}, "not the model's"),
        ({"sample_weight_col": "weight", "loss": lambda o, y: 0}, "attribute nor an argument"),
        ({"input_shapes": [[-1, 5]]}, r"'dense' has 4 number\(s\) per row, but input_shapes"),
        ({"backend": RanksBackend(200)}, r"120 row\(s\) for training are too few for 200"),
    ],
)
def test_mistakes(df: Any, store: Any, given: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        estimator(store, **given).fit(df)


def test_other_mistakes(df: Any, store: Any):
    with pytest.raises(TypeError, match="no parameter 'epoch'; did you mean 'epochs'"):
        TorchEstimator(epoch=1)
    with pytest.raises(ValueError, match=r"model='resnet' is not accepted: give a torch.nn.Module"):
        TorchEstimator(model="resnet")
    with pytest.raises(ValueError, match="TorchEstimator needs store"):
        estimator(None).fit(df)
    with pytest.raises(ValueError, match="too few for 2 rank"):
        estimator(store).fit(df.filter("a > 100").union(df.limit(1)))
    with pytest.raises(ValueError, match=r"no rows|no Parquet"):
        estimator(store).fit(df.filter("a > 100"))
    model = TorchModel(model=linear(), feature_columns=["dense"], label_columns=["y"])
    with pytest.raises(ValueError, match=r"'y__output' already"):
        model.transform(model.transform(df))
    with pytest.raises(ValueError, match="no column 'dense'"):
        model.transform(df.drop("dense"))
    with pytest.raises(ValueError, match=r"2 name\(s\) were given"):
        model.copy().setOutputCols(["u", "v"]).transform(df)
    with pytest.raises(Exception, match=r"column .dense. has .* missing value"):
        model.transform(df.selectExpr("IF(a > 0, array, NULL) AS dense")).collect()
    # Without metadata the first row tells how much a row of output has.
    assert model.transform(df).schema["y__output"].dataType == T.DoubleType()
    assert model.setModel(linear(3)).transform(df).schema["y__output"].dataType == VectorUDT()


def test_a_rank_that_fails(df: Any, store: Any):
    def loss(output: Any, label: Any) -> Any:
        raise RuntimeError("this loss is bad")

    with pytest.raises(AssertionError, match="this loss is bad"):
        estimator(store, loss=loss).fit(df)
    ragged = df.selectExpr("IF(a > 0, array, slice(array, 1, 3)) AS dense", "y")
    with pytest.raises(Exception, match="arrays of 3 to 4 values"):
        estimator(store, ranks=1, loss=torch.nn.MSELoss()).fit(ragged)


# ---- backends and other frameworks ----


def test_local_backend(df: Any, store: Any):
    def told() -> list[str]:
        return [os.environ[name] for name in ("A", "B", "HOROVOD_RANK", "HOROVOD_SIZE")]

    found = LocalBackend(2, env={"A": "1", "B": "1"}).run(told, env={"B": "2"})
    assert found == [["1", "2", "0", "2"], ["1", "2", "1", "2"]]
    model = estimator(store, backend=LocalBackend(1, env={"A": "1"}), epochs=1).fit(df)
    assert len(model.getHistory()) == 1


def test_spark_backend(df: Any, store: Any):
    assert SparkBackend().num_processes() == 2
    model = estimator(store, backend=None, num_proc=2).fit(df)
    assert losses(model)[-1] < losses(model)[0]


def test_lightning(df: Any, store: Any):
    pl = pytest.importorskip("lightning.pytorch")
    from hvdtune.spark import lightning

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = linear()

        def forward(self, x: Any) -> Any:
            return self.net(x)

        def training_step(self, batch: Any, index: int) -> Any:
            loss = torch.nn.functional.mse_loss(
                self(batch["dense"].float())[:, 0], batch["y"].float()
            )
            self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val_rows", float(len(batch["y"])), sync_dist=True)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
            # After each epoch the rate is again what the scheduler began with.
            constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
            return [optimizer], [constant]

    class Note(pl.Callback):
        def on_fit_start(self, trainer: Any, module: Any) -> None:
            print("noted", trainer.world_size)

        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            print(f"rate {trainer.optimizers[0].param_groups[0]['lr']:.3f}")

        on_train_end = on_train_epoch_start

    backend = RanksBackend(2)
    one = lightning.TorchEstimator(
        backend=backend, store=store, model=Module(), feature_cols=["dense"], label_cols=["y"],
        batch_size=10, epochs=3, verbose=0, validation=0.25, run_id="l", random_seed=0,
        callbacks=[Note()], partitions_per_process=2, terminate_on_nan=True,
    )  # fmt: skip
    model = one.fit(df)
    assert "noted 2" in backend.output
    told = model.getHistory()
    assert [one["epoch"] for one in told] == [0, 1, 2]
    assert told[-1]["train_loss"] < told[0]["train_loss"] / 2
    assert told[0]["val_rows"] == 10
    assert len(store.get_checkpoints("l")) == 1
    assert re.findall(r"rate (\S+)", backend.output) == ["0.100"] * 4
    fewer = RanksBackend(1)
    more = one.setEpochs(1).setBackend(fewer).fit(df).getHistory()
    assert len(more) == 1
    assert more[0]["train_loss"] < told[-1]["train_loss"]
    assert re.findall(r"rate (\S+)", fewer.output) == ["0.050"] * 2
    assert not list(Path(store.get_localized_path(store.get_run_path("l"))).glob("**/*resumed*"))
    row = model.transform(df).select("dense", "y__output").first()
    expected = predicted(model.getModel(), row["dense"].toArray()[None])
    assert row["y__output"] == pytest.approx(expected.item(), abs=1e-6)

    class Data(pl.LightningDataModule):
        def __init__(self, train_dir: str, cur_shard: int, shard_count: int, **more: Any) -> None:
            super().__init__()
            self.folder, self.shard, self.shards = train_dir, cur_shard, shard_count
            self.size = more["train_batch_size"]

        def train_dataloader(self) -> Any:
            table = pq.read_table(self.folder).slice(self.shard).to_pandas()[:: self.shards]
            columns = [torch.tensor(np.stack(table[name].to_numpy())) for name in ("dense", "y")]
            rows = list(zip(*columns, strict=True))
            return torch.utils.data.DataLoader(
                [{"dense": dense, "y": y} for dense, y in rows], batch_size=self.size
            )

        def teardown(self, stage: str) -> None:
            print("torn down", stage == "fit")

    net, alone = linear(), RanksBackend(1)
    plain = lightning.TorchEstimator(
        data_module=Data,
        backend=alone, store=store, model=net, loss=torch.nn.MSELoss(), batch_size=10, verbose=0,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.05), feature_cols=["dense"], epochs=2,
        label_cols=["y"], partitions_per_process=2,
    )  # fmt: skip
    told = plain.fit(df).getHistory()
    assert told[-1]["train_loss"] < told[0]["train_loss"]
    assert "torn down True" in alone.output
    assert lightning.estimator.MIN_PL_VERSION == "2.6"
    # The ranks take the package whose class the module is.
    assert plain._environment() == {"HVDTUNE_LIGHTNING_PACKAGE": "lightning.pytorch"}
    ended = subprocess.run(
        [sys.executable, "-c", "from hvdtune.lightning.package import pl; print(pl.__name__)"],
        env={**os.environ, "HVDTUNE_LIGHTNING_PACKAGE": "pytorch_lightning"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.stdout == "pytorch_lightning\n" or "No module named" in ended.stderr
    for given, words in (({"num_gpus": 1}, "CPUs"), ({"optimizer": None}, "needs optimizer")):
        with pytest.raises(ValueError, match=words):
            plain.copy({getattr(plain, name): value for name, value in given.items()}).fit(df)


def test_keras(df: Any, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if "KERAS_BACKEND" not in os.environ:
        monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="Keras is not installed")
    from hvdtune.spark.keras import KerasEstimator, KerasModel
    from hvdtune.spark.keras.batches import batches

    keras.utils.set_random_seed(0)
    inputs = [keras.Input((4,)), keras.Input((1,))]
    both = keras.layers.Concatenate()(inputs)
    net = keras.Model(inputs, [keras.layers.Dense(1)(both), keras.layers.Dense(2)(both)])
    backend = RanksBackend(2)

    class Note(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            print("noted")

    class Board(keras.callbacks.TensorBoard):
        """Without TensorFlow it cannot write."""

        def set_model(self, model: Any) -> None:
            import hvdtune.keras as hvd

            print("board of", hvd.rank(), self.log_dir)

        on_train_begin = on_train_end = on_epoch_begin = on_epoch_end = on_train_batch_begin = (
            on_train_batch_end
        ) = on_test_begin = on_test_end = lambda self, *words, **more: None

    one = KerasEstimator(
        backend=backend, store=store, model=net, optimizer=keras.optimizers.SGD(0.05),
        loss=["mse", keras.losses.MeanSquaredError()], loss_weights=[0.5, 0.5],
        metrics=[["mae"], ["mse", "mae"]], epochs=3, verbose=0,
        feature_cols=["sparse", "a"], label_cols=["y", "pair"], batch_size=10,
        validation="held_out", callbacks=[Note(), Board()], run_id="k",
        partitions_per_process=2, sample_weight_col="d_weight", random_seed=0,
    )  # fmt: skip
    weighted = df.selectExpr("*", "1.0D AS d_weight")
    model = one.fit(weighted)
    assert isinstance(model, KerasModel)
    assert "noted" in backend.output
    [board] = re.findall(r"board of (\d) (\S+)", backend.output)
    assert board == ("0", f"{board[1].removesuffix('/logs')}/logs")
    history = model.getHistory()
    assert len(history["loss"]) == len(history["val_loss"]) == 3
    assert history["loss"][-1] < history["loss"][0]
    assert len(history) == 2 * (1 + 2 + 3)
    best = keras.callbacks.ModelCheckpoint(
        "changed.keras", monitor="loss", mode="max", save_best_only=True
    )
    more = one.setEpochs(2).setCheckpointCallback(best).fit(weighted)
    assert more.getHistory()["loss"][0] < history["loss"][0]
    kept = keras.models.load_model(
        store.get_localized_path(f"{store.get_run_path('k')}/best.keras"), compile=False
    )
    for ours, theirs in zip(more.getModel().get_weights(), kept.get_weights(), strict=True):
        assert (ours == theirs).all()

    out = model.transform(df)
    assert out.schema["y__output"].dataType == T.DoubleType()
    assert out.schema["pair__output"].dataType == VectorUDT()
    row = out.select("sparse", "a", "y__output", "pair__output").first()
    assert isinstance(row["sparse"], SparseVector)
    x = [row["sparse"].toArray()[None].astype("float32"), np.array([[row["a"]]], "float32")]
    y, pair = model.getModel().predict_on_batch(x)
    assert row["y__output"] == pytest.approx(float(y[0, 0]), abs=1e-6)
    assert np.allclose(row["pair__output"].toArray(), pair[0], atol=1e-6)
    for saved in (model, one):
        saved.save(str(tmp_path / "saved" / type(saved).__name__))
    again = KerasModel.load(str(tmp_path / "saved" / "KerasModel"))
    assert again.transform(df).select("y__output").first()[0] == row["y__output"]
    loaded = KerasEstimator.load(str(tmp_path / "saved" / "KerasEstimator"))
    assert loaded.getOptimizer().get_config() == one.getOptimizer().get_config()
    with pytest.raises(ValueError, match="KerasEstimator needs loss"):
        KerasEstimator(
            store=store, model=net, optimizer="sgd", feature_cols=["a"], label_cols=["y"]
        ).fit(df)
    # TensorFlow takes no lists from generators.
    columns = SimpleNamespace(
        feature_columns=["sparse", "a"], label_columns=["y", "pair"], label_shapes=None,
        sample_weight_col="w",
    )  # fmt: skip
    rows = {"sparse": x[0], "a": x[1][0], "y": np.zeros(1), "pair": pair, "w": np.ones(1)}
    batch = next(batches(net, columns, [rows]))
    assert [tuple(one.shape for one in part) for part in batch] == [
        ((1, 4), (1, 1)),
        ((1, 1), (1, 2)),
        ((1,), (1,)),
    ]
    assert {type(part) for part in batch} == {tuple}
    assert {one.dtype.name for part in batch for one in part} == {"float32"}
    # A rank's files, as the store has them.
    assert pq.read_table(store.get_localized_path(store.get_val_data_path(0))).num_rows == ROWS // 4


def test_labels_that_pandas_has_written_and_decimals(df, store):
    folder = Path(store.get_localized_path(store.get_train_data_path()))
    folder.mkdir(parents=True)
    table = pa.table({"dense": [[1.0, 2.0, 3.0, 4.0]] * 20, "y": pa.array([3] * 20, pa.int64())})
    pq.write_table(table, folder / "p.parquet")
    model = estimator(store, ranks=1, epochs=1).fit_on_parquet()
    assert model.transform(df.drop("y")).schema["y__output"].dataType == T.LongType()
    priced = df.selectExpr("dense", "CAST(y AS DECIMAL(10,2)) AS price")
    model = estimator(store, ranks=1, epochs=1, label_cols=["price"]).fit(priced)
    assert model.transform(priced).schema["price__output"].dataType == T.DoubleType()


def test_lightning_resumes_from_the_newest_file(store):
    pytest.importorskip("lightning.pytorch")
    from hvdtune.spark import lightning
    from hvdtune.spark.torch.serialization import dumps, loads

    folder = Path(store.get_localized_path(store.get_checkpoint_path("r")))
    folder.mkdir(parents=True)
    for name, epoch in (("epoch=2-step=15", 2), ("last", 9), ("val_loss=0.95-epoch=1", 1)):
        state = {"epoch": epoch, "global_step": 5 * (epoch + 1)}
        (folder / f"{name}.ckpt").write_bytes(dumps(state))
    found = lightning.TorchEstimator()._last_checkpoint(store, "r")
    assert loads(found)["epoch"] == 9
    assert lightning.TorchEstimator()._last_checkpoint(store, "other") is None
