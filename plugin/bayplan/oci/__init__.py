"""What OCI runtimes and their callers write and expect: states, bundles, specs, and our own socket.

Pure but for `bayplan.oci.bundle`, which reads and replaces config.json. Nothing here decides, and nothing
knows cgroups: the daemon puts that together.
"""
