"""What has to be imported before gRPC is: settings of gRPC's own I/O."""

from tartlet_common.rpc import grpc_io as grpc_io
