"""The reference's modules and names: where code that was written for it finds what it imports."""
