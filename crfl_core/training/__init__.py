"""Round orchestration: the federation that a config describes, its local training and the server's step."""
