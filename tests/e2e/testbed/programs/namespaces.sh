#!/bin/sh
# First process of a node in namespaces: DIRECTORY DEBIAN-TREE AGENT.PY PORT PORT (NAME TREE)...
set -e
new=$1 tree=$2 agent=$3 requests=$4 streams=$5
shift 5
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$new"
mkdir "$new/written" "$new/work" "$new/root"
root=$new/root
mount -t overlay -o "lowerdir=$tree,upperdir=$new/written,workdir=$new/work" overlay "$root"
# What layers of images lie on: no overlay is made of another one's upper layer.
for name in containerd containers; do
	mkdir -p "$new/$name" "$root/var/lib/$name"
	mount --bind "$new/$name" "$root/var/lib/$name"
done
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
while IFS=: read -r _ controllers _; do
	case $controllers in
	'') continue ;;
	name=*) options=none,$controllers ;;
	*) options=$controllers ;;
	esac
	directory=$root/sys/fs/cgroup/${controllers#name=}
	mkdir -p "$directory"
	mount -t cgroup -o "$options" cgroup "$directory"
done </proc/self/cgroup
while [ $# -gt 0 ]; do
	mkdir -p "$root/opt/$1"
	mount --bind "$2" "$root/opt/$1"
	shift 2
done
mkdir -p "$root/run/guest" "$root/run/nri"
cp "$agent" "$root/run/guest/agent.py"
echo 'nameserver 127.0.0.1' >"$root/etc/resolv.conf"
hostname node
ip link set lo up
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
# No chroot: whoever enters a container's mounts has the root of these mounts then, which would be this machine's.
cd "$root"
mkdir .outside
pivot_root . .outside
umount -l /.outside
# The guests' agent, at other ports; cgroups of its services are of no interest here.
exec chroot . /usr/bin/python3 -I -S -c '
import sys
agent = {"__name__": "agent"}
with open("/run/guest/agent.py") as file:
    exec(file.read().removesuffix("main()\n"), agent)
ports = {agent["REQUEST_PORT"]: int(sys.argv[1]), agent["STREAM_PORT"]: int(sys.argv[2])}
agent.update(find_port=ports.__getitem__, enter_cgroup=lambda name: "/dev/null")
agent["main"]()
' "$requests" "$streams"
