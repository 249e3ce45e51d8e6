"""The JSON API on the scheduler's http server.

`endpoints` holds the table from which the routes, the checks of parameters and the OpenAPI
description are made, so that they agree.
"""
