"""Long work over files: inputs as rows, answers beside what they belong to, and outputs that can be gone on with."""

from transept.batch.columns import Classify, Embed, Generate

__all__ = ["Classify", "Embed", "Generate"]
