"""Everything that touches the kernel: sysfs, cgroup file systems, /proc, netlink, the instance lock.

Every path is relative to an injectable root directory, so that a recorded tree stands in for a machine.
All calls block; the daemon makes them in its one worker thread. It makes no decisions.
"""
