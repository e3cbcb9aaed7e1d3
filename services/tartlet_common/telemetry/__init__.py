"""OpenTelemetry for every role: names, spans, metrics and their export.

Nothing here costs time unless an exporter is configured, and nothing here waits on a thread that serves. What is worth
measuring is decided where it happens, in the roles.
"""
