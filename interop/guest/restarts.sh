# Runs in the guest: the server restarts three times for each signal in SIGNALS while two Linux clients hold locks with
# every version, one over rdma and one over tcp. After each restart every lock must still be held, the data written
# before must be there, and no client may have lost state.
. /run/out/guest/two_clients.sh
RESTARTS="1 2 3"

# The client that holds a lock over this transport, the client that tries to get it, and the paths of the files on each.
holder_of() { if [ "$1" = tcp ]; then mars "${@:2}"; else "${@:2}"; fi; }
other_than() { if [ "$1" = tcp ]; then "${@:2}"; else mars "${@:2}"; fi; }
seen_by_holder_of() { if [ "$1" = tcp ]; then echo $B; else echo $A; fi; }
seen_by_other_than() { if [ "$1" = tcp ]; then echo $A; else echo $B; fi; }

TRANSPORTS="tcp rdma"
each_cell() { local v by; for v in $VERSIONS; do for by in $TRANSPORTS; do "$@" "$v" "$by"; done; done; }

# The client that does not hold the lock creates the files, so that the holder has no delegation, with which it would
# lock without the server.
hold_in() {
  local at=/run/near/$1.$2.$3
  rm -f $at.*; mkfifo $at.do
  other_than $3 sh -c "echo data >$(seen_by_other_than $3)/$2/$1.$2.$3"
  { holder_of $3 perl /run/out/guest/holder.pl "$(seen_by_holder_of $3)/$2/$1.$2.$3" $at.do $at 2>$at.log || touch $at.failed; } &
  confirms $at held.0
}

# confirms HOLDER WHAT: waits for the confirmation; fails at once if the holder has ended.
confirms() {
  await says_or_failed "$@"
  [ -e $1.$2 ] || { cat $1.log >&2; return 1; }
}
says_or_failed() { [ -e $1.$2 ] || [ -e $1.failed ]; }

# tell SIGNAL VERSION TRANSPORT COMMAND N: sends a command and waits until it is done.
tell() {
  local at=/run/near/$1.$2.$3
  [ ! -e $at.failed ]
  timeout 600 sh -c "echo $4 $5 >$at.do"
  confirms $at $4.$5
}

# A holder that has lost its lock has ended, and does not block the others.
write_before() { [ -e /run/near/$2.$3.$4.failed ] || tell $2 $3 $4 write $1; }

# ends SIGNAL: waits for the end of the server. /proc/PID/exe does not exist when the process has ended, also before its
# parent waits for it.
ends() {
  local pid; pid=$(cat /run/server.pid)
  kill -$1 $pid
  await ended $pid
}
ended() { ! readlink /proc/$1/exe; }

# still_held RESTART SIGNAL VERSION TRANSPORT
still_held() {
  local f=$2.$3.$4
  tell $2 $3 $4 sync $1
  denied other_than $4 $LOCK w try 0 0 "$(seen_by_other_than $4)/$3/$f" true
  other_than $4 perl -e 'open(F, "<", $ARGV[0]) or die "$!"; for my $n (1 .. $ARGV[1]) {
    sysseek(F, $n * 65536, 0); sysread(F, my $block, 65536) == 65536 or die "block $n is short";
    $block eq chr(ord("a") + $n) x 65536 or die "block $n is not what was written" }' "$(seen_by_other_than $4)/$3/$f" $1
}

check_held() { check "$2: restart $1: $3 over $4: locked, and written" still_held "$@"; }

let_go() {
  tell "$@" end 0
  other_than $3 $LOCK w try 0 0 "$(seen_by_other_than $3)/$2/$1.$2.$3" true
}

restart() {
  each_cell write_before $1 $2
  ends $2
  serve
}

lost_nothing() { refused grep -E 'lost [0-9]+ locks|lock reclaim failed' <(dmesg); }

unmount_all() { local v; umount $A/memory; for v in $VERSIONS; do umount $A/$v; mars umount $B/$v; done; }

check "network namespaces" network; passed || exit 1
check "venus: rpcbind and statd" monitor /run/venus; passed || exit 1
check "slipway serves" eval "configure; serve"; passed || exit 1
check "mars: rpcbind and statd" mars_comes_up mars; passed || exit 1
check "mounts" mount_all; passed || exit 1
# On this machine, a restart takes as long as the first start.
GRACE=$((2 * (LEASE + $(cat /run/mounting))))
configure
for signal in $SIGNALS; do
  check "$signal: locks are held" each_cell hold_in $signal
  for n in $RESTARTS; do
    check "$signal: restart $n" restart $n $signal; passed || break
    each_cell check_held $n $signal
    check "$signal: restart $n: no kernel lost a lock" lost_nothing
  done
  check "$signal: released locks can be taken" each_cell let_go $signal
done
[ $BACKEND = posix ] || check "clients have used the data servers" used_data_servers
check "unmounts" unmount_all
check "kernel log is clean" kernel_log_is_clean "not responding"
! grep -q ^fail "$RESULTS"
