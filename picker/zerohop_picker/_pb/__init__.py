"""Generated protobuf code (proto/generate); never edited by hand."""
