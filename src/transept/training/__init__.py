"""Training: the trainer, what it reads, what it reports, and recipes for tasks."""
