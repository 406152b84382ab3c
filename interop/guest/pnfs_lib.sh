# Shared by the scripts that run in the guest with a pNFS cluster: the metadata server and two data servers are `slipway` in a network
# namespace; the third data server is the guest's own knfsd. /run/out/env sets SLIPWAY, and KIND, the kind of the first two data
# servers: nfs3 or slipway.
. /run/out/guest/lib.sh
. /run/out/env
near SLIPWAY
: >"$RESULTS"
SERVER=10.9.1.1
CLIENT=10.9.1.2
EXPORT=/run/export
head -c 3000000 /run/out/random >/run/sample
head -c 100000 /run/out/random >/run/small
PORT=(2049 2051 2052)
RDMA_PORT=(20049 20051 20052)
RDMA=proto=rdma,port=${RDMA_PORT[0]}
# The addresses of the servers.
HOST=($SERVER $SERVER $SERVER)
# The options of data servers.
OPTIONS=
# The data servers of kind slipway have the key of the cluster.
OBJECTS=
[ $KIND = nfs3 ] || OBJECTS="--cluster-key $KEY"
# The layouts of the metadata server.
LAYOUTS=flexible
# The copies of new files.
MIRRORS=3

# Runs a command in the servers' network. `ip netns exec` would copy the mounts for it, too. A server that holds a mount of itself
# does not end when it is killed.
IN_SERVER="nsenter --net=/run/netns/server"

network() {
  ip netns add server
  ip link add client0 type veth peer name client1 netns server
  ip addr add $CLIENT/24 dev client0; ip link set client0 up
  ip -n server addr add $SERVER/24 dev client1; ip -n server link set client1 up; ip -n server link set lo up
  # The servers use software iWARP in user space.
  rdma link add siw1 type siw netdev client0
}

# knfsd_data_server: the third data server. The kernel has no log of its calls, so they are traced, and those of the client are counted.
KNFSD_CALLS=/sys/kernel/tracing/events/sunrpc/svc_process
knfsd_data_server() {
  mkdir -p /run/ds3; mount -t tmpfs -o size=200m,mode=700 ds3 /run/ds3
  knfsd /run/ds3
  mount -t tracefs tracefs /sys/kernel/tracing
  echo 4096 >/sys/kernel/tracing/buffer_size_kb
  local event
  for event in sunrpc/svc_process nfsd/nfsd_{read,write}_start; do
    echo 1 >/sys/kernel/tracing/events/$event/enable
  done
  # A pattern that begins with a digit matches nothing.
  echo "hist:keys=procedure if addr ~ \"*$CLIENT:*\"" >$KNFSD_CALLS/trigger
}
# traced NAME COMMAND…: a check whose failure leaves the trace of knfsd's calls. Its times count from the boot.
traced() {
  check "$@"
  passed && return
  echo "the time of day is $(date -u +%T.%N)" >/sys/kernel/tracing/trace_marker
  cat /sys/kernel/tracing/trace >/run/out/knfsd.$SECONDS.trace
}

# start N: starts the metadata server (0) or a data server, or starts it again.
start() {
  rm -f /run/ready.$1
  case $1 in
    0) set -- 0 --config /run/slipway.toml ;;
    *) set -- $1 $OPTIONS $OBJECTS --rpcbind off --squash none --state-dir /run/state$1 --listen tcp://${HOST[$1]}:${PORT[$1]} \
      --listen "rdma://${HOST[$1]}:${RDMA_PORT[$1]}?provider=iwarp" /run/ds$1 ;;
  esac
  # Checks have files open as 5 and 6, which a server must not inherit.
  $IN_SERVER "$SLIPWAY" -vv serve --ready-file /run/ready.$1 "${@:2}" >>/run/out/serve.$1.log 2>&1 5>&- 6>&- &
  echo $! >/run/pid.$1
  await ready_or_dead $1
  test -e /run/ready.$1
}
ready_or_dead() { [ -e /run/ready.$1 ] || ! kill -0 "$(cat /run/pid.$1)"; }
stop() { kill -9 "$(cat /run/pid.$1)"; await has_ended "$(cat /run/pid.$1)"; }
has_ended() { ! kill -0 "$1"; }

servers() {
  mkdir -p $EXPORT /run/{ds,state}{1,2} /run/state0 /run/mnt
  pnfs_export
  chmod 777 $EXPORT; chmod 700 /run/ds{1,2}
  configure 3 3 3
  start 1; start 2; start 0
}

