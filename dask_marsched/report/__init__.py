"""Makes the performance report: one self-contained HTML file about a computation."""
