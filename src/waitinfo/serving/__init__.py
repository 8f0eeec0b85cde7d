"""A server: live translation over WebSockets, a REST interface and a page, for many at once.

`protocol` defines the messages, `transcript` turns events into them, `guards` decides who may do
what, `models` holds the translators, `live` runs one stream, `stream`, `realtime`, `rooms`, `rest`
and `operations` are the endpoints, `app` puts them together, and `server` runs them. `supervisor`
starts them in one process and the models in another (`child`), joined by `engine`.
"""
