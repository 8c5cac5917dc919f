"""The shared-memory contract between the agent, the engines and the pickers."""
