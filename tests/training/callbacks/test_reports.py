"""What a run tells: lines, a bar, files, and programs that show runs."""

from __future__ import annotations

import io
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from transept.errors import InputError, MissingExtraError, TranseptWarning, UnsupportedError
from transept.training.callbacks import reports
from transept.training.callbacks.progress import ConsoleCallback, clock, metrics_line
from transept.training.callbacks.reports import (
    REPORTS,
    JsonLinesCallback,
    PlotCallback,
    TensorBoardCallback,
    WandbCallback,
    draw_history,
    read_log,
    report_callbacks,
    series,
    smooth,
    sorted_by_split,
)
from transept.training.state import TrainerControl, TrainerState


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def arguments(folder) -> SimpleNamespace:
    values = {"output_dir": str(folder), "disable_tqdm": False, "train_batch_size": 8, "gradient_accumulation_steps": 2}
    return SimpleNamespace(**values, run_name=None, to_dict=lambda: {"seed": 1}, to_json_string=lambda: "{}")


def run(callbacks, folder, updates=10, start=0, tokens=100) -> TrainerState:
    """The events of a run, as the trainer tells them."""
    args, state, control = arguments(folder), TrainerState(max_steps=updates, global_step=start), TrainerControl()

    def tell(event, **more):
        for callback in callbacks:
            getattr(callback, event)(args, state, control, **more)

    def log(logs):
        state.log_history.append({**logs, "step": state.global_step})
        tell("on_log", logs=logs)

    tell("on_train_begin", model=SimpleNamespace(config=None))
    for step in range(start + 1, updates + 1):
        state.global_step, state.epoch = step, step / 5
        state.num_input_tokens_seen += tokens
        tell("on_step_end")
        log({"loss": 1 / step, "grad_norm": 2.0, "learning_rate": 1e-5 * step, "epoch": state.epoch})
        if step % 5 == 0:
            tell("on_prediction_step", eval_dataloader=[1, 2])
            metrics = {"eval_loss": 0.5, "eval_accuracy": step / 10, "eval_runtime": 0.1}
            log(metrics)
            tell("on_evaluate", metrics=metrics)
    log({"train_runtime": 1.0, "train_loss": 0.3})
    tell("on_train_end")
    return state


def test_lines_where_there_is_no_terminal(tmp_path):
    stream = io.StringIO()
    run([ConsoleCallback(stream)], tmp_path)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 12
    assert lines[0].startswith("1/10  epoch 0.20  loss 1  rate 1e-05  norm 2  ")
    assert " tokens/s  0:00 left" in lines[0]
    assert lines[5] == "5/10  epoch 1.00  loss 0.5  accuracy 0.5"
    run([ConsoleCallback(stream)], tmp_path, tokens=0)
    assert " rows/s" in stream.getvalue()


def test_a_bar_on_a_terminal(tmp_path):
    stream = Terminal()
    run([ConsoleCallback(stream)], tmp_path)
    shown = stream.getvalue()
    assert "train 10/10" in shown or "train 9/10" in shown or "train 1/10" in shown
    assert "loss" in shown
    assert "tokens/s" in shown
    assert "10/10  epoch 2.00  loss 0.5  accuracy 1" in shown


def test_times_and_metrics():
    assert [clock(seconds) for seconds in (5, 65, 3661)] == ["0:05", "1:05", "1:01:01"]
    assert (
        metrics_line({"eval_loss": 0.25, "eval_entity_f1": 0.5, "eval_samples_per_second": 3.0}) == "loss 0.25  entity f1 0.5"
    )


def test_the_log_is_the_history(tmp_path):
    state = run([JsonLinesCallback()], tmp_path)
    path = tmp_path / "log.jsonl"
    assert read_log(path) == state.log_history
    path.write_text(path.read_text()[:-7])  # the line that an interruption cut
    assert read_log(path) == state.log_history[:-1]
    run([JsonLinesCallback()], tmp_path, start=7)  # resumed: what came after its checkpoint is told again
    assert [log["step"] for log in read_log(path)] == [1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10, 10]
    run([JsonLinesCallback()], tmp_path, updates=1)
    assert len(read_log(path)) == 2


