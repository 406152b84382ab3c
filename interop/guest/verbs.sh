# Runs in the guest: the provider `verbs` on both of Linux's software devices at once, rxe (RoCE version 2) on eth0 and
# siw (iWARP) on a veth, with a Linux kernel and with our own client and server. All ends are in the guest, because no
# such device reaches the host. The server runs as root with the identity of its callers, and also serves TCP. /run/out/env sets SLIPWAY
# and the test programs, VERSION4 (DEVICE:VERSION of mounts by version 4), WAYS (of registering memory) and KNFSD (devices over which our
# client uses the kernel's server).
. /run/out/guest/lib.sh
. /run/out/guest/content.sh
. /run/out/guest/version4.sh
. /run/out/env
near SLIPWAY CONFORMANCE CHAOS SHARED ALONE
: >"$RESULTS"
# A part of the tree and of the large file, because many checks use them.
part asm-generic part; TREE=/run/part.tar FILES=/run/part
head -c 12M /run/out/random >/run/random; mount --bind /run/random /run/out/random
IOSIZE=1048576 EXPORT=/run/ours
OURS_TCP=3049 OURS_RDMA=21049
declare -A AT=([rxe]=10.0.2.15 [siw]=10.9.1.1) AT6=([rxe]=fd09:1::1 [siw]=fd09:2::1)
# As for any adapter; siw counts registered memory even for root.
ulimit -l unlimited

slip() { timeout 300 "$SLIPWAY" "$@"; }

devices() {
  ip link add veth0 type veth peer name veth1
  ip addr add "${AT[siw]}/24" dev veth0; ip link set veth0 up; ip link set veth1 up
  ip addr add "${AT6[rxe]}/64" dev eth0 nodad; ip addr add "${AT6[siw]}/64" dev veth0 nodad
  rdma link add rxe0 type rxe netdev eth0
  rdma link add siw0 type siw netdev veth0
  slip doctor | tee /run/out/doctor
  grep -E '^ok +rdma adapters +rxe0 .*port 1 ACTIVE' /run/out/doctor
  grep -E 'siw0 .*port 1 ACTIVE' /run/out/doctor
}

# give DIR: on an ext4 in memory, because tmpfs does not support extended attributes of users here.
give() {
  mkdir -p "$1" /run/disks; mountpoint -q /run/disks || mount -t tmpfs -o size=2g disks /run/disks
  truncate -s 1G "/run/disks/${1##*/}"; mkfs.ext4 -q -O ^has_journal "/run/disks/${1##*/}"; mount -o loop "/run/disks/${1##*/}" "$1"
  mkdir -p "$1/given/tree" "$1/given/many"
  tar xf "$TREE" -C "$1/given/tree"
  (cd "$1/given/many" && touch $(seq -f 'entry-%g' 3000))
  chmod 1777 "$1"
}

configure() {
  give /run/ours
  cat >/run/serve.toml <<T
[server]
state_dir = "/run/state"
rpcbind = "off"
[[listen]]
transport = "tcp"
address = "[::]:$OURS_TCP"
[[listen]]
transport = "rdma"
address = "[::]:$OURS_RDMA"
options = { provider = "verbs" }
[[export]]
path = "/run/ours"
squash = "none"
T
}

# serve [CONFIG]: starts our server, which logs to a file with the name of its configuration.
serve() {
  local config=${1:-/run/serve.toml} log
  log=$(log_of "$config")
  rm -f /run/ready
  "$SLIPWAY" -v serve --config "$config" --ready-file /run/ready >>"$log" 2>&1 &
  echo $! >/run/serve.pid; echo "$config" >/run/config
  await test -s /run/ready || { tail -n 3 "$log" >&2; return 1; }
}

log_of() { echo "/run/out/$(basename "$1" .toml).log"; }

# The server must drain and end without an error in its log, whichever function started it.
end_serving() {
  # Some errors are expected: siw logs one for a connection that is cut in the middle of a request.
  refused grep -E 'Permission denied|panicked' "$(log_of "$(cat /run/config)")"
  kill -TERM "$(cat /run/serve.pid)"
  await has_ended "$(cat /run/serve.pid)"
}
# Or its parent has not waited for it yet.
has_ended() { [ ! -e "/proc/$1" ] || grep -q '^State:.Z' "/proc/$1/status"; }

# Returns the URL of our or the kernel's server at a device, for a user.
of_ours() { echo "nfs://${AT[$1]}:$OURS_RDMA/run/ours/$3?proto=rdma&${PROVIDER:-provider=verbs}&mountport=$OURS_TCP&mountproto=tcp&uid=$2&gid=$2"; }
of_knfsd() { echo "nfs://${AT[$1]}:20049/run/export/$3?proto=rdma&provider=verbs&mountport=20048&mountproto=tcp&uid=$2&gid=$2"; }

