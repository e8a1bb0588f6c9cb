#!/bin/busybox sh
# Finds the root disk and hands over. Everything that is not built into the kernel is loaded here.
/bin/busybox mkdir -p /proc /dev /root
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs devtmpfs /dev
for module in /modules/*.ko; do
	/bin/busybox insmod "$module"
done
/bin/busybox mount -t ext4 -o rw,noatime /dev/vda /root || {
	echo "bayplan test bed: no root disk"
	/bin/busybox poweroff -f
}
/bin/busybox mount --move /dev /root/dev
/bin/busybox umount /proc
exec /bin/busybox switch_root /root /sbin/bayplan-init
