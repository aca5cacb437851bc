"""From votes to guarantees: `questions` puts certificates to a run; the rest is the ground that they stand on."""
