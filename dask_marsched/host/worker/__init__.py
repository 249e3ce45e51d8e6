"""Changes a running worker and its nanny: what starts there, and where results are kept."""
