# Runs in the guest: Linux's client uses a pNFS cluster. The metadata server and two data servers are `slipway` in a network
# namespace; the third data server is the guest's own knfsd. Clients use all of them by NFSv3 first, and then the first by 4.1 and
# the second by 4.2, each over tcp and over rdma. At last, files have one copy, which is striped over the first two, and Linux uses
# files layouts. /run/out/env sets SLIPWAY, and KIND, the kind of the first two data servers: nfs3 or slipway.
. /run/out/guest/pnfs_lib.sh

# The data servers are started again as those of NFSv4. knfsd does not say that it is a data server, so clients use it by NFSv3.
newer_data_servers() {
  stop 0; stop 1; stop 2
  OPTIONS=--data-server
  configure 4.1 4.2 4.2
  start 1; start 2; start 0
}

# The metadata server is started again as one that grants files layouts. Files have one copy.
files_layouts() {
  stop 0
  configure_files
  start 0
}

# The objects of the only file have the contents of FILE, in turn 64 KiB on each data server.
stripes_equal() {
  local server
  for server in 1 2; do equal 1 "$(ls /run/ds$server | wc -l)" || return 1; done
  perl -e 'local $/; my ($file, @objects) = map { open my $f, "<", $_ or die "$_: $!"; binmode $f; scalar <$f> } @ARGV;
    my $first = substr($file, 0, 65536) eq substr($objects[0], 0, 65536) ? 0 : 1;
    for (my $at = 0; $at < length $file; $at += 65536) {
      my $object = $objects[($first + $at / 65536) % 2];
      my $unit = substr($file, $at, 65536);
      my $found = length $object > $at ? substr($object, $at, length $unit) : "";
      die "the unit at $at differs\n" if $found . "\0" x (length($unit) - length $found) ne $unit;
    }' "$1" /run/ds1/* /run/ds2/*
}

# content_is FILE: the objects of the only file on data servers have the contents of FILE.
content_is() {
  case $LAYOUTS in
    flexible) copies_equal "$1" 1 2 3 ;;
    files) stripes_equal "$1" ;;
  esac
}

# All data go to all data servers, and come from them. $1 and $2 are those of `mounted`.
direct() {
  local writes reads former=()
  former=($(at_server 1 WRITE) $(at_server 2 WRITE) $(at_server 3 WRITE))
  writes=$(through_mds WRITE); reads=$(through_mds READ)
  cp /run/sample /run/mnt/file; sync /run/mnt/file
  copies_equal /run/sample 1 2 3
  equal "$writes" "$(through_mds WRITE)"
  for server in 1 2 3; do [ "$(at_server $server WRITE)" -gt "${former[$((server - 1))]}" ]; done
  # With a layout to read.
  umount /run/mnt; mounted "$@"
  former=$(at_servers READ)
  cmp /run/sample /run/mnt/file
  equal "$reads" "$(through_mds READ)"
  [ "$(at_servers READ)" -gt "$former" ]
}

# by_version3 N: the number of calls by which the client reads and writes at a data server by NFSv3.
by_version3() { grep -cE "procedure=\"(READ|WRITE|COMMIT)\" peer=$CLIENT:" /run/out/serve.$1.log || true; }

# All data go to all data servers, and come from them, by the configured versions. The clients of NFSv4 need no OPEN.
direct_by_versions() {
  local server former=($(by_version3 1) $(by_version3 2))
  direct "$@"
  equal "${former[*]}" "$(by_version3 1) $(by_version3 2)"
  for server in 1 2; do
    equal 0 "$(grep -c "operation=\"OPEN\" peer=$CLIENT:" /run/out/serve.$server.log)"
  done
  grep -q 'clients use NFSv3 at this data server.*/run/ds3' /run/out/serve.0.log
  # The client is connected to all data servers.
  cp /run/sample /run/mnt/file; sync /run/mnt/file
  equal "4.1 4.2" "$(echo $(versions_at 1) $(versions_at 2))"
}

# over TRANSPORT: the numbers of calls by which the client writes to and reads from the first two data servers over a transport.
over() { echo $(calls 1 WRITE $1) $(calls 2 WRITE $1) $(calls 1 READ $1) $(calls 2 READ $1); }

# direct_over_rdma CHECK…: a client that has mounted over RDMA uses data servers over RDMA, and one without an RDMA address over TCP.
direct_over_rdma() {
  local at after tcp=$(over tcp) before=($(over rdma))
  "$@"
  [ $LAYOUTS = files ] || read_first_copies "${@:2}"
  equal "$tcp" "$(over tcp)"
  after=($(over rdma))
  for at in ${!after[*]}; do [ "${after[at]}" -gt "${before[at]}" ]; done
}

