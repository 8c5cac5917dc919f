"""The GPUs of the node, read through NVML in a child process, so that a driver that hangs stops nothing else.

* `collector.py` is the agent's side: it writes the snapshot's GPU columns and what follows for endpoints.
* `process.py` runs the child, with a deadline: one that does not speak in time is abandoned and replaced.
* `child.py` is the child's main loop; `nvml.py` (driver, boards, calls), `measure.py` (what is read of a board),
  `events.py` (XIDs) and `values.py` are its view of the driver, and the only modules that import pynvml.
* `reading.py` and `frames.py` are what they say to each other, as msgpack over a pipe.

This file imports nothing: the child should stay small.
"""
