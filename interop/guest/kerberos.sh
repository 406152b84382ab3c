# Runs in the guest: Kerberos 5 with Linux at either end. The guest itself is the host `venus`: the kernel's client with rpc.gssd,
# the key distribution centre, and later the kernel's server with rpc.svcgssd. `slipway serve`, and later our client, run in a
# network namespace. As the host `neptune`, it also serves by an adapter, which is rxe (RoCE version 2). rpc.gssd negotiates over TCP at
# port 2049 also for mounts over RDMA. /run/out/env sets SLIPWAY, the cells TRANSPORT:VERSION:FLAVOR of two matrices, KERNEL_CLIENT and
# OUR_CLIENT, the cells of CONTENT, with which all of content.sh runs, and the cells VERSION:FLAVOR of ADAPTER.
. /run/out/guest/lib.sh
. /run/out/guest/kerberos_lib.sh
. /run/out/guest/content.sh
. /run/out/env
near SLIPWAY
: >"$RESULTS"
EXPORT=/run/export
USERS="u1234 u4321"
FILES=/run/out/manifest
IOSIZE=1048576
head -c 3M /run/out/random >/run/sample; chmod 644 /run/sample

network() {
  hostname $VENUS
  ip netns add server
  ip link add venus0 type veth peer name venus1 netns server
  ip addr add 10.9.1.2/24 dev venus0; ip link set venus0 up
  ip -n server addr add 10.9.1.1/24 dev venus1; ip -n server link set venus1 up; ip -n server link set lo up
  rdma link add siw1 type siw netdev venus0
  rdma link add rxe0 type rxe netdev eth0
  printf '127.0.0.1 localhost\n10.9.1.1 %s\n10.9.1.2 %s\n10.0.2.15 %s\n' $SERVER $VENUS $NEPTUNE >/etc/hosts
}

# serve HOST ADDRESS PROVIDER DIRECTORY COMMAND…: starts our server of a host by COMMAND, and exports a directory.
serve() {
  local host=$1 address=$2 provider=$3 directory=$4; shift 4
  mkdir -p $directory /run/content /run/state.$host; mount -t tmpfs -o size=1g export $directory; chmod 777 $directory
  mountpoint -q /run/content || mount -t tmpfs -o size=1g content /run/content
  cat >/run/$host.toml <<T
[server]
state_dir = "/run/state.$host"
rpcbind = "builtin"
lease_s = 15
[kerberos]
keytab = "/run/$host.keytab"
service = "nfs@$host"
[identity]
machines = "root"
[[listen]]
transport = "tcp"
address = "$address:2049"
[[listen]]
transport = "rdma"
address = "$address:20049"
options = { provider = "$provider" }
[[export]]
path = "$directory"
sec = ["sys", "krb5", "krb5i", "krb5p"]
[[export]]
name = "/content"
path = "/run/content"
sec = ["krb5", "krb5i", "krb5p"]
squash = "none"
T
  "$@" "$SLIPWAY" -vv serve --config /run/$host.toml --ready-file /run/$host.ready >/run/out/serve.$host.log 2>&1 &
  echo $! >/run/$host.pid
  await test -e /run/$host.ready
}

# kernel_client TRANSPORT VERSION FLAVOR: alice writes and reads; nothing comes from a cache.
kernel_client() {
  local at=/run/mnt/$1.$2.$3 file=$1.$2.$3
  mkdir -p $at
  timeout 300 mount -t nfs -o "$(options $1 $2 $3)" $SERVER:$EXPORT $at
  grep -E " $at .*sec=$3,.*" /proc/mounts
  alice cp /run/sample $at/$file
  # With a write delegation, the kernel keeps the data after a close.
  alice sync $at/$file
  cmp /run/sample $EXPORT/$file
  # The principal alice is the user alice of the server.
  equal 1000 "$(stat -c %u $EXPORT/$file)"
  umount $at
  timeout 300 mount -t nfs -o "$(options $1 $2 $3)" $SERVER:$EXPORT $at
  alice cmp /run/sample $at/$file
  alice mkdir $at/d.$file; alice mv $at/$file $at/d.$file/moved; alice ls -l $at/d.$file
  [ "$2" = 3 ] || alice flock $at/d.$file/moved true
  alice rm -r $at/d.$file
  refused test -e $EXPORT/d.$file
  umount $at
}

# Root of the client is its machine, which is root of the server. The other users of content.sh have tickets. IDs have names, which the
# kernel asks of rpc.idmapd.
users() {
  local uid
  printf 'u%s:x:%s:%s::/:/bin/sh\n' 1234 1234 1234 4321 4321 4321 >>/etc/passwd
  printf 'g%s:x:%s:%s\n' 1234 1234 '' 4321 4321 '' 5678 5678 '' 777 777 u1234 >>/etc/group
  for uid in 1234 4321; do ticket u$uid /tmp/krb5cc_$uid; chown $uid:$uid /tmp/krb5cc_$uid; done
  printf '[General]\nDomain = slipway.test\nLocal-Realms = SLIPWAY.TEST\nPipefs-Directory = /run/rpc_pipefs\n[Mapping]\nNobody-User = nobody\nNobody-Group = nogroup\n' >/etc/idmapd.conf
  getent group nogroup || echo 'nogroup:x:65534:' >>/etc/group
  rpc.idmapd -C -p /run/rpc_pipefs
  mkdir -p /run/content/given/tree; tar xf /run/few.tar -C /run/content/given/tree
}

