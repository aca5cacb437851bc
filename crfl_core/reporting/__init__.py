"""Reports for people and programs: tables for the terminal, files for the run directory."""
