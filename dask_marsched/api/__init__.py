"""Serves the JSON API on the scheduler's http server; routes and OpenAPI come from `endpoints`."""
