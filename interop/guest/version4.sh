# Additional checks for mounts of version 4: $M, $M2 and $HERE are as in content.sh.

# The server's root shows the exports, and a mount of it reaches them.
root_leads_to_exports() {
  local options; options=$(awk -v m="$M" '$2 == m { print $4 }' /proc/mounts | tr , '\n' | grep -E '^(vers|proto|port)=' | paste -sd,)
  mkdir -p /run/mnt/root-$HERE
  mount -t nfs -o "$options" "$SERVER:/" /run/mnt/root-$HERE
  ls /run/mnt/root-$HERE | grep -x "$(cut -d/ -f2 <<<"$EXPORT")"
  equal "$(cd "$M/given/tree" && find . -type f | sort | head -n 50)" "$(cd "/run/mnt/root-$HERE$EXPORT/given/tree" && find . -type f | sort | head -n 50)"
  umount /run/mnt/root-$HERE
}

# One mount holds a lock, which the other does not get until it is released.
locks_between_mounts() {
  cd /; mkdir "$M/$HERE/lock"; echo x >"$M/$HERE/lock/f"
  local a=$M/$HERE/lock/f b=$M2/$HERE/lock/f
  exec 7<>"$a" 8<>"$b"
  flock -n 7
  refused flock -n 8
  flock -u 7
  flock -n 8; flock -u 8
  exec 7>&- 8>&-
  python3 - "$a" "$b" <<'P'
import fcntl, os, struct, sys, time
a, b = (os.open(path, os.O_RDWR) for path in sys.argv[1:])
def lock(fd, kind, start, length):
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, 0, start, length, 0))
def refused(fd, kind, start, length):
    try:
        lock(fd, kind, start, length)
    except BlockingIOError:
        return True
    return False
lock(a, fcntl.F_WRLCK, 10, 10)
assert refused(b, fcntl.F_RDLCK, 19, 1) and refused(b, fcntl.F_WRLCK, 0, 0)
lock(b, fcntl.F_WRLCK, 20, 0)
assert refused(a, fcntl.F_RDLCK, 1 << 40, 1)
lock(a, fcntl.F_RDLCK, 10, 10)
lock(b, fcntl.F_RDLCK, 0, 20)
assert refused(a, fcntl.F_WRLCK, 10, 10)
lock(b, fcntl.F_UNLCK, 0, 0)
lock(a, fcntl.F_WRLCK, 0, 0)
# A waiting lock is granted when the other mount releases its lock.
child = os.fork()
if child == 0:
    fcntl.fcntl(b, fcntl.F_OFD_SETLKW, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
    os._exit(0)
time.sleep(1)
assert os.waitpid(child, os.WNOHANG) == (0, 0), "it does not wait"
lock(a, fcntl.F_UNLCK, 0, 0)
assert os.waitpid(child, 0)[1] == 0
P
}

# An open file can be read after a change of its mode, and a new file has the mode that the umask leaves.
opens_are_kept() {
  cd "$M/$HERE"; mkdir open; cd open
  echo text >f; exec 6<f; chmod 000 f; equal text "$(cat <&6)"; exec 6<&-
  (umask 077; echo x >masked); equal 600 "$(stat -c %a masked)"
}

allocation_and_holes() {
  cd "$M/$HERE"; mkdir holes; cd holes
  fallocate -l 1M a; equal 1048576 "$(stat -c %s a)"; [ "$(du -k a | cut -f1)" -ge 1024 ]
  dd if=/run/out/random of=f bs=1M count=2 conv=fsync status=none
  fallocate -p -o 262144 -l 524288 f
  equal 2097152 "$(stat -c %s f)"
  { head -c 262144 /run/out/random; head -c 524288 /dev/zero; head -c 2097152 /run/out/random | tail -c +786433; } | cmp - "$M2/$HERE/holes/f"
  [ -z "${HOLES_ARE_DATA:-}" ] || return 0
  python3 - f <<'P'
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
seek = lambda at, whence: os.lseek(fd, at, whence)
assert seek(0, os.SEEK_HOLE) == 262144, seek(0, os.SEEK_HOLE)
assert seek(262144, os.SEEK_DATA) == 786432, seek(262144, os.SEEK_DATA)
assert seek(786432, os.SEEK_HOLE) == 2097152
try:
    seek(2097152, os.SEEK_DATA)
except OSError as error:
    assert error.errno == 6, error
else:
    raise SystemExit("data behind the end")
P
}

copies_by_the_server() {
  cd "$M/$HERE"; mkdir copy; cd copy
  dd if=/run/out/random of=f bs=1M conv=fsync status=none
  local before; before=$(awk '/^device/ { mine = $5 == "'"$M"'" } mine && $1 == "COPY:" { print $2 }' /proc/self/mountstats)
  python3 - f g <<'P'
import os, sys
source, target = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
left, size = os.fstat(source).st_size, os.fstat(source).st_size
while left:
    copied = os.copy_file_range(source, target, left)
    assert copied > 0
    left -= copied
assert os.fstat(target).st_size == size
P
  cmp f "$M2/$HERE/copy/g"
  local after; after=$(awk '/^device/ { mine = $5 == "'"$M"'" } mine && $1 == "COPY:" { print $2 }' /proc/self/mountstats)
  [ "$after" -gt "$before" ]
}

extended_attributes() {
  cd "$M/$HERE"; mkdir xattr; cd xattr; touch f
  python3 - f "$M2/$HERE/xattr/f" <<'P'
import errno, os, sys
f, again = sys.argv[1:]
os.setxattr(f, "user.one", b"1")
os.setxattr(f, "user.large", bytes(range(250)) * 8)
os.setxattr(f, "user.empty", b"", os.XATTR_CREATE)
def fails(code, call, *args):
    try:
        call(*args)
    except OSError as error:
        assert error.errno == code, error
    else:
        raise SystemExit(f"{call.__name__}{args} does not fail")
fails(errno.EEXIST, os.setxattr, f, "user.one", b"2", os.XATTR_CREATE)
fails(errno.ENODATA, os.setxattr, f, "user.two", b"2", os.XATTR_REPLACE)
# The client lists NFSv4's ACL as one of them.
listed = sorted(name for name in os.listxattr(again) if name.startswith("user."))
assert listed == ["user.empty", "user.large", "user.one"], listed
assert os.getxattr(again, "user.one") == b"1"
assert os.getxattr(again, "user.large") == bytes(range(250)) * 8
os.removexattr(f, "user.one")
fails(errno.ENODATA, os.getxattr, again, "user.one")
P
}

# nconnect=4: the mount has four connections, and uses all of them.
connections() { awk '/^device/ { mine = $5 == "'"$M"'" } mine && $1 == "xprt:" && $9 > 0' /proc/self/mountstats; }
four_connections() { equal 4 "$(connections | wc -l)"; }

# version4 NAME: features of every minor version; version42 NAME: and those of 4.2; several_connections NAME: with
# nconnect=4.
version4() { checks "$1" root_leads_to_exports locks_between_mounts opens_are_kept; }
version42() {
  version4 "$1"
  checks "$1" allocation_and_holes copies_by_the_server extended_attributes
}
several_connections() { version42 "$1"; checks "$1" four_connections; }

checks() {
  local t=$1 c
  shift
  for c in "$@"; do check "$t: ${c//_/ }" "$c"; done
}