# Runs our client on a server whose export is at $ROOT: URL is one of the above, $ID is the caller.
at() { $URL "$DEVICE" "$ID" "$1"; }

lists_the_tree() { equal "$(wc -l <"$FILES")" "$(slip ls -lR "$(at given/tree)" | grep -c '^-')"; }

copies_the_tree_out() {
  slip cp -r "$(at given/tree)" "/tmp/$HERE"
  (cd "/tmp/$HERE" && sha256sum --quiet -c "$FILES")
}

copies_the_tree_in() {
  slip mkdir "$(at "$HERE")"
  slip cp -r "/tmp/$HERE" "$(at "$HERE/tree")"
  (cd "$ROOT/$HERE/tree" && sha256sum --quiet -c "$FILES")
  equal "$ID:$ID" "$(find "$ROOT/$HERE" -printf '%U:%G\n' | sort -u)"
}

a_large_file_goes_in_and_out() {
  slip cp /run/out/random "$(at "$HERE/random")"
  cmp /run/out/random "$ROOT/$HERE/random"
  slip cp "$(at "$HERE/random")" "/tmp/$HERE.random"
  cmp /run/out/random "/tmp/$HERE.random"
}

what_others_own_is_refused() {
  echo private >"$ROOT/$HERE.private"; chmod 600 "$ROOT/$HERE.private"
  refused slip cat "$(at "$HERE.private")"
  refused slip rm "$(at given/many/entry-1)"
  [ -e "$ROOT/given/many/entry-1" ]
}

removes() { slip rm -r "$(at "$HERE")"; refused slip stat "$(at "$HERE")"; [ ! -e "$ROOT/$HERE" ]; }

# ours NAME DEVICE URL ROOT ID
ours() {
  local name=$1 c
  DEVICE=$2 URL=$3 ROOT=$4 ID=$5 HERE=ours-$2-$5
  RESULTS=/run/out/results.$URL.$DEVICE.$ID
  for c in lists_the_tree copies_the_tree_out copies_the_tree_in a_large_file_goes_in_and_out what_others_own_is_refused removes; do
    check "$DEVICE: our client as $ID, $name: ${c//_/ }" "$c"
  done
}

# Calls of other users over TCP at the same time change the credentials of the threads that serve them.
by_tcp_as_others() {
  local id url
  while [ ! -e /run/enough ]; do
    for id in 1000 2000; do
      url="nfs://127.0.0.1:$OURS_TCP/run/ours/by-tcp-$id?uid=$id&gid=$id"
      slip cp /run/out/manifest "$url"; slip rm "$url"
    done
    sleep 1
  done
}

by_ipv6() {
  local url="nfs://[${AT6[$1]}]:$OURS_RDMA/run/ours/given?proto=rdma&provider=verbs&mountport=$OURS_TCP&mountproto=tcp"
  slip ls "$url" | grep tree
}

# After 3 s without an answer the client uses another provider, and this server can be slow.
auto_takes_the_adapter() {
  local url="nfs://${AT[$1]}:$OURS_RDMA/run/ours/given?proto=auto&mountport=$OURS_TCP&mountproto=tcp" tries
  for tries in {1..10}; do
    slip -v ls "$url" 2>&1 | tee /dev/stderr | grep 'proto=auto: connected.*transport="rdma"' && return
  done
  return 1
}

too_little_locked_memory_is_explained() {
  local said
  DEVICE=siw URL=of_ours ID=0
  # Without this capability even root cannot exceed the hard limit.
  said=$(ulimit -l 64; setpriv --bounding-set=-sys_resource timeout 300 "$SLIPWAY" ls "$(at given)" 2>&1) && return 1
  echo "$said"
  grep RLIMIT_MEMLOCK <<<"$said"
}

root_exceeds_the_limit_of_locked_memory() {
  DEVICE=siw URL=of_ours ID=0
  (ulimit -l 64; slip ls "$(at given)")
}

# on_both COMMAND: runs COMMAND for both devices at once.
on_both() {
  local device commands=()
  for device in rxe siw; do "$1" "$device" & commands+=($!); done
  all_end_well "${commands[@]}"
}

all_end_well() { local process failed=0; for process; do wait "$process" || failed=1; done; return "$failed"; }

