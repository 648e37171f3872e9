"""Linear layers whose weights have few bits, and the integers that they are made of: for inference on the CPU."""
