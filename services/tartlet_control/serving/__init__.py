"""The edge of control: gRPC services, their streams, the catalogue on disk, telemetry.

I/O belongs here. Decisions about programs, queues and batches never do.
"""