# read_first_copies VERSION [OPTIONS]: the client reads a file whose first copy is on the first data server, and one for the second. The place
# of a new file is random.
read_first_copies() {
  local server reads round=0
  for server in 1 2; do
    until cp /run/small /run/mnt/first$server; sync /run/mnt/first$server; [ "$(first_copy $EXPORT/first$server)" = $server ]; do
      rm /run/mnt/first$server
      round=$((round + 1))
      [ $round -lt 200 ]
    done
  done
  umount /run/mnt; mounted "$@"
  reads=$(through_mds READ)
  for server in 1 2; do cmp /run/small /run/mnt/first$server; done
  equal "$reads" "$(through_mds READ)"
  rm /run/mnt/first[12]
}

# All data go to the data servers of their stripes, and come from them, by the version of the mount. The clients need no OPEN there.
direct_by_stripes() {
  local server version3=($(by_version3 1) $(by_version3 2))
  local writes=$(through_mds WRITE) reads=$(through_mds READ) former=($(at_server 1 WRITE) $(at_server 2 WRITE))
  cp /run/sample /run/mnt/file; sync /run/mnt/file
  stripes_equal /run/sample
  equal "$writes" "$(through_mds WRITE)"
  for server in 1 2; do [ "$(at_server $server WRITE)" -gt "${former[$((server - 1))]}" ]; done
  # With a layout to read.
  umount /run/mnt; mounted "$@"
  former=($(at_server 1 READ) $(at_server 2 READ))
  cmp /run/sample /run/mnt/file
  equal "$reads" "$(through_mds READ)"
  for server in 1 2; do
    [ "$(at_server $server READ)" -gt "${former[$((server - 1))]}" ]
    equal $1 "$(versions_at $server)"
    equal 0 "$(grep -c "operation=\"OPEN\" peer=$CLIENT:" /run/out/serve.$server.log)"
  done
  equal "${version3[*]}" "$(by_version3 1) $(by_version3 2)"
}

# The metadata server knows the size and the time of each synchronous write, while the client still has the file open.
sizes() {
  local at before
  exec 5<>/run/mnt/file
  for at in 4000000 4200000 5096000; do
    before=$(stat -c %.9Y $EXPORT/file)
    head -c 5000 /run/small | dd of=/run/mnt/file bs=5000 seek=$at oflag=sync,seek_bytes conv=notrunc status=none
    equal $((at + 5000)) "$(stat -c %s $EXPORT/file)"
    [ "$before" != "$(stat -c %.9Y $EXPORT/file)" ]
  done
  # The size stays, and the time changes.
  before=$(stat -c %.9Y $EXPORT/file)
  head -c 4096 /run/small | dd of=/run/mnt/file bs=4096 seek=1 oflag=sync conv=notrunc status=none
  [ "$before" != "$(stat -c %.9Y $EXPORT/file)" ]
  exec 5>&-
}

# Another client replaces the contents of a file whose layout this one has.
recalled() {
  exec 5<>/run/mnt/file
  head -c 1000000 /run/sample >&5; sync /run/mnt/file
  $IN_SERVER "$SLIPWAY" cp /run/small "nfs://$SERVER/export/file?mountport=2049&vers=4.2"
  exec 5>&-
  cmp /run/small /run/mnt/file
  # The copy has replaced the file, whose objects are removed later.
  await stripes_equal /run/small
  cp /run/sample /run/mnt/file; sync /run/mnt/file
  stripes_equal /run/sample
}

# A data server is killed while a file is written. There is no other copy: the program gets an error, and no data that were
# synchronised before are lost.
failure_of_stripe() {
  exec 5<>/run/mnt/dies
  head -c 1000000 /run/sample >&5; sync /run/mnt/dies
  stop 1
  tail -c +1000001 /run/sample >&5 || true
  ! sync /run/mnt/dies || return 1
  exec 5>&- || true
  start 1
  # The metadata server tries the data server every five seconds.
  await cmp -n 1000000 /run/sample /run/mnt/dies
  cp /run/sample /run/mnt/dies; sync /run/mnt/dies
  stripes_equal /run/sample
  echo 3 >/proc/sys/vm/drop_caches
  cmp /run/sample /run/mnt/dies
  rm /run/mnt/dies
  await no_objects
}

