"""`explain`: forecasts and advice for a computation before it runs."""
