#!/bin/sh
# Runs a command as a pod of the chart would: user 1000 without capabilities, a root file system that is read-only, empty
# /tmp and /dev/shm, a network of its own (loopback). For root on Linux; all of it goes with the command.
set -eu

if [ "$1" != inside ]; then
    exec unshare --mount --pid --fork --mount-proc --net sh "$0" inside "$@"
fi
shift
mount --make-rprivate /
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
ip link set lo up
mount -o remount,ro,bind /
cd /tmp
exec setpriv --reuid=1000 --regid=1000 --clear-groups --no-new-privs --bounding-set=-all "$@"
