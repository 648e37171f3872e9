"""The ``transept`` command: one module a verb. Nothing here imports torch before a verb needs it."""
