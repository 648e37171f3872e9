"""Answering many people at once: an engine that reads and writes for all of them in one pass."""

import os

# oneDNN keeps what it has compiled for each of 1,024 shapes of products, some half a megabyte each, and batches of a server
# have ever new shapes; the number is read before the first product.
for _name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_name, "128")
