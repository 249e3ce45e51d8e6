"""Plans units of initial operands: clustering, tiles, forecasts and search."""
