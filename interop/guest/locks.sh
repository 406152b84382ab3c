# Runs in the guest: file locks and ACLs of NFSv3 between two Linux clients and `slipway serve`, all in this one kernel.
# The server is in a network namespace of its own, and so is the second client, `mars`; the first, `venus`, is the guest
# itself, because siw is. Each client has its own rpcbind and rpc.statd. /run/out/env says what SLIPWAY is.
. /run/out/guest/lib.sh
. /run/out/env
: >"$RESULTS"
SERVER=10.9.1.1
EXPORT=/run/export
GRACE=15
A=/run/mnt/venus
LOCK="perl /run/out/guest/lock.pl"

network() {
  hostname venus
  ip netns add server; ip netns add mars
  ip link add venus0 type veth peer name venus1 netns server
  ip link add mars0 netns mars type veth peer name mars1 netns server
  ip addr add 10.9.1.2/24 dev venus0; ip link set venus0 up
  ip -n mars addr add 10.9.2.2/24 dev mars0; ip -n mars link set mars0 up; ip -n mars link set lo up
  ip -n server addr add 10.9.1.1/24 dev venus1; ip -n server link set venus1 up
  ip -n server addr add 10.9.2.1/24 dev mars1; ip -n server link set mars1 up; ip -n server link set lo up
}

# What a client needs beside the kernel, in this mount and network namespace.
monitor() {
  mount -t tmpfs nfs /var/lib/nfs; mkdir -p /var/lib/nfs/sm /var/lib/nfs/sm.bak /var/lib/nfs/rpc_pipefs
  touch /var/lib/nfs/state; chown -R statd /var/lib/nfs/sm /var/lib/nfs/sm.bak /var/lib/nfs/state
  rpcbind -w
  rpc.statd --no-notify
  rpcinfo -T tcp 127.0.0.1 status
}

# mars: /run is where rpcbind and rpc.statd have their sockets and pids.
mars_lives() {
  hostname mars
  mkdir -p /tmp/out; mount --bind /run/out /tmp/out; mount -t tmpfs run /run; mkdir -p /run/out /run/mnt/mars; mount --move /tmp/out /run/out
  monitor >/run/out/logs/mars.log 2>&1 && touch /run/out/mars.ready
  exec sleep infinity
}

mars_comes_up() {
  mkdir -p /run/out/logs; rm -f /run/out/mars.ready
  export -f mars_lives monitor
  ip netns exec mars unshare --uts --fork bash -c mars_lives >/dev/null 2>&1 &
  await test -e /run/out/mars.ready
  pgrep -x sleep -P "$(pgrep -f 'unshare --uts' | head -n1)" >/run/mars.pid
}

mars() { nsenter -t "$(cat /run/mars.pid)" -m -n -u -r -w -- "$@"; }

# await COMMAND…: until it succeeds; a minute at most, as the machine is slow.
await() {
  local i
  for ((i = 0; i < 600; i++)); do "$@" >/dev/null 2>&1 && return; sleep 0.1; done
  echo "in vain: $*" >&2; return 1
}

says() { grep -q "$1" /run/out/serve.log; }

serve() {
  mkdir -p "$EXPORT" /run/state; mountpoint -q "$EXPORT" || mount -t tmpfs -o size=64m export "$EXPORT"
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
grace_s = $GRACE
[[listen]]
transport = "tcp"
address = "0.0.0.0:2049"
[[listen]]
transport = "rdma"
address = "0.0.0.0:20049"
[[export]]
path = "$EXPORT"
squash = "none"
[[export]]
name = "/memory"
backend = "memory"
squash = "none"
T
}

mount_all() {
  local o=vers=3,nosharecache,actimeo=0
  mkdir -p $A/tcp $A/rdma $A/memory
  mount -t nfs -o $o,proto=tcp $SERVER:$EXPORT $A/tcp
  mount -t nfs -o $o,proto=tcp $SERVER:/memory $A/memory
  mars mkdir -p /run/mnt/mars
  mars mount -t nfs -o $o,proto=tcp 10.9.2.1:$EXPORT /run/mnt/mars
  [ "$(grep -c 'local_lock=none' /proc/mounts)" -ge 2 ]
  ! grep nolock /proc/mounts
}

