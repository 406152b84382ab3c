#!/usr/bin/env bash
# ganesha.sh SLIPWAY DIRECTORY VERSION: a pNFS cluster with two copies of each file, one on NFS-Ganesha and one on `slipway serve`.
# Our client uses it by this version of NFS. Everything runs in a network of its own. Needs root, nfs-ganesha-vfs and rpcbind. The results
# and logs are in DIRECTORY, which must be on a file system with extended attributes of users.
set -uo pipefail

if [ -z "${IN_NAMESPACE:-}" ]; then
  IN_NAMESPACE=1 exec unshare --net --mount "${BASH_SOURCE[0]}" "$(realpath "$1")" "$(realpath "$2")" "$3"
fi
SLIPWAY=$1
VERSION=$3
guest=$(dirname "$(realpath "${BASH_SOURCE[0]}")")/guest
ip link set lo up
# The directory can be below /run.
exec {OUT}<"$2"
mount -t tmpfs run /run
mkdir /run/out /run/ds1 /run/ds2 /run/recovery
mount --bind /proc/self/fd/$OUT /run/out
. "$guest/lib.sh"
: >"$RESULTS"
trap 'for child in /run/pid.*; do kill -9 "$(cat "$child")"; done 2>/dev/null' EXIT
chmod 700 /run/ds1 /run/ds2
mkdir /run/out/export
head -c 3000000 /dev/urandom >/run/sample
head -c 1000000 /dev/urandom >/run/other
MDS="nfs://127.0.0.1:2049/run/out/export"
OPTIONS="mountport=2049&vers=$VERSION"

# ganesha SQUASH: starts NFS-Ganesha, which squashes root of all clients but this host, for which it has this setting.
ganesha() {
  cat >/run/ganesha.conf <<C
NFS_CORE_PARAM { NFS_Port = 12049; MNT_Port = 12050; Protocols = 3; Enable_NLM = false; Enable_RQUOTA = false; }
NFSV4 { Graceless = true; RecoveryRoot = /run/recovery; }
EXPORT {
  Export_Id = 1; Path = /run/ds1; Protocols = 3; Transports = TCP; SecType = sys; Access_Type = RW; Squash = Root_Squash;
  CLIENT { Clients = 127.0.0.1; Access_Type = RW; Squash = $1; }
  FSAL { Name = VFS; }
}
LOG { Default_Log_Level = WARN; }
C
  rm -f /run/ganesha.pid
  ganesha.nfsd -F -f /run/ganesha.conf -L /run/out/ganesha.log -p /run/ganesha.pid >/dev/null 2>&1 &
  echo $! >/run/pid.ganesha
  await listens 12049; await listens 12050
}
listens() { : <>/dev/tcp/127.0.0.1/$1; }
# end NAME: kills a server.
end() { kill -9 "$(cat /run/pid.$1)"; await has_ended "$(cat /run/pid.$1)"; }
has_ended() { ! kill -0 "$1"; }

# start NAME ARGUMENTS…: starts a `slipway serve`.
start() {
  "$SLIPWAY" -v serve --rpcbind off --ready-file /run/ready.$1 "${@:2}" >>/run/out/serve.$1.log 2>&1 &
  echo $! >/run/pid.$1
  await test -e /run/ready.$1
}

servers() {
  rpcbind -f >/dev/null 2>&1 &
  echo $! >/run/pid.rpcbind
  await test -S /run/rpcbind.sock
  start data --squash none --state-dir /run/state.data --listen tcp://127.0.0.1:2052 /run/ds2
  cat >/run/slipway.toml <<T
[server]
state_dir = "/run/state"
[[listen]]
transport = "tcp"
address = "127.0.0.1:2049"
[[export]]
path = "/run/out/export"
backend = "pnfs"
options = { cluster = "two" }
squash = "none"
[[pnfs]]
name = "two"
timeout_s = 2
[[pnfs.server]]
id = 1
url = "nfs://127.0.0.1:12049/run/ds1?mountport=12050"
[[pnfs.server]]
id = 2
url = "nfs://127.0.0.1:2052/run/ds2?mountport=2052"
T
}

# `doctor` names the setting that is missing, and finds nothing without it.
doctor() {
  local said
  ganesha Root_Squash
  said=$("$SLIPWAY" doctor --config /run/slipway.toml || true)
  echo "$said"
  grep -A3 'data server two/1' <<<"$said" | grep -q 'Squash = None'
  end ganesha
  ganesha None
  said=$("$SLIPWAY" doctor --config /run/slipway.toml || true)
  echo "$said"
  grep 'data server two/1' <<<"$said" | grep -q 'the rights are as they must be'
}

metadata_server() { start metadata --config /run/slipway.toml; }

put() { "$SLIPWAY" cp -q "$1" "$MDS/$2?$OPTIONS"; }
ask() { "$SLIPWAY" "$@" --state-dir /run/state; }

# has FILE CONTENTS: the file has them, and so have its objects on both data servers.
has() {
  local layout server object
  rm -f /run/back; "$SLIPWAY" cp -q "$MDS/$1?$OPTIONS" /run/back; cmp "$2" /run/back
  layout=$(ask layout show --json /run/out/export/$1)
  for server in 1 2; do
    object=$(perl -MJSON::PP -0777 -ne '
      print map { $_->{object} } grep { $_->{server} == '$server' && $_->{state} eq "in_sync" } @{ decode_json($_)->{data}{copies} }' <<<"$layout")
    cmp "$2" /run/ds$server/$object
  done
}

# Both data servers get the data, from the client itself if its version has layouts.
mirrored() {
  local said direct=0
  said=$("$SLIPWAY" cp -q --json /run/sample "$MDS/file?$OPTIONS")
  echo "$said"
  [ $VERSION = 3 ] || direct=3000000
  [ "$(grep -o '"direct_bytes":[0-9]*' <<<"$said" | cut -d: -f2)" -ge $direct ]
  has file /run/sample
  put /run/other file
  has file /run/other
}

# load: writes new files, and a file that exists.
load() {
  local round
  for round in $(seq $ROUNDS); do
    put /run/sample new$round
    put $([ $((round % 2)) = 0 ] && echo /run/sample || echo /run/other) file
    echo $round >/run/progress
  done
}
has_come_to() { [ "$(cat /run/progress)" -ge $1 ]; }

# Ganesha is killed under load, and comes back under load. Nobody gets an error, and the copies are made again.
killed() {
  local round loading
  echo 0 >/run/progress
  load & loading=$!
  await has_come_to 2
  end ganesha
  await has_come_to 7
  ask ds list
  ask ds list --json | grep '"id":1,' | grep -q '"state":"failing"'
  ganesha None
  wait $loading
  await ask resilver
  for round in $(seq $ROUNDS); do has new$round /run/sample; done
  has file /run/sample
}
ROUNDS=10

no_objects() { [ -z "$(ls /run/ds1)$(ls /run/ds2)" ]; }
removed() {
  local round
  "$SLIPWAY" rm "$MDS/file?$OPTIONS"
  for round in $(seq $ROUNDS); do "$SLIPWAY" rm "$MDS/new$round?$OPTIONS"; done
  await no_objects
}

check "servers start" servers; passed || exit 1
check "doctor knows what NFS-Ganesha needs" doctor; passed || exit 1
check "metadata server starts" metadata_server; passed || exit 1
check "version $VERSION: files have copies on NFS-Ganesha and Slipway" mirrored
check "version $VERSION: NFS-Ganesha is killed under load and heals" killed
check "version $VERSION: objects of removed files are removed" removed
