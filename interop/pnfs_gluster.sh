#!/usr/bin/env bash
# pnfs_gluster.sh SLIPWAY DIRECTORY VERSION: our client, by this version of NFS, uses a pNFS cluster of other projects. GlusterFS has a
# volume of two bricks; one NFS-Ganesha is the metadata server, which grants files layouts, and two are the data servers, one at the address
# of each brick. A data server of NFS-Ganesha 4.3 crashes at COMMIT, and at a READ that begins at the end of the file; the client then uses
# the metadata server. Everything runs in a network of its own. Needs root, nfs-ganesha-gluster and glusterfs-server. The results and logs
# are in DIRECTORY.
set -uo pipefail

if [ -z "${IN_NAMESPACE:-}" ]; then
  # The daemons end with the process namespace.
  IN_NAMESPACE=1 exec unshare --net --uts --mount --pid --fork --mount-proc "${BASH_SOURCE[0]}" "$(realpath "$1")" "$(realpath "$2")" "$3"
fi
SLIPWAY=$1
VERSION=$3
guest=$(dirname "$(realpath "${BASH_SOURCE[0]}")")/guest
# The directory can be below /run.
exec {OUT}<"$2"
mount -t tmpfs run /run
mkdir -p /run/out /run/mnt /run/bricks/{1,2} /run/glusterd /run/recovery{1,2,3}
mount --bind /proc/self/fd/$OUT /run/out
mount --bind /run/glusterd /var/lib/glusterd
mkdir -p /run/out/gluster; mount --bind /run/out/gluster /var/log/glusterfs
. "$guest/lib.sh"
: >"$RESULTS"
SIZE=3145728
head -c $SIZE /dev/urandom >/run/sample
head -c 100000 /dev/urandom >/run/small
# The addresses of the data servers, and of the metadata server.
ADDRESS=(none 192.0.2.1 192.0.2.2 192.0.2.3)

network() {
  local address
  ip link set lo up
  # NFS-Ganesha binds IPv4 addresses only in the form of IPv6, which it resolves only if there is an address of IPv6.
  ip addr add 2001:db8::1/128 dev lo
  for address in ${ADDRESS[@]:1}; do ip addr add $address/32 dev lo; done
}

# The data server of a file is at the host name of the process of its brick. So the second brick is started again with another host name.
volume() {
  hostname ${ADDRESS[1]}
  glusterd
  await gluster volume list
  gluster --mode=script volume create shared ${ADDRESS[1]}:/run/bricks/1 ${ADDRESS[2]}:/run/bricks/2 force
  gluster --mode=script volume start shared
  kill "$(brick)"
  await brick_has_ended
  hostname ${ADDRESS[2]}
  gluster --mode=script volume start shared force
  brick
}
# The process of the second brick.
brick() { gluster volume status shared ${ADDRESS[2]}:/run/bricks/2 | awk '/^Brick/ && $NF ~ /^[0-9]+$/ { print $NF }'; }
brick_has_ended() { [ -z "$(brick)" ]; }

# ganesha N: starts a data server (1, 2) or the metadata server (3).
ganesha() {
  local mds=false ds=true
  [ $1 != 3 ] || mds=true ds=false
  cat >/run/ganesha.$1.conf <<C
NFS_CORE_PARAM { Bind_addr = ::ffff:${ADDRESS[$1]}; Protocols = 4; Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; }
NFSV4 { Lease_Lifetime = 10; Grace_Period = 10; RecoveryRoot = /run/recovery$1; Minor_Versions = 1, 2; PNFS_MDS = $mds; PNFS_DS = $ds; }
GLUSTER { PNFS_MDS = $mds; }
EXPORT {
  Export_Id = 1; Path = /; Pseudo = /shared; Protocols = 4; Transports = TCP; SecType = sys; Access_Type = RW; Squash = None;
  FSAL { Name = GLUSTER; Hostname = ${ADDRESS[1]}; Volume = shared; }
}
LOG { Default_Log_Level = EVENT; Components { PNFS = DEBUG; } }
C
  rm -f /run/ganesha.$1.pid
  ganesha.nfsd -F -f /run/ganesha.$1.conf -L /run/out/ganesha.$1.log -p /run/ganesha.$1.pid >/dev/null 2>&1 &
  echo $! >/run/pid.$1
  await listens ${ADDRESS[$1]}
}
listens() { : <>/dev/tcp/$1/2049; }
end() { kill -9 "$(cat /run/pid.$1)"; await has_ended "$(cat /run/pid.$1)"; }
has_ended() { ! kill -0 "$1" 2>/dev/null; }

