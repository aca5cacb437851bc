"""Files on disk: atomic writes, published data files and the cache of features. The layer below records."""
