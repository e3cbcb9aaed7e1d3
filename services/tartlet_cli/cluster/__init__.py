"""A Kubernetes cluster as the commands use it: the API server, port forwards, releases of the chart, typed errors.

The only package of the command line that imports kubernetes. It makes requests and returns values; it never prints,
and it knows no command.
"""
