"""Reports on a cluster for users: operand states, progress, metrics, status texts, recordings."""
