# Runs in the guest: our client uses a metadata server of another implementation: Linux's server, built with the flexible files layouts that
# Debian leaves out (`kernel-lab nfsd`). It is its own data server, by NFSv3, for whole files. It asks for reads by other layouts than for
# writes, and for no I/O through the metadata server and no LAYOUTCOMMIT. A LAYOUTGET recalls the layouts of all other clients. All
# connections are within the guest. /run/out/env sets SLIPWAY, PEER and VERSIONS.
. /run/out/guest/lib.sh
. /run/out/env
near SLIPWAY PEER
: >"$RESULTS"
EXPORT=/run/export
LEASE_S=15
head -c 3000000 /run/out/random >/run/sample
head -c 100000 /run/out/random >/run/small
# The numbers of procedures of NFSv3, and of operations of NFSv4.
READ3=6 WRITE3=7 READ4=25 WRITE4=38 LAYOUTCOMMIT=49 LAYOUTGET=50

serve() {
  rmmod nfsd
  insmod /run/out/nfsd.ko
  mkdir -p $EXPORT /run/mnt
  truncate -s 200M /run/disk; mkfs.ext4 -q -O ^has_journal /run/disk; mount -o loop /run/disk $EXPORT
  chmod 1777 $EXPORT
  mount -t nfsd nfsd /proc/fs/nfsd
  echo $LEASE_S >/proc/fs/nfsd/nfsv4leasetime; echo $LEASE_S >/proc/fs/nfsd/nfsv4gracetime
  siw
  knfsd $EXPORT pnfs
  mount -t tracefs tracefs /sys/kernel/tracing
  echo 1 >/sys/kernel/tracing/events/nfsd/nfsd_layout_recall/enable
}

# calls PROGRAM NUMBER: how often the server has executed a procedure (proc3) or an operation (proc4ops).
calls() { awk -v program=$1 -v at=$(($2 + 3)) '$1 == program { print $at }' /proc/net/rpc/nfsd; }
recalls() { grep -c nfsd_layout_recall: /sys/kernel/tracing/trace || true; }
# at NAME: the URL of a file.
at() { echo "nfs://127.0.0.1/$1?vers=$VERSION&uid=0&gid=0"; }

# by_layouts COMMAND…: no data may pass the server by NFSv4, and some must be read and written by NFSv3.
by_layouts() {
  local through="$(calls proc4ops $READ4) $(calls proc4ops $WRITE4)" commits=$(calls proc4ops $LAYOUTCOMMIT)
  local read=$(calls proc3 $READ3) written=$(calls proc3 $WRITE3)
  "$@"
  equal "$through" "$(calls proc4ops $READ4) $(calls proc4ops $WRITE4)"
  [ "$(calls proc3 $READ3)" -gt "$read" ]
  [ "$(calls proc3 $WRITE3)" -gt "$written" ]
  equal "$commits" "$(calls proc4ops $LAYOUTCOMMIT)"
}

# direct_bytes WANTED ARGUMENTS…: copies with these arguments, so many bytes directly.
direct_bytes() {
  local said
  said=$("$SLIPWAY" cp -q --json "${@:2}")
  echo "$said"
  equal "\"direct_bytes\":$1" "$(grep -o '"direct_bytes":[0-9]*' <<<"$said")"
}

copies() {
  direct_bytes 3000000 /run/sample "$(at file)"
  cmp /run/sample $EXPORT/file
  rm -f /run/back
  direct_bytes 3000000 "$(at file)" /run/back
  cmp /run/sample /run/back
}

# The library, with two clients. Their layouts are recalled.
library() {
  local recalled=$(recalls)
  "$PEER" layouts "$(at '')"
  [ "$(recalls)" -gt "$recalled" ]
}

mounted() {
  "$SLIPWAY" -v mount "$(at '')" /run/mnt >>/run/out/mount.log 2>&1 &
  echo $! >/run/pid.mount
  await mounted_or_dead
  mountpoint -q /run/mnt
}
mounted_or_dead() { mountpoint -q /run/mnt || has_ended "$(cat /run/pid.mount)"; }
unmounted() { umount /run/mnt; await has_ended "$(cat /run/pid.mount)"; }
has_ended() { ! kill -0 "$1"; }

