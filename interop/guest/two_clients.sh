# Shared by the scripts in which two Linux clients use one `slipway serve`, all in one kernel. The server has its own
# network namespace, and so has the second client, `mars`, which mounts every version over tcp. The first client,
# `venus`, is the guest itself, because siw is there: it mounts over rdma. Each client has its own rpcbind and
# rpc.statd. /run/out/env sets SLIPWAY, and BACKEND, the back end of the export: posix, or pnfs, whose two data servers
# are in the server's namespace.
. /run/out/guest/lib.sh
. /run/out/env
near SLIPWAY
: >"$RESULTS"
BACKEND=${BACKEND:-posix}
SERVER=10.9.1.1
EXPORT=/run/export
LEASE=15
GRACE=15
A=/run/mnt/venus
B=/run/mnt/mars
LOCK="perl /run/out/guest/lock.pl"
VERSIONS="3 4.0 4.1 4.2"

network() {
  hostname venus
  ip netns add server
  ip link add venus0 type veth peer name venus1 netns server
  ip addr add 10.9.1.2/24 dev venus0; ip link set venus0 up
  ip -n server addr add 10.9.1.1/24 dev venus1; ip -n server link set venus1 up; ip -n server link set lo up
  rdma link add siw1 type siw netdev venus0
}

# The programs that a client needs in addition to the kernel, in this mount and network namespace. $1 is its disk, which
# is kept over its restarts.
monitor() {
  mkdir -p "$1"; mount --bind "$1" /var/lib/nfs; mkdir -p /var/lib/nfs/sm /var/lib/nfs/sm.bak /var/lib/nfs/rpc_pipefs
  touch /var/lib/nfs/state; chown -R statd /var/lib/nfs/sm /var/lib/nfs/sm.bak /var/lib/nfs/state
  rpcbind -w
  rpc.statd --no-notify
  rpcinfo -T tcp 127.0.0.1 status
}

# mars: rpcbind and rpc.statd have their sockets and pids in /run.
mars_lives() {
  hostname mars
  mkdir -p /tmp/out /tmp/near /tmp/disk
  mount --rbind /run/out /tmp/out; mount --bind /run/near /tmp/near; mount --bind /run/mars /tmp/disk
  mount -t tmpfs run /run; mkdir -p /run/out /run/near /run/mars /run/mnt
  mount --move /tmp/out /run/out; mount --move /tmp/near /run/near; mount --move /tmp/disk /run/mars
  monitor /run/mars && touch /run/out/mars.ready
  exec sleep infinity
}

# mars_comes_up LIFE: starts mars as a kernel that has just booted, from the server's point of view. Each run has its
# own network namespace.
mars_comes_up() {
  ip netns add "$1"
  ip link add mars0 netns "$1" type veth peer name mars1 netns server
  ip -n "$1" addr add 10.9.2.2/24 dev mars0; ip -n "$1" link set mars0 up; ip -n "$1" link set lo up
  ip -n "$1" route add default via 10.9.2.1
  ip -n server addr add 10.9.2.1/24 dev mars1; ip -n server link set mars1 up
  mkdir -p /run/mars /run/out/logs; rm -f /run/out/mars.ready
  export -f mars_lives monitor
  ip netns exec "$1" unshare --uts bash -c mars_lives >>/run/out/logs/mars.log 2>&1 &
  echo $! >/run/mars.pid
  await test -e /run/out/mars.ready
}

mars() { nsenter -t "$(cat /run/mars.pid)" -m -n -u -r -w -- "$@"; }

says() { grep -q "$1" /run/out/serve.log; }

make_export() {
  mkdir -p "$EXPORT" /run/state
  case $BACKEND in
    posix) mount -t tmpfs -o size=64m export "$EXPORT" ;;
    pnfs)
      pnfs_export
      data_server_starts 1; data_server_starts 2
      ;;
  esac
}

