"""Columns of data sets as inputs of pipelines, by the reference's names."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset


class KeyDataset(Dataset[Any]):
    """One column of a data set whose rows are mappings."""

    def __init__(self, dataset: Any, key: str) -> None:
        self.dataset, self.key = dataset, key

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: Any) -> Any:
        return self.dataset[i][self.key]


class KeyPairDataset(Dataset[Any]):
    """Two columns, as pairs of texts."""

    def __init__(self, dataset: Any, key1: str, key2: str) -> None:
        self.dataset, self.key1, self.key2 = dataset, key1, key2

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: Any) -> dict[str, Any]:
        row = self.dataset[i]
        return {"text": row[self.key1], "text_pair": row[self.key2]}
