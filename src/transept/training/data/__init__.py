"""What models are trained on: rows from files and objects, their columns, and checks of them."""
