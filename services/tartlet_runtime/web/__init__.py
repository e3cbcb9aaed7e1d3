"""HTTP requests that the runtime makes for programs: what is asked, where it may go, and what comes back.

Here belongs everything between a program's record and the host's HTTP client. Nothing here ever hands a program a
socket, an address or a secret.
"""
