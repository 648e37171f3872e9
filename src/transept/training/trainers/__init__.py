"""Ways of learning beyond labels: each is a trainer with another loss, or a loop around trainers."""
