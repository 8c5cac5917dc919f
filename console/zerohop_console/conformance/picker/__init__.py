"""`zerohop conformance picker`: the endpoint picker protocol as a suite that runs against any endpoint picker.

Where to start reading: `cases` (every rule, data only), `script` (the language they are written in), `checks` (what can
be asked of an exchange), `runner`. `grpc_target` carries the messages; the project's own tests run the same cases on
its protocol core and on both fronts.
"""