# As in content.sh, but the groups of a user are those that the server knows.
callers_identity() {
  cd "$M/$HERE"; mkdir -m 1777 users; cd users
  echo private >root; chmod 600 root
  as 1234 sh -c 'echo mine >u1234 && chmod 640 u1234'
  equal 1234:1234 "$(stat -c %u:%g u1234)"
  refused as 1234 cat root
  refused as 1234 rm -f root
  refused as 4321 cat u1234
  mkdir -m 750 group; echo g >group/f; chmod 640 group/f; chgrp 777 group group/f
  refused as 4321 cat group/f
  equal g "$(as 1234 cat group/f)"
}

# The mount's WRITEs so far, and the bytes of their calls.
writes() { awk -v m="$M" '$1 == "device" { mine = $5 == m } mine && $1 == "WRITE:" { print $2, $5 }' /proc/self/mountstats; }

large_writes() {
  local before
  before=$(writes)
  dd if=/run/out/random of="$M/$HERE/writes" bs=1M oflag=direct status=none
  echo "$before $(writes)"
  echo "$before $(writes)" | awk '{ exit !($3 > $1 && ($4 - $2) / ($3 - $1) > 131072) }'
  cmp /run/out/random "$M2/$HERE/writes"
}
also_large_writes() { check "$1: WRITEs exceed 128 KiB" large_writes; }

# content_by TRANSPORT VERSION FLAVOR
content_by() (EXPORT=/content; brief $1-$2-$3 "$(options $1 $2 $3)" also_large_writes)

# bob has no ticket yet. Then he has one that soon expires.
tickets_decide() {
  local at=/run/mnt/tickets
  mkdir -p $at; mount -t nfs -o "$(options tcp 4.2 krb5i)" $SERVER:$EXPORT $at
  alice touch $at/alices
  refused bob ls $at
  ticket bob /tmp/krb5cc_1001 -l 40s; chown 1001:1001 /tmp/krb5cc_1001
  await bob ls $at
  sleep 50
  refused bob touch $at/bobs
  alice touch $at/alices
  umount $at
}

# A client with a keytab manages its state by krb5i, also for a mount with sec=sys.
sys_with_keytab() {
  local at=/run/mnt/sys version
  mkdir -p $at
  for version in 4.0 4.2; do
    mount -t nfs -o "$(options tcp $version sys)" $SERVER:$EXPORT $at
    alice cp /run/sample $at/sys-$version; alice sync $at/sys-$version; cmp /run/sample $EXPORT/sys-$version
    alice flock $at/sys-$version cmp /run/sample $at/sys-$version
    umount $at
  done
}

# Version 4.0: the server calls the client back as nfs@SERVER, and rpc.svcgssd accepts that for the client's key. So the client gets
# delegations, and our client over 4.1 makes the server recall one. The kernel introduces itself with krb5i, also for krb5p.
recalls() { grep -c 'a client answered a callback.*Recall' /run/out/serve.$SERVER.log || true; }

# A delegation of an open file stays, however slow the machine is. The first open of an owner comes without one, and so do those before
# the callback address is probed.
recall_once() {
  local at=/run/mnt/recall before holder
  before=$(recalls)
  mount -t nfs -o "$(options tcp 4.0 krb5i)" $SERVER:$EXPORT $at || return
  for _ in 1 2 3 4; do alice cat $at/recall; sleep 1; done >/dev/null
  setpriv --reuid 1000 --regid 1000 --clear-groups sh -c 'exec sleep 600 <"$0"' $at/recall & holder=$!
  ip netns exec server timeout 300 "$SLIPWAY" cp /run/sample "nfs://127.0.0.1:2049$EXPORT/recall?vers=4.1&uid=1000&gid=1000&timeo=3000"
  kill $holder; wait $holder || true
  alice cmp /run/sample $at/recall || return
  umount $at
  [ "$(recalls)" -gt "$before" ]
}

recall_of_4_0() {
  local daemon
  rpc.svcgssd -f -vvv >/run/out/logs/svcgssd-client.log 2>&1 & daemon=$!
  mkdir -p /run/mnt/recall; echo before >$EXPORT/recall; chown 1000 $EXPORT/recall
  # The kernel closes the connection if its daemon is slow, so a probe can fail.
  recall_once || recall_once || recall_once
  kill $daemon
}

# by_adapter VERSION FLAVOR: the kernel's client, and our client.
by_adapter() {
  local url="nfs://$NEPTUNE:20049/run/adapter/ours.$1.$2?proto=rdma&provider=verbs&vers=$1&sec=$2&mountproto=tcp&mountport=2049"
  SERVER=$NEPTUNE EXPORT=/run/adapter
  kernel_client rdma $1 $2
  there_and_back "$url" /run/adapter/ours.$1.$2
}

