"""A server that speaks Redis' protocol over a store: ``raxlog serve STORE``.

    clients ──> session.py     a client: its requests in order, its state
                  requests.py  bytes -> requests (whole.py, a kernel)    replies.py  values -> bytes
                  table.py     the commands: arity, kind, handler
                  commands/    their handlers, on the calls of a store (transaction.py) and on
                  keyspace.py  keys: streams, strings and lists (lists.py), and when they go
            ──> engine.py      runs them: writes of all clients share commits, reads beside them; blocked clients
                server.py      listens, limits, ends, as options.py says
                events.py      keyspace notifications
    redis-py ─> client.py      a client in the same process, over connections.py

It is for streams, and says so for what is not.
"""
