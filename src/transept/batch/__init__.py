"""Long work over files: inputs as rows, answers beside what they belong to, and outputs that can be gone on with."""
