#!/bin/sh
# The first process of the virtual machine: mounts what containerd needs, then serves the tests.
export PATH=/opt/bayplan/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mountpoint -q /dev || mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm /dev/hugepages
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs tmpfs /tmp
mount -t hugetlbfs hugetlbfs /dev/hugepages 2>/dev/null
mount -t cgroup2 cgroup2 /sys/fs/cgroup
# Processes of the root may stay where they are; its children need the controllers.
for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
	echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
done
mkdir -p /run/lock /opt/bayplan
mount -o ro /dev/vdb /opt/bayplan
modprobe -a overlay veth bridge nf_tables 2>/dev/null
ip link set lo up
hostname bay
echo "bayplan test bed: up after $(cut -d' ' -f1 /proc/uptime) s"
/usr/bin/python3 /opt/bayplan/agent.py
echo "bayplan test bed: the agent ended"
sync
poweroff -f
