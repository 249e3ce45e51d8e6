"""Programs on a cluster whose scheduler is killed and started again, and what its journal costs."""
