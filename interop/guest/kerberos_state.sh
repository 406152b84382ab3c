# Runs in the guest: what two Linux clients hold at `slipway serve` with Kerberos 5. They lock files, their connections are cut and the
# server is killed while they work, and the ticket of a user ends while he holds locks, opens and delegations. /run/out/env sets SLIPWAY,
# the cells TRANSPORT:VERSION:FLAVOR of LOCKS, and ENDS, the exports (EXPORT, PRIVATE) on which the ticket ends. venus mounts over the transport
# of a cell, mars over tcp.
. /run/out/guest/two_clients.sh
. /run/out/guest/kerberos_lib.sh
GRACE=30
PRIVATE=/run/private

hosts() {
  network
  hostname $VENUS
  printf '127.0.0.1 localhost\n10.9.1.1 %s\n10.9.1.2 %s\n10.9.2.2 %s\n' $SERVER $VENUS $MARS >/etc/hosts
  ip netns exec server sysctl -w net.ipv4.ip_forward=1
  ip route add 10.9.2.0/24 via 10.9.1.1
}

# The key distribution centre is at venus.
mars_has_a_key() {
  mars hostname $MARS
  mars ip route add 10.9.1.0/24 via 10.9.2.1
  # The server calls mars back from the address that is next to mars, and the lock manager of mars must know it by that.
  mars sh -c "sed 's/^10.9.1.1 /10.9.2.1 /' /etc/hosts >/run/hosts; mount --bind /run/hosts /etc/hosts"
  mars sh -c "mkdir -p /run/rpc_pipefs; mount -t rpc_pipefs rpc_pipefs /run/rpc_pipefs
    rpc.gssd -f -vvv -p /run/rpc_pipefs >/run/out/logs/gssd-mars.log 2>&1 &"
  await mars test -e /run/rpc_pipefs/gssd/clntXX
}
mars_alice() { mars setpriv --reuid 1000 --regid 1000 --clear-groups "$@"; }

configure() {
  cat >/run/slipway.toml <<T
[server]
state_dir = "/run/state"
rpcbind = "builtin"
lease_s = $LEASE
grace_s = $GRACE
[kerberos]
keytab = "/run/$SERVER.keytab"
service = "nfs@$SERVER"
[[listen]]
transport = "tcp"
address = "0.0.0.0:2049"
[[listen]]
transport = "rdma"
address = "0.0.0.0:20049"
options = { provider = "iwarp" }
[[export]]
path = "$EXPORT"
sec = ["sys", "krb5", "krb5i", "krb5p"]
[[export]]
path = "$PRIVATE"
sec = ["krb5p"]
T
}
exports() {
  local directory
  for directory in $EXPORT $PRIVATE; do
    mkdir -p $directory; mount -t tmpfs -o size=500m export $directory; chmod 777 $directory
  done
  # Users confirm what they hold here.
  chmod 777 /run/near
  configure; serve
}

# both_mount TRANSPORT VERSION FLAVOR EXPORT: at $a and $b. NFSv3 has its locks at the server.
both_mount() {
  local by=proto=$1 more=
  [ $1 = tcp ] || by+=,port=20049
  [ $2 != 3 ] || more=,mountproto=tcp
  a=$A/$1.$2.$3 b=$B/$1.$2.$3
  mkdir -p $a; mars mkdir -p $b
  mount -t nfs -o "vers=$2,sec=$3,actimeo=0,$by$more" $SERVER:$4 $a
  mars mount -t nfs -o "vers=$2,sec=$3,actimeo=0,proto=tcp$more" $SERVER:$4 $b
  grep " $a " /proc/mounts
  grep -E " $a .*vers=$2,.*proto=$1,.*sec=$3," /proc/mounts
  refused grep nolock /proc/mounts
}
both_unmount() { umount $a; mars umount $b; }

# How often the server has said so far that a lock cannot be had, yet or at all, and whether that is more than $1.
waiting() { grep -cE 'procedure="LOCK".*status=Blocked|operation="LOCK".*status=Denied' /run/out/serve.log || true; }
more_wait() { [ "$(waiting)" -gt "$1" ]; }

