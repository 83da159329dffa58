"""The HTTP server: connections, the ASGI app, keys, access log, health and administration."""
