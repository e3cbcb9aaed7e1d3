"""Calls between processes: gRPC channels and servers, frames on sockets, who may call, errors on the wire, paging.

The only package that makes gRPC channels and servers. It knows how messages travel and who may send them, never what
they mean: services and their handlers belong to the roles.
"""
