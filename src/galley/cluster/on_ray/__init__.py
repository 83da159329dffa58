"""A cluster on Ray Serve: placement, health, discovery, scaling and updates of replicas and gateways.

Ray starts the processes and tells gateways where replicas are. Requests and tokens never pass through Ray:
gateways and replicas exchange Galley's own authenticated frames (:mod:`galley.cluster.channel`).
"""
