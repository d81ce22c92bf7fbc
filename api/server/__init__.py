"""The HTTP server of a master.

- `app.application` composes the routes, the exception handler and the layers around them.
- `serving` runs uvicorn on sockets that this process opened, and limits connections and slow requests.
"""