# addresses N: the addresses of a data server for clients.
addresses() {
  echo "[{ transport = \"rdma\", address = \"${HOST[$1]}:${RDMA_PORT[$1]}\" }, { transport = \"tcp\", address = \"${HOST[$1]}:${PORT[$1]}\" }]"
}

# configure VERSION…: writes the configuration of the metadata server, with the versions by which clients use each data server.
configure() {
  common_configuration >/run/slipway.toml
  cat >>/run/slipway.toml <<T
mirrors = $MIRRORS
$(data_server 1 $1)
$(data_server 2 $2)
$(data_server_table 3 nfs3 $3 $CLIENT 20048)
T
}

# configure_files: writes the configuration of the metadata server for files layouts.
configure_files() {
  common_configuration >/run/slipway.toml
  cat >>/run/slipway.toml <<T
layouts = "files"
mirrors = 1
stripes = 2
stripe_unit = "64 KiB"
$(data_server 1 4.1)
$(data_server 2 4.2)
T
}

# data_server N VERSION
data_server() {
  data_server_table $1 $KIND $2 ${HOST[$1]}:${PORT[$1]} ${PORT[$1]}
  echo "address = $(addresses $1)"
}

common_configuration() {
  cat <<T
[server]
state_dir = "/run/state0"
rpcbind = "off"
lease_s = 15
grace_s = 15
[[listen]]
transport = "tcp"
address = "$SERVER:${PORT[0]}"
[[listen]]
transport = "rdma"
address = "$SERVER:${RDMA_PORT[0]}"
options = { provider = "iwarp" }
[[export]]
path = "$EXPORT"
name = "/export"
backend = "pnfs"
options = { cluster = "lab" }
squash = "none"
[[pnfs]]
name = "lab"
key_file = "$KEY"
timeout_s = 5
T
}

# mounted VERSION [OPTIONS]
mounted() {
  mount -t nfs -o "vers=$1,${2:-proto=tcp}" $SERVER:/export /run/mnt
  local layout=LAYOUT_FLEX_FILES
  [ $LAYOUTS = flexible ] || layout=LAYOUT_NFSV4_1_FILES
  grep -A20 'mounted on /run/mnt ' /proc/self/mountstats | grep -q pnfs=$layout
}

# calls SERVER OPERATION [TRANSPORT]: the number of calls of the client in the log of a server. Linux 6.12 reads by READ_PLUS, too.
calls() {
  local operation=$2
  [ $2 != READ ] || operation='READ(_PLUS)?'
  grep -cE "(procedure|operation)=\"$operation\" peer=$CLIENT:.*${3:+ transport=\"$3\"}" /run/out/serve.$1.log || true
}
# through_mds OPERATION: the number of operations of the client at the metadata server.
through_mds() { calls 0 $1; }
# at_server N OPERATION: the number of calls of the client to a data server.
at_server() {
  [ $1 = 3 ] || { calls $1 $2; return; }
  awk -v call=$2 '$2 == "procedure:" && $3 == call { print $NF; found = 1 } END { if (!found) print 0 }' $KNFSD_CALLS/hist
}
at_servers() { echo $(($(at_server 1 $1) + $(at_server 2 $1) + $(at_server 3 $1))); }

# versions_at N: the versions by which the client is connected to a data server of NFSv4.
versions_at() { "$SLIPWAY" clients --state-dir /run/state$1 | awk -v peer="//$CLIENT:" 'index($0, peer) { print $2 }' | sort -u; }

# Objects have the contents of FILE: on data servers N…
copies_equal() {
  local file=$1 server
  shift
  for server; do
    # `await` calls it, too, and then an error does not end it.
    equal 1 "$(ls /run/ds$server | wc -l)" && cmp $file /run/ds$server/* || return 1
  done
}

no_objects() { [ -z "$(ls /run/ds1 /run/ds2 /run/ds3 | grep -v :)" ]; }

# same FILE: FILE has the contents of /run/local. Otherwise, tells which copies have them.
same() {
  local object
  cmp /run/local "$1" && return
  echo "the size is $(stat -c %s $EXPORT/file) at the metadata server"
  for object in /run/ds[123]/*; do
    if cmp /run/local "$object"; then echo "$object is right"; fi
  done
  return 1
} >&2

ask() { "$SLIPWAY" "$@" --state-dir /run/state0; }
is_drained() { ask ds list --json | grep "\"id\":$1," | grep -q '"state":"drained"'; }
# first_copy FILE: the data server of the first copy, which Linux reads.
first_copy() { ask layout show --json "$1" | grep -o '"server":[0-9]*' | head -1 | cut -d: -f2; }
