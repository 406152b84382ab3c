# Runs in the guest: data servers, the metadata server and clients of a pNFS cluster fail while Linux's client uses files with three
# copies. All three data servers are `slipway`. Each file is compared with its copies at the end. /run/out/env sets SLIPWAY, KIND, and the
# VERSION of the mount. Over software iWARP, Linux 6.1 and 6.12 can wait forever for the invalidation of memory (frwr_unmap_sync) when they end a
# connection to a data server, so this mount is over tcp.
. /run/out/guest/pnfs_lib.sh
PORT+=(2053)
RDMA_PORT+=(20053)
# The second data server has an address of its own, which can be removed.
APART=10.9.1.3
HOST=($SERVER $SERVER $APART $SERVER)
# The second client has a network of its own.
OTHER=10.9.2.2
IN_OTHER="nsenter --net=/run/netns/other"

networks() {
  network
  ip -n server addr add $APART/24 dev client1
  ip netns add other
  ip link add other0 netns other type veth peer name other1 netns server
  ip -n other addr add $OTHER/24 dev other0; ip -n other link set other0 up; ip -n other link set lo up
  ip -n server addr add 10.9.2.1/24 dev other1; ip -n server link set other1 up
  ip -n other route add default via 10.9.2.1
}

# Linux waits for a data server for (retrans + 1) times timeo, in tenths of a second: by default for minutes.
client_waits_briefly() {
  local parameters=/sys/module/nfs_layout_flexfiles/parameters
  echo 30 >$parameters/dataserver_timeo
  echo 1 >$parameters/dataserver_retrans
}

# The second data server's file system can be full.
full_servers() {
  mkdir -p /run/ds{2,3} /run/state3 /run/other
  mount -t tmpfs -o size=64m,mode=700 ds2 /run/ds2
  chmod 700 /run/ds3
  # Instead of knfsd.
  configure() { common_configuration >/run/slipway.toml; { echo "mirrors = 3"; for server in 1 2 3; do data_server $server 3; done; } >>/run/slipway.toml; }
  servers
  start 3
}

mount_other() {
  $IN_OTHER unshare --uts bash -c "hostname other; mount -t nfs -o vers=4.2,proto=tcp $SERVER:/export /run/other"
}

# fresh FILE: reads FILE from the servers, and compares it with /run/local.
fresh() {
  echo 3 >/proc/sys/vm/drop_caches
  same "$1"
}

# All copies and the mount have the contents of /run/local. A repair may have to end first.
healed() {
  await copies_equal /run/local 1 2 3
  fresh /run/mnt/file
}

removed() {
  rm /run/mnt/file
  await no_objects
}

# survives N FAIL REPAIR: data server N fails while a file is written. The program gets no error, and reads what it wrote. The copy there is
# incomplete. When the data server is back, the copy is made again.
survives() {
  local all="1 2 3"
  cp /run/sample /run/local
  exec 5<>/run/mnt/file
  head -c 1000000 /run/sample >&5; sync /run/mnt/file
  equal "1 2 3" "$(complete)"
  $2
  tail -c +1000001 /run/sample >&5; sync /run/mnt/file
  exec 5>&-
  fresh /run/mnt/file
  # Only the copy there has missed writes.
  equal "$(echo ${all/$1})" "$(complete)"
  $3
  healed
  removed
}
# complete: the data servers whose copies have all data.
complete() { echo $(ask layout show --json $EXPORT/file | grep -o '"server":[0-9]*,[^}]*"state":"in_sync"' | cut -d, -f1 | cut -d: -f2 | sort); }
hang() { kill -STOP "$(cat /run/pid.1)"; }
continue_() { kill -CONT "$(cat /run/pid.1)"; }
part() { ip -n server addr del $APART/24 dev client1; }
join() { ip -n server addr add $APART/24 dev client1; }
fill() { mount -o remount,size=1200k /run/ds2; }
empty() { mount -o remount,size=64m /run/ds2; }

# A data server with little throughput delays a client, and no data are lost.
slow() {
  local OPTIONS="--limit 1M"
  stop 3; start 3
  cp /run/sample /run/local; cp /run/sample /run/mnt/file; sync /run/mnt/file
  healed
  removed
}

# A program writes blocks, and each is on stable storage before it writes the next.
cat >/run/writer.py <<'P'
import os, sys, time
def block(number): return b"%08d" % number * 1024
path, log = sys.argv[1:3]
if len(sys.argv) > 3:  # Compares the blocks that were written.
    numbers = [int(line) for line in open(log)]
    with open(path, "rb") as file:
        for number in numbers:
            file.seek(number * 8192)
            assert file.read(8192) == block(number), f"block {number} is lost"
    print(len(numbers), "blocks")
else:
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    with open(log, "w") as done:
        number = 0
        while not os.path.exists("/run/enough"):
            os.pwrite(file, block(number), number * 8192)
            os.fsync(file)
            print(number, file=done, flush=True)
            number += 1
P
progress() { [ "$(wc -l </run/written)" -gt "$1" ]; }
writes_go_on() {
  await progress_or_end $(($(wc -l </run/written) + 10))
  kill -0 $writer
}
progress_or_end() { progress $1 || ! kill -0 $writer; }

