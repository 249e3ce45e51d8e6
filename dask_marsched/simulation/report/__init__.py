"""What a simulation reports: tables, plots, traces."""
