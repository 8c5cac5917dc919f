"""The endpoint picker: an Envoy external processor that decides from the snapshot."""