# goes_on_through FAULT: both kinds of client write over both devices while FAULT happens; no written data may be lost.
goes_on_through() {
  local fault=$1 file files=() writers=()
  rm -f /run/happened; head -c 4M /run/random >/run/load
  URL=of_ours ID=1234
  for DEVICE in rxe siw; do
    mkdir -p "/run/mnt/$DEVICE"
    mount -t nfs -o "vers=3,nolock,proto=rdma,port=$OURS_RDMA,mountport=$OURS_TCP,mountproto=tcp" "${AT[$DEVICE]}:/run/ours" "/run/mnt/$DEVICE"
    writes_until_it_happened dd if=/run/load of="/run/mnt/$DEVICE/$DEVICE-kernels" bs=1M conv=fsync status=none & writers+=($!)
    writes_until_it_happened slip cp /run/load "$(at "$DEVICE-ours")" & writers+=($!)
    files+=("/run/ours/$DEVICE-kernels" "/run/ours/$DEVICE-ours")
  done
  for file in "${files[@]}"; do await test -s "$file"; done
  "$fault"
  touch /run/happened
  all_end_well "${writers[@]}"
  umount /run/mnt/rxe /run/mnt/siw
  for file in "${files[@]}"; do cmp /run/load "$file"; rm "$file"; done
}
# An operation that starts while there is no server cannot connect, which is expected.
writes_until_it_happened() {
  local said=/run/said.$BASHPID
  until [ -e /run/happened ]; do "$@" 2>"$said" || grep "cannot connect" "$said"; done
  "$@"
}

# The kernel's end of siw's connections is an ordinary socket, which can be cut. Then the server is killed and
# restarted.
cuts_and_death() {
  local times
  for times in {1..2}; do ss -K -t state established "( sport = :$OURS_RDMA )"; sleep 2; done
  kill -9 "$(cat /run/serve.pid)"; sleep 1; serve "$(cat /run/config)"
}

# A client is killed during its work: its connection and its resources must be released, and other clients served.
a_client_dies() {
  local client status file=dying-$1
  DEVICE=$1 URL=of_ours ID=1234
  until [ "${status:-0}" = 137 ]; do # one that comes to its end before is another's
    rm -f "/run/ours/$file"
    "$SLIPWAY" cp /run/out/random "$(at "$file")" & client=$!
    await test -s "/run/ours/$file"
    kill -9 "$client" || true
    wait "$client" && status=0 || status=$?
  done
  slip ls "$(at given)" | grep tree
  slip rm "$(at "$file")"
}

# another_server OPTIONS: starts a server whose listener on adapters has these options instead of the first server's.
another_server() {
  sed "s/^options.*/$1/" /run/serve.toml >/run/another.toml
  serve /run/another.toml
}

# there_and_back DEVICE: copies a file of an odd length to our server and back.
there_and_back() {
  local file=there-and-back-$1 url
  url=$(of_ours "$1" 1234 "$file")
  head -c 5000001 /run/random >"/tmp/$file"
  slip cp "/tmp/$file" "$url"; cmp "/tmp/$file" "/run/ours/$file"
  slip cp "$url" "/tmp/$file.back"; cmp "/tmp/$file" "/tmp/$file.back"
  slip rm "$url"
}

# registering WAY: both ends register memory in this way, with faults under load.
registering() {
  local way="registration=$1"
  PROVIDER="provider=verbs&$way"
  check "rxe and siw, $way: our server starts" another_server "options = { provider = \"verbs\", registration = \"$1\" }"; passed || return
  check "rxe and siw, $way: files go there and back" on_both there_and_back
  check "rxe and siw, $way: clients go on through cuts and the server's death" goes_on_through cuts_and_death
  check "rxe and siw, $way: clients die" on_both a_client_dies
  check "rxe and siw, $way: our server ends well" end_serving
  PROVIDER=
}

# By default a server listens on adapters and with software iWARP. Connections over adapters have their own threads.
by_adapter_and_by_software() {
  another_server ""
  for PROVIDER in provider=verbs provider=iwarp provider=verbs; do there_and_back rxe; done
  end_serving
}

# Our server must have the data that the kernel's clients wrote, and must drain.
serves_to_the_end() {
  local device
  (cd /run/ours/by-rxe/tree && sha256sum --quiet -c "$FILES")
  for device in rxe siw; do cmp "/run/ours/by-$device/large/f" /run/out/random; done
  end_serving
}

knfsd_with_export() { give /run/export; knfsd /run/export; }

