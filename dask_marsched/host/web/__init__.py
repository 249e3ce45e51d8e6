"""Adds pages and routes to the scheduler's http server."""
