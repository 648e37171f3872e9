"""What each objective for pictures comes to on scikit-learn's digits: ``python examples/objectives_of_pictures.py [NAME ...]``.

The last tenths of the 1,797 digits are held out. Each line of the table is a figure on them, before and after training.
"""

from __future__ import annotations

import sys
import time
from tempfile import gettempdir
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from sklearn.datasets import load_digits

import transept
from transept.objectives.clustering import KMeans, deep_clustering, sharpened, soft_assignments

DATA = load_digits()
PIXELS = torch.from_numpy(DATA.images / 16).float()[:, None]  # (N, 1, 8, 8), from 0 to 1
LABELS = torch.from_numpy(DATA.target)
TRAIN, TEST, FEW = slice(0, 1437), slice(1437, None), slice(0, 60)
SIZES = {"image_size": 8, "patch_size": 2, "num_channels": 1, "num_hidden_layers": 2, "num_attention_heads": 4}


def arguments(updates: int, **settings: Any) -> transept.TrainingArguments:
    quiet = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "remove_unused_columns": False}
    usual = {"learning_rate": 3e-3, "per_device_train_batch_size": 32, "per_device_eval_batch_size": 360, "warmup_steps": 0.1}
    return transept.TrainingArguments(gettempdir(), max_steps=updates, **quiet | usual | settings)


def rows(part: slice, *names: str) -> list[dict[str, Any]]:
    columns = {"pixel_values": PIXELS[part], "values": PIXELS[part], "labels": LABELS[part].tolist()}
    return [dict(zip(names, values)) for values in zip(*(columns[name] for name in names))]


def classifier(width: int = 48) -> Any:
    torch.manual_seed(0)
    sizes = SIZES | {"hidden_size": width, "intermediate_size": 2 * width, "initializer_range": 0.1}
    return transept.ViTForImageClassification(transept.ViTConfig(**sizes, num_labels=10))


def accuracy(model: Any) -> float:
    with torch.no_grad():
        return float((model.eval()(PIXELS[TEST]).logits.argmax(-1) == LABELS[TEST]).float().mean())


def fit(model: Any, part: slice = TRAIN, updates: int = 150) -> Any:
    trainer = transept.Trainer(model, arguments(updates), train_dataset=rows(part, "pixel_values", "labels"))
    trainer.train()
    return model


def supervised() -> tuple[str, float, float]:
    model = classifier()
    return "accuracy", accuracy(model), accuracy(fit(model))


def self_training() -> tuple[str, float, float]:
    def make(training: Any) -> transept.Trainer:
        return transept.Trainer(classifier(), arguments(150), train_dataset=training)

    teacher = transept.SelfTrainer(make, rows(FEW, "pixel_values", "labels"), rows(slice(60, 1437), "pixel_values"), rounds=4)
    teacher.train()
    return "accuracy, 60 labels", accuracy(fit(classifier(), FEW)), accuracy(teacher.trainer.model)


def consistency() -> tuple[str, float, float]:
    def collate(features: list[dict[str, int]]) -> dict[str, torch.Tensor]:
        few, more = torch.tensor([each["row"] for each in features]), torch.randint(60, 1437, (2 * len(features),))
        moved = PIXELS[more].roll(int(torch.randint(-1, 2, ())), dims=3)
        strong = (moved + 0.3 * torch.randn_like(moved)).clamp(0, 1)
        return {"pixel_values": PIXELS[few], "labels": LABELS[few], "weak_pixel_values": PIXELS[more]} | {
            "strong_pixel_values": strong
        }

    data = [{"row": row} for row in range(60)]
    model = classifier()
    transept.ConsistencyTrainer(model, arguments(300), threshold=0.9, data_collator=collate, train_dataset=data).train()
    return "accuracy, 60 labels", accuracy(fit(classifier(), FEW, 300)), accuracy(model)


def distillation() -> tuple[str, float, float]:
    teacher, student = fit(classifier()), classifier(16)
    before, data = accuracy(student), rows(TRAIN, "pixel_values", "labels")
    transept.DistillationTrainer(student, arguments(150), teacher_model=teacher, train_dataset=data).train()
    return "accuracy of the student", before, accuracy(student)


def hidden_patches(model: Any, figure: str, **options: Any) -> tuple[str, float, float]:
    collate = transept.DataCollatorForPatchMasking(patch_size=2, kind="random", **options)
    data = {"data_collator": collate, "train_dataset": rows(TRAIN, "pixel_values"), "eval_dataset": rows(TEST, "pixel_values")}
    trainer = transept.Trainer(model, arguments(200), **data)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    return figure, before, trainer.evaluate()["eval_loss"]


def masked_pixels() -> tuple[str, float, float]:
    torch.manual_seed(0)
    config = transept.ViTConfig(**SIZES, hidden_size=48, intermediate_size=96, encoder_stride=2)
    return hidden_patches(transept.ViTForMaskedImageModeling(config), "loss of hidden pixels")


