"""One run from config to finished directory: run, resume, load, certify, predict."""