mount_rdma() {
  rdma link add siw1 type siw netdev venus0
  mount -t nfs -o vers=3,nosharecache,actimeo=0,proto=rdma,port=20049,mountproto=tcp $SERVER:$EXPORT $A/rdma
  grep -E " $A/rdma .*proto=rdma" /proc/mounts
}

# hold NAME COMMAND…: runs COMMAND (which locks, then runs what follows it) until `release NAME`.
hold() {
  local name=$1; shift
  rm -f "/run/out/held.$name" "/run/out/release.$name"
  "$@" sh -c "touch /run/out/held.$name; until [ -e /run/out/release.$name ]; do sleep 0.1; done" &
}
held() { test -e "/run/out/held.$1"; }
release() { touch "/run/out/release.$1"; }

# Requests that the server has let wait so far, and whether it is more than $1.
waiting() { grep -c 'procedure="LOCK".*status=Blocked' /run/out/serve.log || true; }
more_wait() { [ "$(waiting)" -gt "$1" ]; }

denied() { local rc=0; "$@" || rc=$?; equal 11 "$rc"; }

# contend DIR: between a mount of venus and mars, by fcntl.
contend_by_fcntl() {
  local dir=$1 f=f.$RANDOM
  echo data >"$dir/$f"
  hold first $LOCK w try 0 10 "$dir/$f"; await held first
  denied mars $LOCK w try 5 1 "/run/mnt/mars/$f" true
  denied mars $LOCK r try 0 0 "/run/mnt/mars/$f" true
  mars $LOCK w try 10 10 "/run/mnt/mars/$f" true
  equal "w 0 10" "$(mars $LOCK r test 3 1 "/run/mnt/mars/$f")"
  equal unlocked "$(mars $LOCK w test 10 0 "/run/mnt/mars/$f")"
  local waited; waited=$(waiting)
  hold second mars $LOCK w wait 0 0 "/run/mnt/mars/$f"
  await more_wait "$waited"; refused held second
  release first; await held second
  denied $LOCK r try 0 1 "$dir/$f" true
  release second; wait
  $LOCK w try 0 0 "$dir/$f" true
}

contend_by_flock() {
  local dir=$1 f=g.$RANDOM
  echo data >"$dir/$f"
  hold first flock "$dir/$f"; await held first
  denied mars flock -n -E 11 "/run/mnt/mars/$f" true
  local waited; waited=$(waiting)
  hold second mars flock "/run/mnt/mars/$f"
  await more_wait "$waited"; refused held second
  release first; await held second
  denied flock -n -s -E 11 "$dir/$f" true
  release second; wait
  hold first flock -s "$dir/$f"; await held first
  mars $LOCK r try 0 0 "/run/mnt/mars/$f" true
  release first; wait
}

# By GRANTED, not because the kernel asks again, which it does every 30 seconds.
all_told() { [ "$(waiting)" -gt 0 ] && [ "$(waiting)" = "$(grep -c 'a host has the lock that it waited for' /run/out/serve.log)" ]; }
granted_by_callback() { await all_told; }

who_gives_up_does_not_get_it() {
  local f=h; echo data >$A/tcp/$f
  hold first $LOCK w try 0 0 $A/tcp/$f; await held first
  local waited; waited=$(waiting)
  mars timeout 20 $LOCK w wait 0 0 /run/mnt/mars/$f true &
  local waiter=$!
  await more_wait "$waited"
  mars pkill -f "wait 0 0 /run/mnt/mars/$f"
  refused wait $waiter
  release first; wait
  $LOCK w try 0 0 $A/tcp/$f true
  mars $LOCK w try 0 0 /run/mnt/mars/$f true
}

