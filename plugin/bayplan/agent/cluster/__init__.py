"""What the agent does at the API server, as a service account or the user of a kubeconfig: it publishes the
node's room (`node_objects`, `publisher`), learns what pods request (`pods`) and tells pods what was decided
about them (`happenings`, `events`).

An API server that is away, refuses or hangs delays these and nothing else: each logs one line when it cannot
go on and one when it can again, and goes on trying.
"""
