"""`watch --log-to`: what the tracker's own reader finds is the record, to the last digit."""

import json
import math
import sys

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import UsageError
from modelscope_cli.watching import trackers


@pytest.fixture(scope="module")
def record():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with ms.watch(model, optimizer) as watched:
        for step in range(5):
            x = torch.randn(16, 4) if step != 3 else torch.full((16, 4), 1e38)  # the loss is not finite
            loss = nn.functional.cross_entropy(model(x), torch.randint(2, (16,)))
            optimizer.zero_grad()
            loss.backward()
            if step != 3:
                optimizer.step()
    return watched.record()


@pytest.fixture
def cwd(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def expected(record):
    """Return what the record says, by name and step, without the code that is tested."""
    found = {}
    for layer in record.layers:
        for name in ("mean", "std", "zero_fraction", "grad_norm", "nan_count"):
            values = zip(layer.series.step, getattr(layer.series, name), strict=True)
            found[f"layers/{layer.name}/{name}"] = dict(values)
    for one in record.parameters:
        for name in ("grad_norm", "weight_norm", "update_ratio"):
            values = zip(one.series.step, getattr(one.series, name), strict=True)
            found[f"parameters/{one.name}/{name}"] = dict(values)
    (loss,), (lr,) = record.loss, record.lr
    found["loss/SGD"] = dict(zip(loss.step, loss.value, strict=True))
    found["lr/SGD/0"] = dict(zip(lr.step, lr.value, strict=True))
    return {name: {step: float(x) for step, x in one.items() if x is not None} for name, one in found.items()}


def agree(written, record, prefix="", change=str):
    for name, series in expected(record).items():
        ours = written[change(prefix + name)]
        assert ours.keys() == series.keys(), name
        assert all(ours[step] == x or math.isnan(x) for step, x in series.items()), name


def test_tensorboard(record, cwd):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    where = trackers.find_tracker("tensorboard:tb")(record)
    assert where == "tb: tensorboard --logdir tb"
    events = EventAccumulator("tb", size_guidance={"tensors": 0, "histograms": 0}).Reload()
    written = {
        tag: {one.step: float(tensor_util.make_ndarray(one.tensor_proto)) for one in events.Tensors(tag)}
        for tag in events.Tags()["tensors"]
        if tag != "verdict/text_summary"
    }
    agree(written, record)
    text = tensor_util.make_ndarray(events.Tensors("verdict/text_summary")[0].tensor_proto).item().decode()
    assert "cannot tell yet" in text
    layer = record["0"]
    for one, counts in zip(
        events.Histograms("layers/0/magnitudes"), layer.series.histogram.counts, strict=True
    ):
        limits = layer.series.histogram.edges
        full = dict(zip(one.histogram_value.bucket_limit, one.histogram_value.bucket, strict=True))
        assert full[limits[0]] == counts[0]
        assert sum(full.values()) == sum(counts)
        assert {edge: n for edge, n in full.items() if n} == {
            edge: n for edge, n in zip((*limits, limits[-1] * 16), counts, strict=True) if n
        }
    assert ms.read("tb/modelscope.html").to_dict() == record.to_dict()


def entries(data):
    """Yield the records of a file of wandb: a log of LevelDB behind a header of seven bytes."""
    place, whole = 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # the only part, or the last
            yield whole
            whole = b""


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_wandb_stays_offline(record, cwd, monkeypatch):
    wandb = pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.delenv("WANDB_MODE", raising=False)
    where = trackers.find_tracker("wandb:digits")(record)
    assert "wandb sync" in where
    wandb.teardown()  # its process writes the rest
    (file,) = cwd.glob("wandb/offline-run-*/*.wandb")
    written, histograms = {}, []
    for entry in entries(file.read_bytes()):
        history = wandb_internal_pb2.Record.FromString(entry).history
        row = {"/".join(item.nested_key) or item.key: item for item in history.item}
        histograms += [
            row[values].value_json for values in row if values == "modelscope/layers/0/magnitudes/values"
        ]
        for name, item in row.items():
            value = getattr(item, item.WhichOneof("value") or "value_json")
            step = row.get("modelscope/step")
            step = step and int(getattr(step, step.WhichOneof("value") or "value_json"))
            written.setdefault(name, {})[step] = value
    assert [tuple(json.loads(text)) for text in histograms] == list(record["0"].series.histogram.counts)
    numbers = {
        name: {step: float(str(value).strip('"')) for step, value in one.items()}
        for name, one in written.items()
        if name.startswith(("modelscope/layers", "modelscope/par", "modelscope/l"))
        and "magnitudes" not in name
    }
    agree(numbers, record, "modelscope/")
    assert any(name.startswith("modelscope/page/") for name in written)


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_mlflow(record, cwd, monkeypatch):
    mlflow = pytest.importorskip("mlflow", exc_type=ImportError)
    pytest.importorskip("sqlalchemy", exc_type=ImportError)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///runs.db")
    trackers.find_tracker("mlflow")(record)
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("modelscope").experiment_id])
    written = {
        name: {one.step: one.value for one in client.get_metric_history(run.info.run_id, name)}
        for name in run.data.metrics
    }
    agree(written, record, "modelscope/")
    assert "cannot tell yet" in run.data.tags["modelscope.verdict"]
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["modelscope.html"]


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_trackio(record, cwd, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(cwd / "kept"))
    pytest.importorskip("trackio", exc_type=ImportError)
    from trackio.sqlite_storage import SQLiteStorage

    trackers.find_tracker("trackio:digits")(record)
    (name,) = SQLiteStorage.get_runs("digits")
    written = {}
    for row in SQLiteStorage.get_logs("digits", name):
        for key, value in row.items():
            if isinstance(value, int | float):
                written.setdefault(key, {})[row["step"]] = value
    agree(written, record, "modelscope/")
    assert list((cwd / "kept" / "artifacts").rglob("*"))


@pytest.mark.parametrize(("text", "message", "hint"), [
    ("tensorbord:runs", "'tensorbord:runs' is not a tracker", "did you mean tensorboard:runs"),
    ("wandb:digits", "'--log-to wandb:digits' needs wandb, which is not installed", "pip install wandb"),
])  # fmt: skip
def test_refused_before_anything_runs(text, message, hint, monkeypatch, cwd):
    monkeypatch.setitem(sys.modules, "wandb", None)
    (cwd / "train.py").write_text("raise SystemExit(9)")
    with pytest.raises(UsageError) as refusal:
        ms.watch("train.py", log_to=text)
    assert refusal.value.message == message
    assert refusal.value.hint.startswith(hint)


def test_a_tracker_that_fails_leaves_the_training_alone(monkeypatch, cwd, capsys):
    def broken(module, where, run):
        sys.stdout.write("hello")
        raise RuntimeError("no\nspace")

    monkeypatch.setitem(trackers._TRACKERS, "mlflow", ("json", "json", broken))
    model = nn.Linear(2, 1)
    warned = []

    class Progress:
        note = say = staticmethod(lambda text: None)
        warn = staticmethod(warned.append)

    with ms.watch(model, log_to="mlflow", progress=Progress()):
        model(torch.ones(3, 2)).sum().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
    assert warned[0] == "the run was not logged: mlflow: RuntimeError: no space"
    assert not capsys.readouterr().out
