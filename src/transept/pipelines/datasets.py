"""Columns of data sets as inputs of a pipeline."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset


class KeyDataset(Dataset[Any]):
    """The values of one column of a data set of rows."""

    def __init__(self, dataset: Any, key: str) -> None:
        self.dataset, self.key = dataset, key

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index][self.key]


class KeyPairDataset(Dataset[Any]):
    """The texts of two columns, as pairs."""

    def __init__(self, dataset: Any, key1: str, key2: str) -> None:
        self.dataset, self.keys = dataset, (key1, key2)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.dataset[index]
        return {"text": row[self.keys[0]], "text_pair": row[self.keys[1]]}
