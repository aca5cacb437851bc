"""Engine `ray`: clients trained by the workers of a Ray cluster."""