# contend TRANSPORT VERSION FLAVOR: alice locks at venus and at mars.
contend() {
  local a b f=locks.$1.$2.$3 waited
  both_mount $1 $2 $3 $EXPORT
  alice sh -c "echo data >$a/$f"
  hold first alice $LOCK w try 0 10 $a/$f; await held first
  denied mars_alice $LOCK w try 5 1 $b/$f true
  denied mars_alice $LOCK r try 0 0 $b/$f true
  mars_alice $LOCK w try 10 10 $b/$f true
  equal "w 0 10" "$(mars_alice $LOCK r test 3 1 $b/$f)"
  waited=$(waiting)
  hold second mars_alice $LOCK w wait 0 0 $b/$f
  await more_wait $waited; refused held second
  release first; await held second
  # By GRANTED, not because the kernel asks again, which it does every 30 seconds.
  [ $2 != 3 ] || says 'host has confirmed GRANTED'
  denied alice $LOCK r try 0 1 $a/$f true
  release second; wait
  alice $LOCK w try 0 0 $a/$f true
  both_unmount
}

# Work on three mounts at once: 4.2 over rdma and NFSv3 at venus, 4.2 over tcp at mars.
WORKERS="rdma.4.2 tcp.3 mars.4.2"
works_at() { case $1 in mars.*) echo $B/works ;; *) echo $A/works.$1 ;; esac; }
says_of() { echo /run/near/works.$1; }
works() {
  local name=$1 at says
  at=$(works_at $name); says=$(says_of $name)
  if [ $name = mars.4.2 ]; then
    mars_alice perl /run/out/guest/worker.pl work $at/$name $says
  else
    alice perl /run/out/guest/worker.pl work $at/$name $says
  fi 2>$says.log || touch $says.failed
}
rounds() { cat $(says_of $1).rounds 2>/dev/null || echo 0; }
none_failed() { local name; for name in $WORKERS; do [ ! -e $(says_of $name).failed ] || { cat $(says_of $name).log >&2; return 1; }; done; }
# further NAME ROUNDS
further() { [ -e $(says_of $1).failed ] || [ $(rounds $1) -ge $2 ]; }
# all_work ROUNDS: each completes so many rounds from now on.
all_work() {
  local name; declare -A until
  for name in $WORKERS; do until[$name]=$(($(rounds $name) + $1)); done
  for name in $WORKERS; do await further $name ${until[$name]}; done
  none_failed
}
doubts() { cat /run/near/works.*.doubts 2>/dev/null || true; }

work_begins() {
  local name
  mkdir -p $A/works.rdma.4.2 $A/works.tcp.3; mars mkdir -p $B/works
  mount -t nfs -o vers=4.2,sec=krb5i,proto=rdma,port=20049 $SERVER:$EXPORT $A/works.rdma.4.2
  mount -t nfs -o vers=3,sec=krb5i,proto=tcp,mountproto=tcp $SERVER:$EXPORT $A/works.tcp.3
  mars mount -t nfs -o vers=4.2,sec=krb5i,proto=tcp $SERVER:$EXPORT $B/works
  for name in $WORKERS; do mkdir -m 777 $EXPORT/$name; works $name & done
  all_work 3
}

# The replies that were lost come from the caches of the server.
connections_are_cut() {
  local n
  for n in 1 2 3 4 5 6; do
    ss -K dst 10.9.1.1 dport = 2049 | grep ESTAB
    mars ss -K dst 10.9.2.1 dport = 2049 | grep ESTAB
    all_work 2
  done
  equal "" "$(doubts)"
}

contexts_of_alice() { grep -c 'a context is established.*principal=alice' /run/out/serve.log || true; }
ended() { ! readlink /proc/$1/exe; }

# The contexts end with the server, and so do its caches of replies: it can have executed the one operation that each client waits for.
server_is_killed() {
  local pid before had
  had=$(doubts | wc -l) before=$(contexts_of_alice)
  pid=$(cat /run/server.pid); kill -9 $pid; await ended $pid
  serve
  all_work 3
  doubts
  [ $(($(doubts | wc -l) - had)) -le 3 ]
  [ $(contexts_of_alice) -ge $((before + 3)) ]
}

work_is_whole() {
  local name
  for name in $WORKERS; do touch $(says_of $name).stop; done
  for name in $WORKERS; do await no_worker $name; done
  none_failed
  umount $A/works.rdma.4.2 $A/works.tcp.3; mars umount $B/works
  for name in $WORKERS; do
    perl /run/out/guest/worker.pl verify $EXPORT/$name/blocks $(says_of $name)
    equal blocks "$(ls -A $EXPORT/$name)"
  done
}
no_worker() { refused pgrep -f "worker.pl work .*/$1 "; }