# The same operations on the mount and on a local file.
changes() {
  local to
  for to in /run/local /run/mnt/changed; do
    cp /run/sample $to
    dd if=/run/small of=$to bs=50000 seek=7 conv=notrunc status=none
    truncate -s 1234567 $to
    truncate -s 2000001 $to
    cat /run/small >>$to
    python3 - $to <<'P'
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
with mmap.mmap(fd, 0) as memory:
    for at in range(5000, len(memory) - 10, 100_003):
        memory[at:at + 10] = b"0123456789"
    memory.flush()
P
    sync $to
  done
  equal "$(stat -c %s /run/local)" "$(stat -c %s /run/mnt/changed)"
  cmp /run/local /run/mnt/changed
  cmp /run/local $EXPORT/changed
  echo 3 >/proc/sys/vm/drop_caches
  cmp /run/local /run/mnt/changed
}

# A program on the server and a client without layouts see what is written, and the client sees what they write.
others() {
  cmp /run/local $EXPORT/changed
  rm -f /run/back
  "$SLIPWAY" cp -q "$(at changed)&pnfs=off" /run/back; cmp /run/local /run/back
  "$SLIPWAY" cp -q /run/sample "$(at changed)&pnfs=off"
  cmp /run/sample $EXPORT/changed
  await cmp /run/sample /run/mnt/changed
}

# The client keeps no layouts of files that it does not use.
returned() {
  cp /run/sample /run/mnt/idle; sync /run/mnt/idle; cmp /run/sample /run/mnt/idle
  await no_layouts
}
no_layouts() { ! grep -q 'type: layout' /proc/fs/nfsd/clients/*/states; }

# The server gives the readers of a layout the group of the file, and another user. If the group cannot read the file, its own data server
# rejects the READs. They pass through the metadata server then, and the client does not ask for a layout for each of them.
refused_by_data_server() {
  local gets
  cp /run/sample $EXPORT/secret; chmod 600 $EXPORT/secret
  gets=$(calls proc4ops $LAYOUTGET)
  rm -f /run/back
  direct_bytes 0 "$(at secret)&rsize=65536" /run/back
  cmp /run/sample /run/back
  [ $(($(calls proc4ops $LAYOUTGET) - gets)) -le 4 ]
}

# The server restarts while clients write and read, and hold locks.
restarts() {
  local peer written
  rm -f /run/out/restart /run/out/restarted
  "$PEER" restart /run/out "$(at '')" "$(at '')" &
  peer=$!
  await begun_or_dead $peer
  test -e /run/out/restart
  rpc.nfsd 0
  equal 0 "$(cat /proc/fs/nfsd/threads)"
  rpc.nfsd 4
  echo rdma 20049 >/proc/fs/nfsd/portlist
  written=$(calls proc3 $WRITE3)
  touch /run/out/restarted
  wait $peer
  [ "$(calls proc3 $WRITE3)" -gt "$written" ]
}

begun_or_dead() { [ -e /run/out/restart ] || has_ended $1; }

check "Linux's server: starts with flexible files" serve; passed || exit 1
for VERSION in $VERSIONS; do
  check "$VERSION: copies pass the metadata server by" by_layouts copies
  check "$VERSION: sizes, and layouts of two clients" library
  check "$VERSION: mounts" mounted; passed || continue
  check "$VERSION: programs on the mount change content and size" by_layouts changes
  check "$VERSION: clients without layouts" others
  check "$VERSION: layouts of idle files are returned" returned
  check "$VERSION: unmounts" unmounted
  check "$VERSION: a data server that refuses reads" refused_by_data_server
  check "$VERSION: survives a restart of the server" restarts
done
# The state directory of clients is in an overlay.
check "kernel log is clean" kernel_log_is_clean 'expired client state directory'
! grep -q ^fail "$RESULTS"
