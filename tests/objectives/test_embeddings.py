"""Losses of sentence embeddings, against those of sentence-transformers."""

from __future__ import annotations

import pytest
import torch

from transept.errors import InputError
from transept.objectives.embeddings import cosine_regression, in_batch_negatives, ranked_cosines, triplets

SYMMETRIC = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
TOLERANCE = 1e-6  # float32 sums of a few dozen numbers


class Given(torch.nn.Module):
    """Stands for a model: the features are the embeddings."""

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return features

    def __getitem__(self, index: int) -> Given:
        return self


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def expected(name: str, embeddings: list[torch.Tensor], labels: torch.Tensor | None = None, **options: object) -> torch.Tensor:
    from sentence_transformers.sentence_transformer import losses

    loss = getattr(losses, name)(Given(), **options)
    return loss([{"sentence_embedding": each} for each in embeddings], labels)


def test_in_batch_negatives() -> None:
    queries, passages, hard = rows(5, 8), rows(5, 8, seed=1), rows(5, 8, seed=2)
    term = in_batch_negatives(queries, torch.cat([passages, hard]))
    assert not term.additive
    torch.testing.assert_close(
        term.mean, expected("MultipleNegativesRankingLoss", [queries, passages, hard]), atol=TOLERANCE, rtol=0
    )
    both = in_batch_negatives(queries, passages, symmetric=True)
    reference = expected("MultipleNegativesRankingLoss", [queries, passages], **SYMMETRIC)
    torch.testing.assert_close(both.mean, reference, atol=TOLERANCE, rtol=0)


def test_cosines_triplets_and_rankings() -> None:
    left, right, other = rows(6, 8), rows(6, 8, seed=1), rows(6, 8, seed=2)
    labels = torch.tensor([0.0, 0.2, 0.2, 0.5, 0.9, 1.0])
    found = cosine_regression(left, right, labels)
    torch.testing.assert_close(found.mean, expected("CosineSimilarityLoss", [left, right], labels), atol=TOLERANCE, rtol=0)
    parts = [cosine_regression(left[i], right[i], labels[i]) for i in (slice(2), slice(2, 6))]
    torch.testing.assert_close(sum(part.sum for part in parts), found.sum, atol=TOLERANCE, rtol=0)
    near = triplets(left, right, other)
    # the reference's distance adds 1e-6 to each difference
    torch.testing.assert_close(near.mean, expected("TripletLoss", [left, right, other]), atol=1e-5, rtol=0)
    ranked = ranked_cosines(left, right, labels)
    torch.testing.assert_close(ranked.mean, expected("CoSENTLoss", [left, right], labels), atol=1e-5, rtol=0)


def test_wrong_shapes() -> None:
    with pytest.raises(InputError, match="each query needs a passage"):
        in_batch_negatives(rows(3, 4), rows(2, 4))
    with pytest.raises(InputError, match="must be \\(B, D\\)"):
        cosine_regression(rows(3, 4), rows(3, 4), torch.ones(2))
    with pytest.raises(InputError, match="must have one shape"):
        triplets(rows(3, 4), rows(3, 4), rows(2, 4))
