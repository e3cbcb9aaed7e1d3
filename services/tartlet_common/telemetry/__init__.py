"""OpenTelemetry for every role: names, spans, metrics and their export.

Unless an exporter is configured, nothing here costs time, and code here never blocks a thread that serves. Roles decide
what is worth measuring, where it happens.
"""
