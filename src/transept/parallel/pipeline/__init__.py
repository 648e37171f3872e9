"""Pipeline parallelism: processes have other layers, and micro-batches go through them one after the other."""
