"""Answering many requests at once: what turns tokens into text and settings into scores."""