def visual_tokens() -> tuple[str, float, float]:
    """Tokens are clusters of patches, where no trained codebook is at hand."""
    torch.manual_seed(0)
    kmeans = KMeans(32)

    def patches(pixels: torch.Tensor) -> torch.Tensor:
        return pixels.unfold(2, 2, 2).unfold(3, 2, 2).reshape(-1, 4)

    kmeans.fit(patches(PIXELS[TRAIN]))
    config = transept.BeitConfig(**SIZES, hidden_size=48, intermediate_size=96, vocab_size=32, use_mask_token=True)
    codebook = {"codebook": lambda pixels: kmeans.predict(patches(pixels)).view(len(pixels), -1)}
    return hidden_patches(transept.BeitForMaskedImageModeling(config), "loss of hidden tokens", **codebook)


def autoencoder(**settings: Any) -> tuple[str, float, float]:
    torch.manual_seed(0)
    sizes = {"input_size": 64, "hidden_sizes": [64], "latent_size": 10}
    model = transept.AutoencoderForReconstruction(transept.AutoencoderConfig(**sizes, **settings))

    def explained() -> float:
        with torch.no_grad():
            missed = (model.eval()(PIXELS[TEST]).reconstruction - PIXELS[TEST]).square().sum()
        return 1 - float(missed / (PIXELS[TEST] - PIXELS[TEST].mean(0)).square().sum())

    before = explained()
    transept.Trainer(model, arguments(600), train_dataset=rows(TRAIN, "values")).train()
    return "explained variance", before, explained()


def right(groups: torch.Tensor) -> float:
    """The share of digits in the group of their kind, by the best naming of the groups."""
    table = np.zeros((10, 10))
    np.add.at(table, (groups.numpy(), LABELS.numpy()), 1)
    return float(table[linear_sum_assignment(-table)].sum() / len(groups))


def k_means() -> tuple[str, float, float]:
    torch.manual_seed(0)
    return "clusters, from chance", right(torch.randint(10, (len(PIXELS),))), right(KMeans(10).fit(PIXELS.flatten(1)))


def deep_clusters() -> tuple[str, float, float]:
    torch.manual_seed(0)
    model = transept.AutoencoderForReconstruction(transept.AutoencoderConfig(input_size=64, hidden_sizes=[64], latent_size=10))
    transept.Trainer(model, arguments(600), train_dataset=rows(slice(None), "values")).train()
    kmeans, codes = KMeans(10), model.backbone(PIXELS).latents.detach()
    before = right(kmeans.fit(codes))
    centers = torch.nn.Parameter(kmeans.centers.clone())
    optimizer = torch.optim.Adam([*model.backbone.parameters(), centers], 1e-3)
    for update in range(300):
        shares = soft_assignments(model.backbone(PIXELS).latents, centers)
        if update % 20 == 0:
            target = sharpened(shares)
        optimizer.zero_grad()
        deep_clustering(shares, target).mean.backward()
        optimizer.step()
    return "clusters, from k-means", before, right(soft_assignments(model.backbone(PIXELS).latents, centers).argmax(1))


def gan() -> tuple[str, float, float]:
    torch.manual_seed(0)
    real = PIXELS[TRAIN].flatten(1)
    makes = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.Sigmoid())
    tells = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LeakyReLU(0.2), torch.nn.Linear(64, 1))
    settings = {"learning_rate": 1e-3, "adam_beta1": 0.5, "per_device_train_batch_size": 64}
    trainer = transept.GANTrainer(makes, tells, arguments(1500, **settings), real, noise_size=16)

    def nearest() -> float:
        with torch.no_grad():
            return float(torch.cdist(trainer.sample(500), PIXELS[TEST].flatten(1)).amin(1).mean())

    before = nearest()
    trainer.train()
    return "distance to a digit", before, nearest()


OBJECTIVES = {
    "supervised": supervised,
    "self-training": self_training,
    "consistency (FixMatch)": consistency,
    "distillation": distillation,
    "masked pixels (SimMIM)": masked_pixels,
    "visual tokens (BEiT)": visual_tokens,
    "autoencoder": autoencoder,
    "autoencoder, denoising": lambda: autoencoder(noise=0.2),
    "autoencoder, variational": lambda: autoencoder(variational=True, beta=0.1),
    "k-means": k_means,
    "deep clustering (DEC)": deep_clusters,
    "GAN": gan,
}

if __name__ == "__main__":
    found = []
    for name in sys.argv[1:] or OBJECTIVES:
        began = time.process_time()
        figure, before, after = OBJECTIVES[name]()
        found.append(f"{name:26} {figure:24} {before:7.3f} -> {after:7.3f}   {time.process_time() - began:4.0f} s")
        print(found[-1], file=sys.stderr, flush=True)
    print("\n".join(found))
