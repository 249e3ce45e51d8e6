"""Private touches of the scheduler's http server and dashboard."""