# there_and_back URL FILE COMMAND…: our client copies to a file of the server and back, by COMMAND, with the ticket of alice.
there_and_back() {
  local url=$1 file=$2; shift 2
  export KRB5CCNAME=FILE:/tmp/krb5cc_1000
  "$@" timeout 300 "$SLIPWAY" cp /run/sample "$url"
  cmp /run/sample $file
  equal 1000 "$(stat -c %u $file)"
  rm -f /tmp/back
  "$@" timeout 300 "$SLIPWAY" cp "$url" /tmp/back
  cmp /run/sample /tmp/back
}

# Its threads end before those of Linux's server begin, because both use the same ports.
end_adapter() {
  local pid
  pid=$(cat /run/$NEPTUNE.pid)
  kill -TERM $pid
  await has_ended $pid
  rdma link delete rxe0
}
has_ended() { [ ! -e /proc/$1 ] || grep -q '^State:.Z' /proc/$1/status; }

no_context_was_refused() { refused grep -E 'a client got no context|panicked' /run/out/serve.$SERVER.log /run/out/serve.$NEPTUNE.log; }

check "network" network; passed || exit 1
check "realm: MIT's key distribution centre" realm; passed || exit 1
check "slipway serve: starts" serve $SERVER 0.0.0.0 iwarp $EXPORT ip netns exec server; passed || exit 1
check "rpc.gssd: starts" gssd; passed || exit 1
for cell in $KERNEL_CLIENT; do
  IFS=: read -r transport version flavor <<<"$cell"
  check "$transport: kernel client, version $version with $flavor" kernel_client $transport $version $flavor
done
check "users of the content" users
for cell in $CONTENT; do
  IFS=: read -r transport version flavor <<<"$cell"
  content_by $transport $version $flavor
done
check "tcp: tickets decide" tickets_decide
check "tcp: sec=sys with a keytab" sys_with_keytab
check "tcp: delegations of 4.0 are recalled by Kerberos" recall_of_4_0
# As for any adapter.
ulimit -l unlimited
check "slipway serve: starts with an adapter" serve $NEPTUNE 10.0.2.15 verbs /run/adapter env
if passed; then
  for cell in $ADAPTER; do
    IFS=: read -r version flavor <<<"$cell"
    check "rxe: kernel client and ours, version $version with $flavor" by_adapter $version $flavor
  done
  check "slipway serve: ends with an adapter" end_adapter
fi
check "serve: no context was refused" no_context_was_refused

# Linux's server, with our client in the namespace.
svcgssd() {
  kill "$(cat /run/$SERVER.pid)"
  umount $EXPORT; mkdir -p /run/knfsd; mount -t tmpfs -o size=1g export /run/knfsd; chmod 777 /run/knfsd
  mkdir -p /var/lib/nfs/v4recovery /var/lib/nfs/sm /var/lib/nfs/sm.bak; touch /var/lib/nfs/etab /var/lib/nfs/rmtab
  mount -t nfsd nfsd /proc/fs/nfsd
  rm -rf /etc/nfs.conf /etc/nfs.conf.d
  rpcbind -w
  rpc.idmapd -S -p /run/rpc_pipefs
  rpc.svcgssd -f -vvv >/run/out/logs/svcgssd.log 2>&1 &
  exportfs -i -o rw,insecure,no_subtree_check,fsid=0,sec=sys:krb5:krb5i:krb5p "*:/run/knfsd"
  rpc.mountd -p 20048
  rpc.nfsd 4
  echo Y >/proc/fs/nfsd/v4_end_grace
  echo rdma 20049 >/proc/fs/nfsd/portlist
}

# our_client TRANSPORT VERSION FLAVOR
our_client() {
  local port=2049 mount= path=/ file=$1.$2.$3
  [ "$1" = rdma ] && port=20049
  [ "$2" = 3 ] && mount='&mountproto=tcp&mountport=20048' path=/run/knfsd/
  there_and_back "nfs://$VENUS:$port$path$file?proto=$1&vers=$2&sec=$3$mount" /run/knfsd/$file \
    ip netns exec server setpriv --reuid 1000 --regid 1000 --clear-groups
}

# Linux 6.1.y answers every call with krb5p with GARBAGE_ARGS in some releases, also those of its own client.
knfsd_decrypts() {
  local at=/run/mnt/knfsd
  mkdir -p $at; mount -t nfs -o "$(options tcp 4.2 krb5p)" $VENUS:/ $at && umount $at
} >/run/out/logs/knfsd-decrypts.log 2>&1

check "knfsd: starts" svcgssd
if passed; then
  privacy=yes; knfsd_decrypts || privacy=no
  for cell in $OUR_CLIENT; do
    IFS=: read -r transport version flavor <<<"$cell"
    if [ $flavor.$privacy = krb5p.no ]; then
      skip "$transport: knfsd, version $version with $flavor" "this kernel's client cannot use its server with krb5p either"
      continue
    fi
    check "$transport: knfsd, version $version with $flavor" our_client $transport $version $flavor
  done
fi
check "kernel log is clean" kernel_log_is_clean
cat /run/out/results.* >>"$RESULTS"
! grep -q ^fail "$RESULTS"