# The same operations on the mount and on a local file, with the cache and without it.
changes() {
  local to
  for to in /run/local /run/mnt/file; do
    cp /run/sample $to
    dd if=/run/small of=$to bs=50000 seek=7 conv=notrunc status=none
    truncate -s 1234567 $to
    truncate -s 2000001 $to
    cat /run/small >>$to
    dd if=/run/small of=$to bs=4096 count=10 seek=900 conv=notrunc oflag=$([ $to = /run/local ] && echo dsync || echo direct) status=none
    sync $to
  done
  equal "$(stat -c %s /run/local)" "$(stat -c %s /run/mnt/file)"
  same /run/mnt/file
  echo 3 >/proc/sys/vm/drop_caches
  same /run/mnt/file
  dd if=/run/mnt/file of=/run/direct bs=65536 iflag=direct status=none; same /run/direct
  content_is /run/local
}

# Programs write around the edges of stripe units, with holes between them, and read across both: by O_DIRECT and by memory maps.
edges() {
  local mode
  python3 /run/out/guest/edges.py >/run/local
  for mode in direct map; do
    rm -f /run/mnt/file; truncate -s $(stat -c %s /run/local) /run/mnt/file
    python3 /run/out/guest/edges.py /run/mnt/file 0 1 $mode
    echo 3 >/proc/sys/vm/drop_caches
    same /run/mnt/file
    await content_is /run/local
  done
}

# Two clients write other ranges of one file at the same time, in the same stripe units. The second client has a host name and a network of
# its own, in which there is only TCP.
two_writers() {
  local modes one
  mkdir -p /run/other
  $IN_SERVER unshare --uts bash -c "hostname other; mount -t nfs -o vers=$1,proto=tcp $SERVER:/export /run/other"
  python3 /run/out/guest/edges.py >/run/local
  for modes in "direct direct" "map cached"; do
    rm -f /run/mnt/file; truncate -s $(stat -c %s /run/local) /run/mnt/file
    python3 /run/out/guest/edges.py /run/mnt/file 0 2 ${modes% *} & one=$!
    python3 /run/out/guest/edges.py /run/other/file 1 2 ${modes#* }
    wait $one
    echo 3 >/proc/sys/vm/drop_caches
    same /run/mnt/file; same /run/other/file
    await content_is /run/local
  done
  umount /run/other
}

# without_rdma_device CHECK…: the data servers have addresses of RDMA, too, and this client has no device for it.
without_rdma_device() {
  rdma link delete siw1
  mounted 4.2
  "$@" 4.2
  rm /run/mnt/file
  await no_objects
  umount /run/mnt
  rdma link add siw1 type siw netdev client0
}

# A truncation is not undone by the LAYOUTCOMMIT of earlier writes: Linux sends it after the truncation, or at the same time.
truncations() {
  local round
  cp /run/sample /run/local; truncate -s 1234567 /run/local; truncate -s 2000001 /run/local
  for round in 1 2; do
    exec 5<>/run/mnt/file
    cat /run/sample >&5
    if [ $round = 1 ]; then
      truncate -s 1234567 /run/mnt/file; sync /run/mnt/file
    else
      truncate -s 1234567 /run/mnt/file & sync /run/mnt/file & wait
    fi
    # With a delegation, the client does not see the size at the metadata server.
    equal 1234567 "$(stat -c %s $EXPORT/file)"
    truncate -s 2000001 /run/mnt/file
    exec 5>&-
    sync /run/mnt/file
    echo 3 >/proc/sys/vm/drop_caches
    same /run/mnt/file
    copies_equal /run/local 1 2 3
    truncate -s 0 /run/mnt/file
  done
}

# Clients without layouts see the same bytes, and can change them.
other_clients() {
  local options created at=0 url="nfs://$SERVER/export"
  for options in "mountport=2049&vers=3" "vers=4.2&pnfs=off"; do
    rm -f /run/back
    not_direct "$url/file?$options" /run/back; cmp /run/local /run/back
    # The client remembers for a while that a name does not exist.
    created=proxied$((++at))
    # On a busy machine, a long file takes longer than the metadata server waits for its data servers.
    not_direct /run/small "$url/$created?$options"
    cmp /run/small /run/mnt/$created
    rm /run/mnt/$created
  done
}

# not_direct SOURCE TARGET: copies a file with our client. No byte passes directly between it and data servers.
not_direct() {
  local result
  result=$($IN_SERVER "$SLIPWAY" cp --quiet --json "$@")
  equal '"direct_bytes":0' "$(grep -o '"direct_bytes":[0-9]*' <<<"$result")"
}

# lone_layoutgets: the number of LAYOUTGETs that cost the client a round trip, because they are not in the COMPOUND of an OPEN.
lone_layoutgets() {
  awk -v peer="peer=$CLIENT:" 'index($0, peer) && match($0, /operation="[A-Z_]*"/) {
      operation = substr($0, RSTART + 11, RLENGTH - 12)
      if (operation == "SEQUENCE") opens = 0
      if (operation == "OPEN") opens = 1
      if (operation == "LAYOUTGET" && !opens) lone++
    } END { print lone + 0 }' /run/out/serve.0.log
}