locks_survive_the_servers_death() {
  local f=survives holder; echo data >$A/tcp/$f
  hold first $LOCK w try 0 0 $A/tcp/$f; holder=$!; await held first
  pkill -9 -x slipway -P "$(cat /run/server.pid)" || kill -9 "$(cat /run/server.pid)"
  serve
  await says 'a host knows that we have restarted'
  # In grace the kernel asks again until it is over, and then the lock is still held.
  denied mars $LOCK w try 0 0 /run/mnt/mars/$f true
  says 'locks can be reclaimed'
  # Not for the server, which is this shell's child, too.
  release first; wait $holder
  mars $LOCK w try 0 0 /run/mnt/mars/$f true
}

a_client_that_restarts_loses_its_locks() {
  local f=lost; echo data >$A/tcp/$f
  hold first mars $LOCK w try 0 0 /run/mnt/mars/$f; await held first
  denied $LOCK w try 0 0 $A/tcp/$f true
  mars ls /var/lib/nfs/sm
  mars sm-notify -f
  await says 'a host has restarted'
  $LOCK w try 0 0 $A/tcp/$f true
  release first; wait
}

as() { local id=$1; shift; setpriv --reuid "$id" --regid "$id" --clear-groups "$@"; }

acls() {
  cd "$1"; chmod 755 .; mkdir acl.$2; cd acl.$2
  echo private >f; chmod 600 f
  refused as 1234 cat f
  setfacl -m u:1234:rw,g:4321:r f
  equal "user::rw- user:1234:rw- group::--- group:4321:r-- mask::rw- other::---" "$(getfacl -nc f | xargs)"
  equal 660 "$(stat -c %a f)"
  equal private "$(as 1234 cat f)"
  as 1234 sh -c 'echo written >f'; equal written "$(cat f)"
  refused as 4321 sh -c 'echo x >f'; equal written "$(as 4321 cat f)"
  chmod g-w f; refused as 1234 sh -c 'echo x >f'
  setfacl -b f; refused as 1234 cat f
  equal "user::rw- group::--- other::---" "$(getfacl -nc f | xargs)"
  mkdir d; setfacl -d -m u:1234:rwx d; mkdir d/sub; touch d/file
  equal "user:1234:rwx" "$(getfacl -nc d/sub | grep ^default:user:1234 | cut -d: -f2-)"
  getfacl -nc d/file | grep '^user:1234:rwx'
  setfacl -k d; refused sh -c 'getfacl -nc d | grep default'
}

acls_are_on_the_servers_disk() { getfacl -nc $EXPORT/acl.tcp/d/file | grep '^user:1234:rwx'; }

unmount_all() { umount $A/tcp $A/memory; mountpoint -q $A/rdma && umount $A/rdma; mars umount /run/mnt/mars; }

check "network namespaces" network || exit 1
check "venus: rpcbind and statd" monitor || exit 1
check "mars: rpcbind and statd" mars_comes_up || exit 1
check "slipway serves" eval "configure; serve" || exit 1
check "tcp: mounts with locks" mount_all || exit 1
check "tcp: acls" acls $A/tcp tcp
check "tcp: acls are on the server's disk" acls_are_on_the_servers_disk
check "memory: acls" acls $A/memory tcp
check "tcp: fcntl between two clients" contend_by_fcntl $A/tcp
check "tcp: flock between two clients" contend_by_flock $A/tcp
check "tcp: granted by callback" granted_by_callback
check "tcp: who gives up does not get it" who_gives_up_does_not_get_it
if check "rdma: mounts with locks" mount_rdma; then
  check "rdma: fcntl between two clients" contend_by_fcntl $A/rdma
  check "rdma: acls" acls $A/rdma rdma
fi
check "a client that restarts loses its locks" a_client_that_restarts_loses_its_locks
check "locks survive the server's death" locks_survive_the_servers_death
check "unmounts" unmount_all
check "kernel log is clean" kernel_log_is_clean
! grep -q ^fail "$RESULTS"
