"""A model server without a model: looks like vLLM over HTTP, and takes time like one."""