# small OPTIONS…: the data of small files stay with the metadata server, and cost no additional round trip. The arguments are those of `mounted`.
small() {
  local lone gets
  lone=$(lone_layoutgets)
  head -c 5000 /run/small >/run/mnt/little; sync /run/mnt/little
  no_objects
  cmp <(head -c 5000 /run/small) $EXPORT/little
  umount /run/mnt; mounted "$@"
  gets=$(through_mds LAYOUTGET)
  cmp <(head -c 5000 /run/small) /run/mnt/little
  # Linux asks with OPEN.
  [ "$(through_mds LAYOUTGET)" -gt "$gets" ]
  equal "$lone" "$(lone_layoutgets)"
  rm /run/mnt/little
}

unlinked() {
  rm /run/mnt/file
  await no_objects
}

# A data server is killed while a file is written. Nobody gets an error, and the copy is made again.
failure() {
  local at
  exec 5<>/run/mnt/dies
  head -c 1000000 /run/sample >&5; sync /run/mnt/dies
  copies_equal <(head -c 1000000 /run/sample) 1
  stop 1
  tail -c +1000001 /run/sample >&5; sync /run/mnt/dies
  exec 5>&-
  echo 3 >/proc/sys/vm/drop_caches
  cmp /run/sample /run/mnt/dies
  copies_equal /run/sample 2 3
  start 1
  await copies_equal /run/sample 1
  # Only the new copy is there.
  copies_equal /run/sample 1 2 3
  echo 3 >/proc/sys/vm/drop_caches
  cmp /run/sample /run/mnt/dies
  rm /run/mnt/dies
  await no_objects
}

# The metadata server is killed while a client has a layout to write, and before it has committed the size.
restart() {
  exec 5<>/run/mnt/restarted
  head -c 1000000 /run/sample >&5; sync /run/mnt/restarted
  stop 0; start 0 5>&-
  tail -c +1000001 /run/sample >&5; sync /run/mnt/restarted
  exec 5>&-
  echo 3 >/proc/sys/vm/drop_caches
  cmp /run/sample /run/mnt/restarted
  content_is /run/sample
  rm /run/mnt/restarted
  await no_objects
}

# The metadata server is started again as one whose new files have two copies.
two_copies() {
  stop 0
  MIRRORS=2 configure 4.1 4.2 4.2
  start 0
}

is_empty() { [ -z "$(ls /run/ds$1)" ]; }

# A data server is drained while the client writes to a file with a copy there. No write is lost, and the copy is elsewhere after that.
drained() {
  local server others=() round=0 to
  cp /run/sample /run/local; cp /run/sample /run/mnt/moved; sync /run/mnt/moved
  server=$(first_copy $EXPORT/moved)
  for to in 1 2 3; do [ $to = $server ] || others+=($to); done
  ask ds drain $server
  until [ $round -gt 0 ] && is_drained $server; do
    for to in /run/local /run/mnt/moved; do
      dd if=/run/small of=$to bs=10000 seek=$((round * 37 % 350)) skip=$((round % 9)) count=1 conv=notrunc status=none
    done
    sync /run/mnt/moved
    round=$((round + 1))
    [ $round -lt 1000 ]
  done
  same /run/mnt/moved
  echo 3 >/proc/sys/vm/drop_caches
  same /run/mnt/moved
  await copies_equal /run/local "${others[@]}"
  await is_empty $server
  ask ds undrain $server
  rm /run/mnt/moved
  await no_objects
}

