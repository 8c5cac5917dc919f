"""`zerohop conformance model-server`: the model server protocol as a suite that runs against any model server.

Where to start reading: `items` (every demand, and what routing loses without it), then `facts` (what the items judge);
`main` looks at a server and `load` keeps it busy for a while.
"""
