"""The Grafana dashboards of the chart, as typed definitions.

`board` knows Grafana's JSON; each other module defines panels, and no JSON. Nothing here asks a server.
"""
