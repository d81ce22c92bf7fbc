"""Who asks, and whether they may: bearer keys, and the bounds that every request is held to before anything reads it.

Three layers around the application, from outside in: `RequestContext` (an id in every answer and log line, no exception
without an answer), `BodyLimit`, `Authentication`. There is no CORS: browsers of other origins get nothing.
"""
