"""The JSON API on the scheduler's http server: one table of endpoints, and what serves it.

`endpoints` holds the table. The routes, the checks of parameters and the OpenAPI description are
made from it, so that none of them can say something else than the others.
"""
