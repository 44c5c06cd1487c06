#!/usr/bin/env bash
# make check-fresh: the commands that README.md opens with, in a bare Debian 12 with gcc, make and git, on two cores, in a clone of
# what is committed. Prints for each its exit status, its seconds, those of the CPU and its last lines. The exit status is 1 if a
# command failed. The bare system stays in build/debian for the next time; MIRROR is where it comes from.
set -eu
cd "$(dirname "$0")/.."
root=$PWD/build/debian
[ "$(id -u)" = 0 ] || { echo "check-fresh needs root, for debootstrap and chroot: sudo make check-fresh"; exit 2; }
command -v debootstrap >/dev/null || { echo "check-fresh needs debootstrap: apt-get install debootstrap"; exit 2; }

inside() { # a command line: run in the bare system, which sees no variable and no other file of this one
    unshare --mount --pid --fork --kill-child bash -c "mount -t proc proc '$root/proc' && exec chroot '$root' env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -c \"\$1\"" - "$1"
}

if [ ! -e "$root/complete" ]; then
    echo "making a bare Debian 12 in $root"
    rm -rf "$root" && mkdir -p "$root"
    debootstrap --variant=minbase bookworm "$root" "${MIRROR:-http://deb.debian.org/debian}" >"$root.log" 2>&1 || { tail "$root.log"; exit 2; }
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    inside 'apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y gcc make git' >>"$root.log" 2>&1 || { tail "$root.log"; exit 2; }
    touch "$root/complete"
fi
for tool in g++ c++ clang python3 cmake nvcc nvidia-smi; do
    ! inside "command -v $tool" || { echo "$root is not bare: it has $tool"; exit 2; }
done
rm -rf "$root/root/tegroup"
git clone -q --no-hardlinks . "$root/root/tegroup"
echo "$(git rev-parse --short HEAD) in Debian $(cat "$root/etc/debian_version"), $(inside 'gcc -dumpfullversion' | sed 's/^/gcc /'), on two cores"
[ -z "$(git status --porcelain)" ] || echo "what is not committed here is not in it"

failed=0
while read -r command; do
    log=$root/root/${command// /-}.log
    code=0
    TIMEFORMAT='%0R s, of the CPU %0U s and %0S s for the system'
    taken=$( { time taskset --cpu-list 0,1 bash -c "$(declare -f inside); root='$root'; inside 'cd /root/tegroup && $command'" >"$log" 2>&1 </dev/null; } 2>&1) || code=$?
    echo "$command: exit status $code, $taken; its last lines:"
    tail -n 25 "$log" | sed 's/^/    /'
    [ $code -eq 0 ] || failed=1
done < <(awk '/^```/ { if (inside) exit; inside = 1; next } inside' README.md)
exit $failed
