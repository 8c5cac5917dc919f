"""What a client asked for: paths, header names, bodies, the model name and its rewrite."""
