"""Collators: callables that make a batch of the rows of a data set."""
