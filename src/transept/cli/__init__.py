"""The ``transept`` command: the verbs, and what they share. Nothing here imports torch before a verb needs it."""