# data_server_starts N
data_server_starts() {
  mkdir -p -m 700 /run/ds$1
  ip netns exec server "$SLIPWAY" -vv serve --data-server --cluster-key $KEY --rpcbind off --squash none \
    --state-dir /run/state$1 --listen "tcp://$SERVER:205$1" --ready-file /run/ready.$1 /run/ds$1 >>/run/out/serve.$1.log 2>&1 &
  await test -e /run/ready.$1
}

serve() {
  mountpoint -q "$EXPORT" || make_export
  rm -f /run/ready
  ip netns exec server "$SLIPWAY" -vv serve --config /run/slipway.toml --ready-file /run/ready >>/run/out/serve.log 2>&1 &
  echo $! >/run/server.pid
  await test -e /run/ready
}

configure() {
  cat >/run/slipway.toml <<T
[server]
state_dir = "/run/state"
rpcbind = "builtin"
lease_s = $LEASE
grace_s = $GRACE
[[listen]]
transport = "tcp"
address = "0.0.0.0:2049"
[[listen]]
transport = "rdma"
address = "0.0.0.0:20049"
options = { provider = "iwarp" }
[[export]]
path = "$EXPORT"
squash = "none"
$([ $BACKEND = posix ] || pnfs)
[[export]]
name = "/memory"
backend = "memory"
squash = "none"
T
}

# The lines of the configuration that make the export one of pNFS. Clients use the data servers by NFSv3 and 4.2, over tcp: over software
# iWARP, Linux 6.1 and 6.12 can wait forever for the invalidation of memory (frwr_unmap_sync) when they end a connection to a data server.
pnfs() {
  cat <<T
backend = "pnfs"
options = { cluster = "lab" }
[[pnfs]]
name = "lab"
key_file = "$KEY"
threshold = "1 KiB"
T
  data_server_table 1 slipway 3 $SERVER:2051 2051
  data_server_table 2 slipway 4.2 $SERVER:2052 2052
}

# Both clients have written at both data servers.
used_data_servers() {
  local peer
  for peer in 10.9.1.2 10.9.2.2; do
    for server in 1 2; do grep -qE "(procedure|operation)=\"WRITE\" peer=$peer:" /run/out/serve.$server.log || return 1; done
  done
}

# mars_mounts VERSION…: with four connections for versions with sessions.
mars_mounts() {
  local v also
  for v in "$@"; do
    case $v in 4.[12]) also=,nconnect=4 ;; *) also= ;; esac
    mars mkdir -p $B/$v
    mars mount -t nfs -o "vers=$v,proto=tcp,actimeo=0$also" 10.9.2.1:$EXPORT $B/$v
  done
}

# All four connections have carried replies.
connections() { mars awk '/^device/ { mine = $5 == "'$B/$1'" } mine && $1 == "xprt:" && $9 > 0' /proc/self/mountstats; }
four_connections() { equal 4 "$(connections $1 | wc -l)"; }

mount_all() {
  local v by
  SECONDS=0
  mkdir -p $A/memory
  for v in $VERSIONS; do
    case $v in 3) by=proto=rdma,port=20049,mountproto=tcp ;; *) by=proto=rdma,port=20049 ;; esac
    mkdir -p $A/$v
    mount -t nfs -o "vers=$v,actimeo=0,$by" $SERVER:$EXPORT $A/$v
    grep -E " $A/$v .*vers=$v,.*${by%%,*}," /proc/mounts
  done
  mount -t nfs -o vers=3,actimeo=0,proto=tcp $SERVER:/memory $A/memory
  mars_mounts $VERSIONS
  refused grep nolock /proc/mounts
  echo $SECONDS >/run/mounting
}

# hold NAME COMMAND…: runs COMMAND (which locks, then runs what follows it) until `release NAME`.
hold() {
  local name=$1 here=/run/near; shift
  rm -f $here/held.$name $here/release.$name; mkfifo $here/release.$name
  "$@" sh -c "touch $here/held.$name; read it <$here/release.$name" &
}
held() { test -e "/run/near/held.$1"; }
release() { timeout 600 sh -c "echo >/run/near/release.$1"; }

denied() { local rc=0; "$@" || rc=$?; equal 11 "$rc"; }
