"""The `exact` engine: promises on sets of nodes, kept by a maximum flow.

`flow` knows claims, sets and capacities of one resource; `flows` all resources of a machine; `claiming` what
a request claims and where it may; `criteria` and `search` choose among the sets that fit, `branching` among
more than can be looked at (with `demands`, `crossings`, `nearness`, `budget`); `moves` makes room;
`witness` says which node keeps how much. `engine` puts them together.
"""