servers() { ganesha 1; ganesha 2; ganesha 3; }

# at NAME: the URL of a file.
at() { echo "nfs://${ADDRESS[3]}/shared/$1?vers=$VERSION&uid=0&gid=0"; }

# directly ARGUMENTS…: copies with these arguments, and prints the number of bytes that went directly to or from a data server.
directly() { "$SLIPWAY" cp -q --json "$@" | grep -o '"direct_bytes":[0-9]*' | cut -d: -f2; }

# in_brick CONTENTS NAME: one of the bricks has the file. The other can have an empty file that refers to it.
in_brick() { cmp "$1" "$(find /run/bricks -name "$2" -size +0 -not -path '*/.glusterfs/*')"; }

# Each data server has some of the files. At the end of each, the data server crashes: the READs that it has not answered before are
# repeated through the metadata server.
reads() {
  local n bytes=0
  for n in $(seq 8); do
    revived
    "$SLIPWAY" cp -q /run/sample "$(at file$n)&pnfs=off"
    in_brick /run/sample file$n
    rm -f /run/back
    bytes=$((bytes + $(directly "$(at file$n)" /run/back)))
    cmp /run/sample /run/back
  done
  ls -d /run/bricks/1/file* >/dev/null; ls -d /run/bricks/2/file* >/dev/null
  echo "$bytes of $((8 * SIZE)) bytes came directly"
  [ $bytes -ge $SIZE ]
}

# The data server crashes at COMMIT. The client writes the data again, through the metadata server.
writes() {
  local n
  for n in $(seq 4); do
    revived
    equal $SIZE "$(directly /run/sample "$(at file$n)")"
    in_brick /run/sample file$n
  done
}
# Starts the data servers again that have ended.
revived() {
  local n
  for n in 1 2; do
    if has_ended "$(cat /run/pid.$n)"; then ganesha $n; fi
  done
}

mounted() {
  "$SLIPWAY" -v mount "$(at '')" /run/mnt >>/run/out/mount.log 2>&1 &
  echo $! >/run/pid.mount
  await mounted_or_dead
  mountpoint -q /run/mnt
}
mounted_or_dead() { mountpoint -q /run/mnt || has_ended "$(cat /run/pid.mount)"; }
unmounted() { umount /run/mnt; await has_ended "$(cat /run/pid.mount)"; }

# The same operations on the mount and on a local file.
changes() {
  local to
  for to in /run/local /run/mnt/changed; do
    cp /run/sample $to
    dd if=/run/small of=$to bs=50000 seek=7 conv=notrunc status=none
    truncate -s 1234567 $to
    truncate -s 2000001 $to
    cat /run/small >>$to
    sync $to
  done
  equal "$(stat -c %s /run/local)" "$(stat -c %s /run/mnt/changed)"
  cmp /run/local /run/mnt/changed
  in_brick /run/local changed
  rm -f /run/back
  "$SLIPWAY" cp -q "$(at changed)&pnfs=off" /run/back; cmp /run/local /run/back
}

# The data servers are killed while a file is written. The metadata server can reach the volume, too.
data_servers_end() {
  exec 5<>/run/mnt/dies
  head -c 1000000 /run/sample >&5; sync /run/mnt/dies
  revived; end 1; end 2
  tail -c +1000001 /run/sample >&5; sync /run/mnt/dies
  exec 5>&-
  in_brick /run/sample dies
  dd if=/run/mnt/dies of=/run/back bs=1M iflag=direct status=none; cmp /run/sample /run/back
  ganesha 1; ganesha 2
}

# The metadata server is killed and started again while a client has a layout to write.
metadata_server_ends() {
  exec 5<>/run/mnt/kept
  head -c 1000000 /run/sample >&5; sync /run/mnt/kept
  end 3; ganesha 3 5>&-
  tail -c +1000001 /run/sample >&5; sync /run/mnt/kept
  exec 5>&-
  in_brick /run/sample kept
  cmp /run/sample /run/mnt/kept
}

check "network" network; passed || exit 1
check "GlusterFS: starts" volume; passed || exit 1
check "NFS-Ganesha: starts" servers; passed || exit 1
check "version $VERSION: reads by layouts" reads
check "version $VERSION: writes by layouts" writes
check "data servers: start again" revived
check "version $VERSION: mounts" mounted; passed || exit 1
check "version $VERSION: programs on the mount change content and size" changes
check "version $VERSION: survives the end of the data servers" data_servers_end
check "version $VERSION: survives the end of the metadata server" metadata_server_ends
check "version $VERSION: unmounts" unmounted
! grep -q ^fail "$RESULTS"
