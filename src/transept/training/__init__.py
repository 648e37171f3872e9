"""Training: what people call, and the parts that a run is made of."""
