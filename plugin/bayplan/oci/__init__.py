"""What OCI runtimes and their callers write and expect: states, bundles, specs, and our own socket.

Pure but for `bayplan.oci.bundle`, which reads and replaces config.json, and `bayplan.oci.engines`, which
reads the engines' own settings. Nothing here decides, and nothing knows cgroups: the daemon puts that
together.
"""
