"""What people and other programs read: tables for the terminal, files for the run directory."""
