"""The whole path on one machine: model servers, agent, snapshot, picker, a real Envoy, and load."""
