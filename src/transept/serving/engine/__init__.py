"""The engine of models that write: which rows run, what they keep, how tokens are chosen and become text."""
