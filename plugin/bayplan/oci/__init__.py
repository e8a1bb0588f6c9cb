"""What OCI runtimes and their callers write and expect: states, bundles, specs, and our own socket.

The server takes the requests of hook and wrapper to the request handler, which has the controller decide.
Containers that are found running without a decision, and entries whose containers are gone, are dealt with
here as well.
"""
