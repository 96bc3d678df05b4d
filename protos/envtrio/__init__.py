"""The contracts of envtrio: generated protobuf and gRPC stubs, one module for each .proto in `envtrio.v1`."""
