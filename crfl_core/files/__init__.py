"""Read and write files safely: atomic writes, digests, published data and the cache of features."""
