"""A plugin that runs inside the model server and writes its state into shared memory after each engine step."""
