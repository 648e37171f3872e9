"""A trainer in the processes that Ray Train starts, where Ray is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from tests.training.small import head, ours, quiet, rows
from transept import Trainer, TrainingArguments

MADE = head("BertForSequenceClassification")


def learn(config: dict[str, Any]) -> None:
    """Four updates of four rows each, of which each process takes as many."""
    more = {"per_device_train_batch_size": 4 // config["processes"], "max_steps": 4, "optim": "sgd", "learning_rate": 0.1}
    trainer = Trainer(ours(MADE), TrainingArguments(**quiet(Path(config["run"]), **more)), train_dataset=rows(MADE.rows, 16))
    trainer.train()
    assert trainer.args.world_size == config["processes"]
    trainer.save_model()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")  # Ray's own
def test_a_trainer_takes_part_in_a_group_of_rays(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    pytest.importorskip("ray.train.torch", reason="ray is installed without its trainers: pip install 'ray[train]'")
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    learn({"run": str(tmp_path / "alone"), "processes": 1})
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")])
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}})
    try:
        TorchTrainer(
            learn,
            train_loop_config={"run": str(tmp_path / "both"), "processes": 2},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=str(tmp_path / "ray")),
        ).fit()
    finally:
        ray.shutdown()
    assert_close(*(load_file(tmp_path / name / "model.safetensors") for name in ("both", "alone")), atol=1e-5, rtol=1e-5)
