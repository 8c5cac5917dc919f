"""What the kubelet of this node tells over its local Unix sockets: the pods of the node, and who holds which device.

Both are read with grpcio and need no API server and no RBAC, but root (the sockets are root's). Mount the
*directories*: a kubelet that restarts replaces its sockets.
"""
