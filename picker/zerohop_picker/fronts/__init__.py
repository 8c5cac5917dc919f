"""The two fronts that carry ext-proc streams between Envoy's sockets and the sans-IO protocol core."""
