"""Model names: who may use them, what they become at the model server, and how important a request is."""