check "network" network; passed || exit 1
check "knfsd: starts" knfsd_data_server; passed || exit 1
check "slipway serve: starts" servers; passed || exit 1
for version in 4.1 4.2; do
  check "$version: mounts with flexible files" mounted $version; passed || continue
  check "$version: small files stay with the metadata server" small $version
  check "$version: data pass the metadata server by" direct $version
  traced "$version: changes of content and size" changes
  check "$version: clients without layouts" other_clients
  [ $version = 4.1 ] || traced "$version: memory maps, O_DIRECT over holes and edges" edges
  [ $version = 4.1 ] || traced "$version: two clients write to one file" two_writers $version
  traced "$version: truncations of data that are not committed" truncations
  check "$version: removes objects" unlinked
  # Linux waits for a data server for half a minute.
  [ $version = 4.1 ] || check "$version: survives the end of a data server" failure
  check "$version: survives the end of the metadata server" restart
  check "$version: unmounts" umount /run/mnt
done
check "4.2 over rdma: mounts with flexible files" mounted 4.2 $RDMA; passed || exit 1
check "4.2 over rdma: data pass the metadata server by" direct_over_rdma direct 4.2 $RDMA
traced "4.2 over rdma: changes of content and size" changes
traced "4.2 over rdma: truncations of data that are not committed" truncations
traced "4.2 over rdma: memory maps, O_DIRECT over holes and edges" edges
traced "4.2 over rdma: two clients write to one file" two_writers 4.2
check "4.2 over rdma: removes objects" unlinked
check "4.2 over rdma: unmounts" umount /run/mnt
check "4.2: a client without an RDMA device" without_rdma_device direct
check "data servers of 4.1 and 4.2: start" newer_data_servers; passed || exit 1
# The subshell of the check has not changed this one.
OPTIONS=--data-server
for version in 4.1 4.2; do
  on="$version, data servers of 4.1 and 4.2"
  check "$on: mounts with flexible files" mounted $version; passed || continue
  check "$on: data pass the metadata server by" direct_by_versions $version
  traced "$on: changes of content and size" changes
  traced "$on: truncations of data that are not committed" truncations
  check "$on: removes objects" unlinked
  [ $version = 4.1 ] || check "$on: survives the end of a data server" failure
  [ $version = 4.1 ] || check "$on: survives the end of the metadata server" restart
  check "$on: unmounts" umount /run/mnt
  on="$on, over rdma"
  check "$on: mounts with flexible files" mounted $version $RDMA; passed || continue
  check "$on: data pass the metadata server by" direct_over_rdma direct_by_versions $version $RDMA
  traced "$on: changes of content and size" changes
  traced "$on: truncations of data that are not committed" truncations
  check "$on: removes objects" unlinked
  check "$on: unmounts" umount /run/mnt
done
check "two copies: metadata server starts" two_copies; passed || exit 1
check "two copies: mounts with flexible files" mounted 4.2; passed || exit 1
check "two copies: a data server is drained while a file is written" drained
check "two copies: unmounts" umount /run/mnt
check "files layouts: metadata server starts" files_layouts; passed || exit 1
LAYOUTS=files
for version in 4.1 4.2; do
  on="$version, files layout"
  check "$on: mounts" mounted $version; passed || continue
  check "$on: small files stay with the metadata server" small $version
  check "$on: data pass the metadata server by" direct_by_stripes $version
  check "$on: changes of content and size" changes
  check "$on: clients without layouts" other_clients
  check "$on: sizes and times" sizes
  check "$on: recall" recalled
  [ $version = 4.2 ] || check "$on: memory maps, O_DIRECT over holes and edges" edges
  [ $version = 4.2 ] || check "$on: two clients write to one file" two_writers $version
  check "$on: removes objects" unlinked
  check "$on: survives the end of the metadata server" restart
  [ $version = 4.1 ] || check "$on: reports the end of a data server" failure_of_stripe
  check "$on: unmounts" umount /run/mnt
  on="$on, over rdma"
  check "$on: mounts" mounted $version $RDMA; passed || continue
  check "$on: data pass the metadata server by" direct_over_rdma direct_by_stripes $version $RDMA
  check "$on: changes of content and size" changes
  [ $version = 4.2 ] || check "$on: memory maps, O_DIRECT over holes and edges" edges
  [ $version = 4.2 ] || check "$on: two clients write to one file" two_writers $version
  check "$on: removes objects" unlinked
  check "$on: unmounts" umount /run/mnt
done
check "4.2, files layout: a client without an RDMA device" without_rdma_device direct_by_stripes
# Linux says so of a write by a files layout whose data server has ended. It repeats the write at the metadata server.
check "kernel log is clean" kernel_log_is_clean 'NFS: Server wrote zero bytes'
! grep -q ^fail "$RESULTS"
