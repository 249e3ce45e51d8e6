"""Forecasts a computation before it runs, and advises on it: `explain`."""
