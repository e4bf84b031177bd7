"""GraphSchema and the protobuf messages."""