def test_numbers_that_json_does_not_have(tmp_path):
    state = TrainerState(log_history=[{"loss": float("nan"), "step": 1}])
    JsonLinesCallback().on_log(arguments(tmp_path), state, TrainerControl(), logs=state.log_history[0])
    assert json.loads((tmp_path / "log.jsonl").read_text()) == {"loss": None, "step": 1}


def test_the_plot(tmp_path):
    from PIL import Image

    run([PlotCallback()], tmp_path)
    with Image.open(tmp_path / "plot.png") as image:
        assert image.size == (1210, 825)
        assert len(image.convert("RGB").getcolors(100_000) or [0] * 99) > 50
    draw_history([{"step": 1, "other": 3}], tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 1000
    folder = tmp_path / "full"
    folder.write_text("")
    with pytest.warns(TranseptWarning, match="the plot is not drawn"):
        run([PlotCallback()], folder, updates=1)


@pytest.mark.parametrize(("apart", "times"), [(0, 3), (1e9, 1)])
def test_the_plot_is_drawn_some_seconds_apart(apart, times, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(reports, "APART", apart)
    monkeypatch.setattr(reports, "draw_history", lambda history, path: drawn.append(path))
    run([PlotCallback()], tmp_path)
    assert len(drawn) == times
    PlotCallback().on_evaluate(arguments(tmp_path), TrainerState(log_history=[{"step": 1}]), TrainerControl())
    assert len(drawn) == times + 1


def test_series():
    history = [{"step": 2, "loss": 1.0}, {"step": 1, "loss": 3}, {"step": 3, "loss": float("nan")}, {"step": 2, "loss": 2.0}]
    assert series(history, "loss") == [(1, 3), (2, 2)]
    assert smooth([(1, 3.0), (2, 1.0), (3, 2.0), (4, 6.0)]) == [(1, 3), (2, 2), (3, 2), (4, 3)]


def test_names_of_reports(monkeypatch):
    assert report_callbacks(["console", "jsonl"]) == [REPORTS["console"], REPORTS["jsonl"]]
    with pytest.raises(InputError, match="'plots', which is no report. Did you mean 'plot'"):
        report_callbacks(["plots"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert report_callbacks(["all"]) == [REPORTS["console"], REPORTS["jsonl"]]
    with pytest.raises(MissingExtraError, match=r"transept\[train\]"):
        report_callbacks(["plot"])
    with pytest.raises(UnsupportedError, match="pip install wandb"):
        report_callbacks(["wandb"])


def test_names_in_programs():
    logs = {"loss": 1, "eval_loss": 2.0, "test_f1": 0.5, "note": "text"}
    assert sorted_by_split(logs) == {"train/loss": 1.0, "eval/loss": 2.0, "test/f1": 0.5}


@pytest.mark.filterwarnings("ignore")  # of its own packages
def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is no dependency of development: pip install tensorboard")
    run([TensorBoardCallback()], tmp_path)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "runs"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [*range(1, 11)]
    assert [event.value for event in events.Scalars("eval/accuracy")] == [0.5, 1.0]


def test_wandb(tmp_path, monkeypatch):
    told = []
    made = SimpleNamespace(log=told.append)
    module = ModuleType("wandb")
    module.run, module.init = None, lambda **settings: told.append(settings) or made
    module.__spec__ = SimpleNamespace(name="wandb")
    monkeypatch.setitem(sys.modules, "wandb", module)
    run([WandbCallback()], tmp_path, updates=1)
    assert told[0] == {"project": "transept", "name": None, "config": {"seed": 1}}
    assert told[1]["train/loss"] == 1.0
    assert told[1]["train/global_step"] == 1
