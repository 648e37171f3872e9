"""Settings: their fields, what those may hold, and the configs of models."""