# Servers are killed in turn and started again while the program writes. No block is lost, and the program gets no error.
under_load() {
  local writer victim
  rm -f /run/enough; : >/run/written
  python3 /run/writer.py /run/mnt/file /run/written & writer=$!
  for victim in 0 1 0 3 2; do
    writes_go_on
    stop $victim
    # The other servers go on without a data server.
    [ $victim = 0 ] || writes_go_on
    start $victim
  done
  writes_go_on
  touch /run/enough
  wait $writer
  echo 3 >/proc/sys/vm/drop_caches
  python3 /run/writer.py /run/mnt/file /run/written compare
  cp $EXPORT/file /dev/null
  cat /run/mnt/file >/run/local
  healed
  removed
}

# Writes a block, and another one when it is told so. It does not close the file, so the client sends no LAYOUTCOMMIT.
cat >/run/silent.py <<'P'
import mmap, os
file = os.open("/run/other/file", os.O_RDWR | os.O_DIRECT)
block = mmap.mmap(-1, 4096)
block.write(b"s" * 4096)
os.pwritev(file, [block], 8192)
open("/run/silent.wrote", "w")
open("/run/silent.go").read()
try:
    os.pwritev(file, [block], 0)
except OSError as error:
    print(error)
P
is_later() { [ "$(stat -c %.9Y $EXPORT/file)" != "$1" ]; }
# is_fenced: a data server has refused a WRITE. After the first error, Linux drops its layout, and may not send the WRITEs to the others.
is_fenced() { grep -qE "(procedure|operation)=\"WRITE\" peer=$OTHER:.* status=(Acces|Access|Stale|Perm)" /run/out/serve.[123].log; }

# Another client that has a layout to write does not answer. Its layout is revoked after a lease. The file has the time of its last write, and
# the copy at a stopped server is made again. The data servers refuse what the client writes by its former layout.
silent_client() {
  local server before silent
  cp /run/sample /run/local
  mount_other
  cp /run/sample /run/other/file; sync /run/other/file
  copies_equal /run/local 1 2 3
  before=$(stat -c %.9Y $EXPORT/file)
  mkfifo /run/silent.go
  python3 /run/silent.py & silent=$!
  await test -e /run/silent.wrote
  head -c 4096 /dev/zero | tr '\0' s | dd of=/run/local bs=4096 seek=2 conv=notrunc status=none
  equal "$before" "$(stat -c %.9Y $EXPORT/file)"
  ip -n other link set other0 down
  # The server recalls layouts from a data server that does not answer.
  stop 1
  await is_later "$before"
  grep -q 'revoked' /run/out/serve.0.log
  dd if=/run/small of=/run/mnt/file bs=50000 seek=7 conv=notrunc,fsync status=none
  dd if=/run/small of=/run/local bs=50000 seek=7 conv=notrunc status=none
  start 1
  healed
  # The client is back, but the metadata server does not answer. So the client does not know that its layout was revoked.
  kill -STOP "$(cat /run/pid.0)"
  ip -n other link set other0 up
  ip -n other route add default via 10.9.2.1
  refused is_fenced
  echo >/run/silent.go
  await is_fenced
  kill -CONT "$(cat /run/pid.0)"
  # Now it writes through the metadata server.
  wait $silent
  umount -f /run/other || umount -l /run/other
  cat /run/mnt/file >/run/local
  healed
  removed
}

# Another client truncates a file while this one writes it. Both see the same bytes in the end, and so do all copies.
truncated_by_another() {
  local round writer
  mount_other
  rm -f /run/enough; : >/run/written
  python3 /run/writer.py /run/mnt/file /run/written & writer=$!
  for round in 1 2 3 4 5; do
    writes_go_on
    truncate -s $((round * 10000)) /run/other/file
  done
  touch /run/enough
  wait $writer
  echo 3 >/proc/sys/vm/drop_caches
  cat /run/mnt/file >/run/local
  same /run/other/file
  healed
  umount /run/other
  removed
}

# Another client removes a file while this one has it open for writing. Its data stay until it closes the file. Linux refuses open(2)
# and fstat(2) of a file without links, so the program must not call them.
removed_by_another() {
  cp /run/sample /run/local
  mount_other
  exec 5<>/run/mnt/file
  head -c 1000000 /run/sample >&5; sync /run/mnt/file
  rm /run/other/file
  tail -c +1000001 /run/sample >&5
  python3 -c 'import os; os.fsync(5)'
  echo 3 >/proc/sys/vm/drop_caches
  python3 -c 'import os, sys; sys.stdout.buffer.write(os.pread(5, 4000000, 0))' | cmp /run/sample -
  copies_equal /run/local 1 2 3
  exec 5>&-
  await no_objects
  umount /run/other
}

check "network" networks; passed || exit 1
check "client: waits briefly for data servers" client_waits_briefly
check "slipway serve: starts" full_servers; passed || exit 1
check "mounts with flexible files" mounted $VERSION; passed || exit 1
check "a data server hangs" survives 1 hang continue_
check "a data server is partitioned" survives 2 part join
check "a data server is full" survives 2 fill empty
check "a data server is slow" slow
check "servers are killed while a program writes" under_load
check "a client with a layout does not answer" silent_client
check "another client truncates a file that is written" truncated_by_another
check "another client removes an open file" removed_by_another
check "unmounts" umount /run/mnt
check "kernel log is clean" kernel_log_is_clean 'nfs: server .* not responding|NFS: state manager'
! grep -q ^fail "$RESULTS"
