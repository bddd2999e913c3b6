"""Examples of docs/watching.md with their loggers and trainers."""

from __future__ import annotations

import importlib
import json
import re
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from running import ROOT

import pytorch_alloctrace as alloctrace


def read_example(heading: str) -> str:
    """Return the first code block under a heading of docs/watching.md."""
    page = (ROOT / "docs/watching.md").read_text()
    section = page.partition(f"### {heading}\n")[2].partition("\n#")[0]
    match = re.search(r"(?:^    .*\n|^\n(?=    ))+", section, re.M)
    assert match, heading
    return textwrap.dedent(match[0])


def run_example(heading: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(read_example(heading), names)
    return names


@pytest.fixture
def recorded(tmp_path: Path):
    with alloctrace.enable(tmp_path / "t.alloctrace", devices="cpu"):
        tensors = [torch.empty(100)]
        alloctrace.step()
        alloctrace.status(fresh=True)
        yield tensors


@pytest.mark.slow("integrations")
def test_tensorboard_example_writes_scalars(recorded: list[torch.Tensor], tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    names = run_example("TensorBoard")
    with names["SummaryWriter"](tmp_path / "board") as writer:
        for step in (0, 1):
            names["log_memory"](writer, step)

    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    scalars = [(event.step, event.value) for event in events.Scalars("memory/cpu/requested_bytes")]
    assert scalars == [(0, 400.0), (1, 400.0)]


def test_dict_logger_example_logs_json_numbers(recorded: list[torch.Tensor]) -> None:
    logged: list[tuple[dict[str, float], int]] = []

    def log(data: dict[str, float], step: int) -> None:
        logged.append((json.loads(json.dumps(data)), step))  # a logger serializes the numbers

    run_example("Weights & Biases, and loggers like it")["log_memory"](log, 7)

    assert logged[0][1] == 7
    assert logged[0][0]["memory/cpu/allocated_bytes"] == 400


@pytest.mark.slow("integrations")
def test_prometheus_example_exports_gauges(recorded: list[torch.Tensor]) -> None:
    import prometheus_client as prometheus

    names = run_example("Prometheus")
    names["update_memory"]()
    scraped = prometheus.generate_latest().decode()
    prometheus.REGISTRY.unregister(names["memory"])

    assert 'alloctrace{name="cpu/requested_bytes"} 400.0\n' in scraped
    assert 'alloctrace{name="recording"} 1.0\n' in scraped


@pytest.mark.slow("integrations")
def test_lightning_callback_records_steps_and_logs_status(run_program, tmp_path: Path) -> None:
    assert "callbacks=[AlloctraceCallback(" in read_example("Lightning")

    process = run_program(
        """
        import json, torch
        import pytorch_lightning as lightning
        import pytorch_lightning.loggers
        import pytorch_alloctrace as alloctrace
        from pytorch_alloctrace.callbacks.lightning import AlloctraceCallback

        class Model(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(8, 1)
            def training_step(self, batch, number):
                return self.layer(batch[0]).sum()
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        class Logged(lightning.loggers.Logger):
            name = version = "logged"
            metrics = {}
            def log_metrics(self, metrics, step=None):
                self.metrics[step] = metrics
            def log_hyperparams(self, *_): pass

        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(80, 8)), batch_size=2)
        trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", logger=Logged(), log_every_n_steps=10,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            callbacks=[AlloctraceCallback("run.alloctrace", overwrite=True)])
        trainer.fit(Model(), data)
        assert not alloctrace.is_enabled()
        print(json.dumps({step: [m.get("alloctrace/recording"), m.get("alloctrace/events")]
                          for step, m in Logged.metrics.items() if "alloctrace/recording" in m}))
        Model.training_step = lambda self, batch, number: 1 // 0
        trainer.fit_loop.epoch_progress.reset()
        trainer.callbacks[0].__init__("failed.alloctrace")
        try: trainer.fit(Model(), data)
        except ZeroDivisionError: assert not alloctrace.is_enabled()
        """
    )

    logged = json.loads(process.stdout.splitlines()[-1])
    assert sorted(map(int, logged)) == [10, 20, 30, 40]
    assert all(recording == 1 and events > 0 for recording, events in logged.values())
    trace = alloctrace.load(tmp_path / "run.alloctrace")
    assert list(trace.steps()["step"]) == list(range(40)), "each batch must be a step"
    assert trace.integrity.end_reason == "disable"
    assert alloctrace.load(tmp_path / "failed.alloctrace").integrity.ended, "not ended after a failed training"


@pytest.mark.slow("integrations")
def test_transformers_callback_records_steps_and_logs_status(run_program, tmp_path: Path) -> None:
    assert "callbacks=[AlloctraceCallback(" in read_example("transformers")

    process = run_program(
        """
        import json, torch
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
        import pytorch_alloctrace as alloctrace
        from pytorch_alloctrace.callbacks.transformers import AlloctraceCallback
        model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=32, n_positions=16))
        data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(24)]
        arguments = TrainingArguments("out", use_cpu=True, max_steps=6, per_device_train_batch_size=4, logging_steps=2,
                                      report_to=[], save_strategy="no", disable_tqdm=True)
        logged = {}
        names = [f"alloctrace/{name}" for name in ("events", "steps", "cpu/peak_allocated_bytes")]
        callback = AlloctraceCallback(
            "run.alloctrace", overwrite=True, log=lambda n, step: logged.setdefault(step, [n[name] for name in names]))
        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[callback])
        trainer.train()
        assert not alloctrace.is_enabled()
        history = [[entry[name] for name in names] for entry in trainer.state.log_history if "loss" in entry]
        print(json.dumps([history, logged]))
        """,
        TOKENIZERS_PARALLELISM="false",
    )

    history, logged = json.loads(process.stdout.splitlines()[-1])
    assert len(history) == 3 and history == sorted(history) and history[0][0] > 0
    assert [logged[step] for step in ("2", "4", "6")] == history
    assert [steps for _, steps, _ in history] == [2, 4, 6]
    trace = alloctrace.load(tmp_path / "run.alloctrace")
    assert history[-1][2] == trace.peak().bytes
    assert list(trace.steps()["step"]) == list(range(6))
    below = str(trace.diagnose()).partition("trainer.train()\n")[2]
    assert "transformer.h." in below, "modules below the only line of the program"


@pytest.mark.parametrize("trainer", ["lightning", "transformers"])
def test_callbacks_record_steps_log_status_and_end_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: str
) -> None:
    """Use stand-ins for the trainers: the slow tests above run the real trainers."""
    stand_ins = {name: types.ModuleType(name) for name in ("lightning", "lightning.pytorch", "transformers")}
    stand_ins["lightning.pytorch"].Callback = object  # type: ignore[attr-defined]
    stand_ins["transformers"].TrainerCallback = object  # type: ignore[attr-defined]
    for name, module in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, module)
    name = f"pytorch_alloctrace.callbacks.{trainer}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    callback = importlib.import_module(name).AlloctraceCallback(tmp_path / "t.alloctrace", devices="cpu")
    monkeypatch.delitem(sys.modules, name)
    logged: dict[int, dict[str, float]] = {}

    def log(numbers: dict[str, float], step: int) -> None:
        logged[step] = numbers

    logger = types.SimpleNamespace(log_metrics=log)
    state = types.SimpleNamespace(global_step=0, log_every_n_steps=2, loggers=[logger], log_history=[{}])
    names = {
        "lightning": ("on_fit_start", "on_train_batch_end", "on_exception"),
        "transformers": ("on_train_begin", "on_step_end", "on_train_end"),
    }
    begin, end_step, end = (getattr(callback, name) for name in names[trainer])

    begin(*[state] * {"lightning": 2, "transformers": 3}[trainer])
    for number in range(1, 5):
        torch.empty(1000 * number)  # freed at once: only a reading of the trace shows this peak
        state.global_step = number
        end_step(state, state, state)
        if trainer == "transformers" and number % 2 == 0:
            callback.on_log(state, state, state)
            logged[number] = state.log_history.pop()
            state.log_history.append({})
    end(state, state, ValueError())

    assert sorted(logged) == [2, 4] and all(numbers["alloctrace/recording"] == 1 for numbers in logged.values())
    assert [logged[number]["alloctrace/steps"] for number in (2, 4)] == [2, 4]
    assert [logged[number]["alloctrace/cpu/peak_allocated_bytes"] for number in (2, 4)] == [8000, 16000]
    assert not alloctrace.is_enabled()
    assert list(alloctrace.load(tmp_path / "t.alloctrace").steps()["step"]) == [0, 1, 2, 3]