# conformance DEVICE: runs the conformance suite, and the tests that only adapters have.
conformance() {
  local log=/run/out/conformance.$1.log
  export SLIPWAY_VERBS_ADDRESS=${AT[$1]}
  to_its_end "$CONFORMANCE" --test-threads=2 verbs
  to_its_end "$ALONE" --test-threads=1 --skip a_peer
  to_its_end "$CHAOS" --test-threads=1 on_verbs
  case $1 in
    # The shared receive queues of siw are not used.
    rxe) to_its_end "$SHARED" --test-threads=1 verbs ;;
    # Both ends of siw are sockets of this host; rxe does not use the network here.
    siw) SLIPWAY_VERBS_CUT='ip link set lo down' to_its_end "$ALONE" --test-threads=1 a_peer; ip link set lo up ;;
  esac
  refused grep SKIPPED "$log"
  grep -E '^test result: .* [1-9][0-9]{1,} passed' "$log"
}

# to_its_end PROGRAM ARGUMENT…: tests can fail, and are reported one by one; a crash or a hang is an error. Logs to
# $log.
to_its_end() { timeout 900 "$@" >>"$log" 2>&1 || [ $? -lt 124 ]; }

# conforms DEVICE: records a result for each of its tests.
conforms() {
  check "$1: conformance suite of providers runs" conformance "$1"; passed || return
  sed -n "s/^test \([a-z_:]*\) \.\.\. ok$/ok $1: conformance \1/p;
    s/^test \([a-z_:]*\) \.\.\. FAILED$/fail $1: conformance \1: see conformance.$1.log/p" \
    "/run/out/conformance.$1.log" >>"$RESULTS"
}

end() { cat /run/out/results.* >>"$RESULTS"; ! grep -q ^fail "$RESULTS"; exit; }

mkdir -p /run/out/logs
check "doctor sees both devices" devices; passed || end
check "our server starts" eval "configure; serve"; passed || end
by_tcp_as_others >/run/out/logs/by-tcp.log 2>&1 & OTHERS=$!
CLIENTS=()
for device in rxe siw; do
  # The part for siw is brief, because the suite of Linux's client tests the same with software iWARP.
  [ "$device" = rxe ] && content_of=over || content_of=brief
  (SERVER=${AT[$device]} $content_of "$device" "proto=rdma,port=$OURS_RDMA,mountport=$OURS_TCP,mountproto=tcp") & CLIENTS+=($!)
  (ours "our server" "$device" of_ours /run/ours 1234) & CLIENTS+=($!)
done
wait "${CLIENTS[@]}"
# Version 4 runs on one device after the other, because Linux detects that it is the same server, and would use its
# existing connection. Both mounts belong to one client, from which the server does not recall a delegation for its own
# operations. (With 4.1 and 4.2, the mount that writes has it. With 4.0 there is no write delegation, and the mount that
# reads would have one. Without a callback address there is none.)
for device in rxe siw; do
  CLIENTS=()
  for mount in $VERSION4; do
    [ ${mount%:*} = $device ] || continue
    v=${mount#*:} also=version4 options=
    case $v in 4.0) options=,clientaddr=0.0.0.0 ;; 4.2) also=version42 ;; esac
    (SERVER=${AT[$device]} brief "$device-$v" "vers=$v,proto=rdma,port=$OURS_RDMA$options" $also) & CLIENTS+=($!)
  done
  [ -z "${CLIENTS[*]}" ] || wait "${CLIENTS[@]}"
done
touch /run/enough; wait "$OTHERS"
for device in rxe siw; do
  check "$device: our client by IPv6" by_ipv6 "$device"
  check "$device: proto=auto takes the adapter" auto_takes_the_adapter "$device"
done
check "siw: too little locked memory is explained" too_little_locked_memory_is_explained
check "siw: root exceeds the limit of locked memory" root_exceeds_the_limit_of_locked_memory
check "our server ends well, with all that the kernel's clients wrote" serves_to_the_end
for way in $WAYS; do registering "$way"; done
check "knfsd starts" knfsd_with_export
if passed; then
  [[ $KNFSD != *siw* ]] || (ours knfsd siw of_knfsd /run/export 1234)
  # If every device has memory windows, as rxe has, peers are told that they can invalidate regions.
  check "siw: is removed beneath Linux's server" timeout 300 rdma link delete siw0
  [[ $KNFSD != *rxe* ]] || (ours knfsd rxe of_knfsd /run/export 1234)
  # Without siw, which uses the same ports.
  check "rxe: our server listens by iWARP in software, too" by_adapter_and_by_software
fi
# The server may have sent data to a peer that has died or is disconnected.
check "kernel log is clean" kernel_log_is_clean 'siw: got TERMINATE'
# These tests run last, because the kernel logs their effects.
conforms rxe
# A process that has such a device open would keep it, so there must be none.
check "rxe: is removed after all that" timeout 300 rdma link delete rxe0
rdma link add siw0 type siw netdev veth0
conforms siw
end
