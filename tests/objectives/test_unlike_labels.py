"""Distillation, preferences, autoencoders, adversaries and clusters, against plain computations."""

from __future__ import annotations

import math

import pytest
import torch

from transept.errors import InputError
from transept.objectives import adversarial, clustering, distillation, preference, variational

EXACT = {"atol": 1e-12, "rtol": 1e-10}  # float64 on both sides


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_soft_targets() -> None:
    student, teacher, counted = rows(2, 3, 5).requires_grad_(), rows(2, 3, 5, seed=1), torch.tensor([[1, 1, 0], [1, 0, 0]])
    term = distillation.soft_targets(student, teacher, counted, temperature=3.0)
    p, q = (torch.softmax(each / 3, dim=-1) for each in (teacher, student))
    plain = 9 * (p * (p / q).log()).sum(-1)
    torch.testing.assert_close(term.sum, plain[counted != 0].sum(), **EXACT)
    assert int(term.count) == 3
    term.sum.backward()
    assert student.grad is not None
    assert not student.grad[0, 2].any()
    assert student.grad[0, 0].any()
    with pytest.raises(InputError, match="differ"):
        distillation.soft_targets(student, teacher[..., :4])
    with pytest.raises(InputError, match="temperature"):
        distillation.soft_targets(student, teacher, temperature=0)


def test_hidden_states() -> None:
    small, large = rows(2, 3, 4), rows(2, 3, 6, seed=1)
    project = torch.nn.Linear(4, 6, dtype=torch.float64)
    term = distillation.hidden_squares(small, large, project=project)
    torch.testing.assert_close(term.mean, torch.nn.functional.mse_loss(project(small), large), **EXACT)
    cosines = distillation.hidden_cosines(project(small), large)
    ones = torch.ones(6, dtype=torch.float64)
    plain = torch.nn.functional.cosine_embedding_loss(project(small).view(6, 6), large.view(6, 6), ones)
    torch.testing.assert_close(cosines.mean, plain, **EXACT)


def test_log_probabilities() -> None:
    logits, labels = rows(2, 4, 7), torch.tensor([[-100, -100, 3, 6], [-100, 1, 2, -100]])
    sums, counts = preference.log_probabilities(logits, labels)
    spread = logits.log_softmax(-1)
    torch.testing.assert_close(
        sums, torch.stack([spread[0, 1, 3] + spread[0, 2, 6], spread[1, 0, 1] + spread[1, 1, 2]]), **EXACT
    )
    assert counts.tolist() == [2, 2]


def test_preferences() -> None:
    ours, theirs, before, before_theirs = (rows(4, seed=seed) for seed in range(4))
    apart = (ours - theirs) - (before - before_theirs)
    plain = {
        "sigmoid": -(0.9 * torch.sigmoid(0.3 * apart).log() + 0.1 * torch.sigmoid(-0.3 * apart).log()),
        "ipo": (apart - 1 / 0.6) ** 2,
        "simpo": -torch.sigmoid(0.3 * (ours - theirs) - 0.5).log(),
    }
    for kind, losses in plain.items():
        reference = () if kind == "simpo" else (before, before_theirs)
        options = {"smoothing": 0.1} if kind == "sigmoid" else {"margin": 0.5}
        term = preference.preference(ours, theirs, *reference, beta=0.3, kind=kind, **options)
        torch.testing.assert_close(term.mean, losses.mean(), **EXACT)
    with pytest.raises(InputError, match="needs the log-probabilities"):
        preference.preference(ours, theirs)
    with pytest.raises(InputError, match="needs no log-probabilities"):
        preference.preference(ours, theirs, before, before_theirs, kind="simpo")


def test_divergence_from_a_normal_distribution() -> None:
    mean, log_variance = rows(5, 3), rows(5, 3, seed=1)
    term = variational.divergence_from_normal(mean, log_variance, beta=4.0)
    normal = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    plain = torch.distributions.kl_divergence(torch.distributions.Normal(mean, (log_variance / 2).exp()), normal)
    torch.testing.assert_close(term.mean, plain.sum(-1).mean(), **EXACT)
    assert term.weight == 4.0
    free = variational.divergence_from_normal(mean, log_variance, free_bits=1.0)
    torch.testing.assert_close(free.mean, plain.mean(0).clamp(min=1.0).sum(), **EXACT)
    codes = variational.sample_code(mean.expand(20000, 5, 3), log_variance, torch.Generator().manual_seed(0))
    # five standard errors of a mean of 20,000 numbers
    assert ((codes.mean(0) - mean).abs() < 5 * (log_variance / 2).exp() / math.sqrt(20000)).all()


def test_two_networks_against_each_other() -> None:
    real, fake = rows(4), rows(4, seed=1)
    terms = adversarial.discriminator(real, fake)
    torch.testing.assert_close(terms["real"].mean, -torch.sigmoid(real).log().mean(), **EXACT)
    torch.testing.assert_close(terms["fake"].mean, -(1 - torch.sigmoid(fake)).log().mean(), **EXACT)
    torch.testing.assert_close(adversarial.generator(fake).mean, -torch.sigmoid(fake).log().mean(), **EXACT)
    hinge = adversarial.discriminator(real, fake, "hinge")
    torch.testing.assert_close(hinge["real"].mean, (1 - real).clamp(min=0).mean(), **EXACT)
    logits, moved = rows(3, 5).requires_grad_(), rows(3, 5, seed=1)
    term = adversarial.smoothness(logits, moved, torch.tensor([1, 0, 1]))
    p = logits.softmax(-1)
    plain = (p * (p.log() - moved.log_softmax(-1))).sum(-1)
    torch.testing.assert_close(term.sum, plain[[0, 2]].sum(), **EXACT)
    assert not term.sum.requires_grad  # nothing goes into the clean answers


def test_clusters() -> None:
    from sklearn.cluster import KMeans as Reference
    from sklearn.metrics import adjusted_rand_score

    centers = torch.tensor([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]], dtype=torch.float64)
    labels = torch.arange(90) % 3
    points = centers[labels] + rows(90, 2)
    kmeans = clustering.KMeans(3)
    found = kmeans.fit(points)
    reference = Reference(3, n_init=10, random_state=0).fit(points.numpy())
    inertia = (points - kmeans.centers[found]).square().sum()
    assert inertia == pytest.approx(reference.inertia_, rel=1e-9)
    assert adjusted_rand_score(labels, found) > 0.9
    stream = clustering.KMeans(3)
    for _ in range(5):
        for part in points.split(30):
            stream.partial_fit(part)
    assert adjusted_rand_score(labels, stream.predict(points)) > 0.9
    with pytest.raises(InputError, match="3 clusters need as many rows"):
        clustering.KMeans(3).fit(points[:2])
    with pytest.raises(InputError, match="no centres yet"):
        clustering.KMeans(3).predict(points)


def test_assignments_are_sharpened() -> None:
    points, centers = rows(6, 2), rows(3, 2, seed=1)
    shares = clustering.soft_assignments(points, centers)
    plain = 1 / (1 + (points[:, None] - centers).square().sum(-1))
    torch.testing.assert_close(shares, plain / plain.sum(1, keepdim=True), **EXACT)
    target = clustering.sharpened(shares)
    torch.testing.assert_close(target.sum(1), torch.ones(6, dtype=torch.float64), **EXACT)
    term = clustering.deep_clustering(shares, target)
    torch.testing.assert_close(term.sum, (target * (target / shares).log()).sum(), **EXACT)
