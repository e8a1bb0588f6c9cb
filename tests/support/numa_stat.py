"""memory.numa_stat of a container on cgroup v2, as the kernel writes it."""

NUMA_STAT = """anon N0=5000 N1=8192
file N0=40960 N1=0
kernel_stack N0=100 N1=0
inactive_anon N0=4096 N1=4096
active_anon N0=904 N1=4096
inactive_file N0=40000 N1=0
active_file N0=960 N1=0
unevictable N0=0 N1=1
slab_unreclaimable N0=50 N1=0
workingset_refault_anon N0=77 N1=0
"""