clients() { "$SLIPWAY" clients --json --state-dir /run/state; }
# state_of FILE TYPES: how many of these the clients have.
state_of() { clients | grep -cE "\"type\":\"($2)\".*\"export\":\"${1%/*}\",\"fileid\":$(stat -c %i $1)," || true; }
returned() { grep -c 'operation="DELEGRETURN".*status=Ok' /run/out/serve.log || true; }
ticket_has_ended() { ! KRB5CCNAME=FILE:/tmp/krb5cc_1001 klist -s; }

# holds NAME FILE: bob opens a file, and locks it.
holds() {
  local at=/run/near/$1
  rm -f $at.*; mkfifo -m 666 $at.do
  { bob perl /run/out/guest/holder.pl $2 $at.do $at 2>$at.log || touch $at.failed; } &
  confirms $at held.0
}
confirms() { await says_or_failed "$@"; [ -e $1.$2 ] || { cat $1.log >&2; return 1; }; }
says_or_failed() { [ -e $1.$2 ] || [ -e $1.failed ]; }
# tell NAME COMMAND N
tell() { timeout 600 sh -c "echo $2 $3 >/run/near/$1.do"; confirms /run/near/$1 $2.$3; }

# Linux returns a delegation that is not used for a lease and of whose file nothing is open. So alice uses it until bob can do nothing more.
bob_is_out() { alice stat $a/closed; ticket_has_ended && refused bob touch $a/late; }

# ticket_ends EXPORT FLAVOR: bob's ticket ends while he has at venus a delegation of a file that he has closed, a file that he holds open
# and locked, and one that he holds open and locked by a delegation. Linux releases this state as its machine (SP4_MACH_CRED), with krb5i.
ticket_ends() {
  local a b name opened before
  both_mount rdma 4.2 $2 $1
  for name in locked closed kept; do echo data >$1/$name; chmod 666 $1/$name; done
  # mars has the file open, so that bob gets no delegation of it, with which he would lock it without the server.
  hold opened mars_alice sh -c 'exec "$@" <"$0"' $b/locked; opened=$!; await held opened
  ticket bob /tmp/krb5cc_1001 -l 50s; chown 1001:1001 /tmp/krb5cc_1001
  await bob ls $a
  holds bob $a/locked; tell bob write 1; tell bob sync 1
  holds kept $a/kept
  bob sh -c "echo new >$a/closed"; bob sync $a/closed
  equal 1 "$(state_of $1/locked lock)"
  await bob_is_out
  equal 1 "$(state_of $1/closed delegation)"
  before=$(returned)
  equal new "$(mars_alice cat $b/closed)"
  [ $(returned) -gt $before ]
  denied mars_alice $LOCK w try 0 0 $b/locked true
  tell bob end 0
  mars_alice $LOCK w try 0 0 $b/locked true
  release opened; wait $opened
  mars_alice sh -c "echo again >$b/locked"
  await none_has $1/locked
  # To return the delegation of a file that is open, Linux would have to open and lock it as bob, which fails with EKEYEXPIRED. The
  # server revokes it, and the client uses its other state.
  equal 1 "$(state_of $1/kept delegation)"
  equal data "$(mars_alice cat $b/kept)"
  equal 0 "$(state_of $1/kept delegation)"
  alice touch $a/after
  tell kept end 0
  both_unmount
}
none_has() { equal 0 "$(state_of $1 'open|lock')"; }

check "network namespaces" hosts; passed || exit 1
check "realm: MIT's key distribution centre" realm; passed || exit 1
check "venus: rpcbind and statd" monitor /run/venus; passed || exit 1
check "slipway serves" exports; passed || exit 1
check "venus: rpc.gssd" gssd; passed || exit 1
check "mars: rpcbind and statd" mars_comes_up mars; passed || exit 1
check "mars: rpc.gssd" mars_has_a_key; passed || exit 1
for cell in $LOCKS; do
  IFS=: read -r transport version flavor <<<"$cell"
  check "$transport: locks of two clients, version $version with $flavor" contend $transport $version $flavor
done
check "krb5i: work begins" work_begins
check "krb5i: connections are cut under load" connections_are_cut
for n in 1 2; do check "krb5i: the server is killed under load: $n" server_is_killed; done
check "krb5i: work is whole" work_is_whole
for export in $ENDS; do
  case $export in EXPORT) flavors="all flavours" ;; PRIVATE) flavors="krb5p only" ;; esac
  check "$flavors: the ticket ends of a user with state" ticket_ends ${!export} krb5p
done
check "kernel log is clean" kernel_log_is_clean "not responding|unhandled error -127|state recovery failed for open file /kept"
! grep -q ^fail "$RESULTS"
