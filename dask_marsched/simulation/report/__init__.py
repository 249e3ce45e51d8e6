"""Reports on a simulation: tables, plots, traces."""
