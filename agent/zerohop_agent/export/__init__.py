"""The node's metrics for Prometheus: `families` says which there are, `page` renders them, `server` serves them."""
