"""How initial operands are grouped into units: clustering, tiles, forecasts, search."""
