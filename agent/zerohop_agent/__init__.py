"""The node agent: reads GPUs, the host and the model servers, and publishes the snapshot."""
