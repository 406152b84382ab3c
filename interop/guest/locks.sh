# Runs in the guest: locks, delegations, leases and ACLs between two Linux clients of `slipway serve`, by NFSv3 with NLM, 4.0, 4.1
# and 4.2, while the server or a client restarts or is cut off.
. /run/out/guest/two_clients.sh

# How often the server has said so far that a lock cannot be had, yet or at all, and whether that is more than $1.
waiting() { grep -cE 'procedure="LOCK".*status=Blocked|operation="LOCK".*status=Denied' /run/out/serve.log || true; }
more_wait() { [ "$(waiting)" -gt "$1" ]; }

# contend_by_fcntl VERSION: between venus and mars.
contend_by_fcntl() {
  local f=fcntl.$1 waited; local a=$A/$1/$f b=$B/$1/$f
  echo data >"$a"
  hold first $LOCK w try 0 10 "$a"; await held first
  denied mars $LOCK w try 5 1 "$b" true
  denied mars $LOCK r try 0 0 "$b" true
  mars $LOCK w try 10 10 "$b" true
  equal "w 0 10" "$(mars $LOCK r test 3 1 "$b")"
  equal unlocked "$(mars $LOCK w test 10 0 "$b")"
  waited=$(waiting)
  hold second mars $LOCK w wait 0 0 "$b"
  await more_wait "$waited"; refused held second
  release first; await held second
  denied $LOCK r try 0 1 "$a" true
  release second; wait
  $LOCK w try 0 0 "$a" true
}

# And by flock.
contend_by_flock() {
  local f=flock.$1; local a=$A/$1/$f b=$B/$1/$f
  echo data >"$a"
  hold first flock "$a"; await held first
  denied mars flock -n -E 11 "$b" true
  release first; wait
  hold first flock -s "$a"; await held first
  mars flock -n -s -E 11 "$b" true
  release first; wait
}

# One table of locks: who holds one by any version is in the way of who asks by another.
versions_see_each_other() {
  echo data >$A/3/versions
  hold first $LOCK w try 0 0 $A/3/versions; await held first
  denied mars $LOCK w try 0 0 $B/4.1/versions true
  release first; wait
  hold first $LOCK w try 0 0 $A/4.0/versions; await held first
  denied mars $LOCK w try 0 0 $B/3/versions true
  denied mars $LOCK w try 0 0 $B/4.2/versions true
  release first; wait
}

# By GRANTED, not because the kernel asks again, which it does every 30 seconds.
granted_by_callback() { await says 'host has confirmed GRANTED'; }

who_gives_up_does_not_get_it() {
  local f=h; echo data >$A/3/$f
  hold first $LOCK w try 0 0 $A/3/$f; await held first
  local waited; waited=$(waiting)
  mars timeout 600 $LOCK w wait 0 0 $B/3/$f true &
  local waiter=$!
  await more_wait "$waited"
  mars pkill -f "wait 0 0 $B/3/$f"
  refused wait $waiter
  release first; wait
  $LOCK w try 0 0 $A/3/$f true
  mars $LOCK w try 0 0 $B/3/$f true
}

clients() { "$SLIPWAY" clients --json --state-dir /run/state; }
# delegations FILE true|false: how many of FILE there are to write, or to read.
delegations() { clients | grep '"type":"delegation"' | grep -c "\"fileid\":$(stat -c %i "$EXPORT/$1"),\"write\":$2" || true; }

# delegation VERSION: venus has one to read until mars writes.
delegation_to_read() {
  local f=read.$1; echo old >$EXPORT/$f
  exec 8<$A/$1/$f; equal old "$(cat <&8)"
  equal 1 "$(delegations $f false)"
  mars cat $B/$1/$f
  equal 2 "$(delegations $f false)"
  mars sh -c "echo new >$B/$1/$f"
  equal 0 "$(delegations $f false)"
  equal new "$(cat $A/$1/$f)"
  exec 8<&-
}

# And one to write until mars reads; a look at the size asks, and takes nothing.
delegation_to_write() {
  local f=write.$1; : >$EXPORT/$f
  exec 9<>$A/$1/$f; echo one >&9
  equal 1 "$(delegations $f true)"
  equal 4 "$(mars stat -c %s $B/$1/$f)"
  equal 1 "$(delegations $f true)"
  equal one "$(mars cat $B/$1/$f)"
  equal 0 "$(delegations $f true)"
  echo two >&9; exec 9>&-
  equal "one two" "$(mars cat $B/$1/$f | xargs)"
}

# load VERSION: on mars, writes and reads back, until it is told to stop; says how often.
load() {
  local i=0 f=$B/$1/load.$1
  head -c 300000 /run/out/random >/tmp/load.$1
  until [ -e /run/out/load.stop ]; do
    cp /tmp/load.$1 $f; cmp /tmp/load.$1 $f; i=$((i + 1)); echo $i >/run/out/load.$1
  done
}

rounds() { local v; for v in $VERSIONS; do cat /run/out/load.$v; done; }
# more_rounds BEFORE: every version has come further than BEFORE.
more_rounds() { paste <(echo "$1") <(rounds) | awk '$2 < $1 + 2 { behind = 1 } END { exit behind }'; }

locks_survive_the_servers_death_under_load() {
  local v holders=() loads=() before
  rm -f /run/out/load.*; export -f load; export B
  trap 'touch /run/out/load.stop' EXIT
  for v in $VERSIONS; do
    # Made by mars, so that venus has no delegation, by which it would lock without the server.
    mars sh -c "echo data >$B/$v/survives.$v"
    hold $v $LOCK w try 0 0 $A/$v/survives.$v; holders+=($!)
    mars bash -euc "load $v" & loads+=($!)
  done
  for v in $VERSIONS; do await held $v; await test -e /run/out/load.$v; done
  kill -9 "$(cat /run/server.pid)"
  before=$(rounds)
  # To come back takes as long on this machine as to come.
  GRACE=$((2 * (LEASE + $(cat /run/mounting)))); configure
  serve
  await says 'host has been notified of the restart'
  # In grace the kernel asks again until it is over, and then the locks are still held.
  for v in $VERSIONS; do denied mars $LOCK w try 0 0 $B/$v/survives.$v true; done
  says 'locks can only be reclaimed'
  await more_rounds "$before"
  touch /run/out/load.stop; wait "${loads[@]}"
  for v in $VERSIONS; do release $v; done
  wait "${holders[@]}"
  for v in $VERSIONS; do mars $LOCK w try 0 0 $B/$v/survives.$v true; cmp /tmp/load.$v $A/$v/load.$v; done
}

# expired CLIENT VERSION true|false: whether the server has not heard from it for a lease, by its own account.
expired() { clients | grep -E "\"protocol\":\"$2\",\"name\":\"[^\"]*$1.*\"expired\":$3" >/dev/null; }
# A client that has a delegation locks without the server.
kept() { clients | grep -E "\"type\":\"(lock|delegation)\".*\"fileid\":$(stat -c %i "$EXPORT/$1")," >/dev/null; }

# Three leases in which venus has nothing to do, and mars is cut off. Idle clients keep what they have; so does one that is not
# heard, until somebody wants it: that is 4.0's and 4.2's, and not 4.1's.
leases() {
  local v idle=() frozen=()
  for v in 4.0 4.1 4.2; do
    mars sh -c "echo data >$B/$v/idle.$v"; echo data >$A/$v/frozen.$v
    hold idle.$v $LOCK w try 0 0 $A/$v/idle.$v; idle+=($!)
    hold frozen.$v mars $LOCK w try 0 0 $B/$v/frozen.$v; frozen+=($!)
  done
  for v in 4.0 4.1 4.2; do await held idle.$v; await held frozen.$v; done
  ip -n server link set mars1 down
  sleep $((3 * LEASE))
  for v in 4.0 4.1 4.2; do
    await expired mars $v true; await expired venus $v false
    kept frozen.$v; kept idle.$v
  done
  for v in 4.0 4.2; do $LOCK w try 0 0 $A/$v/frozen.$v true; done
  ip -n server link set mars1 up
  # It does not find out at its leisure, which doubles with each attempt.
  mars ss -K dst 10.9.2.1
  # 4.1 has lost nothing.
  await expired mars 4.1 false
  denied $LOCK w try 0 0 $A/4.1/frozen.4.1 true
  for v in 4.0 4.1 4.2; do
    denied mars $LOCK w try 0 0 $B/$v/idle.$v true
    release idle.$v; release frozen.$v
  done
  wait "${idle[@]}" "${frozen[@]}"
  for v in 4.0 4.1 4.2; do mars $LOCK w try 0 0 $B/$v/frozen.$v true; mars sh -c "echo again >$B/$v/frozen.$v"; done
  equal again "$(cat $A/4.0/frozen.4.0)"
}

# The kernel of mars is not asked to give anything back: it is gone, and another comes up by the same name.
a_client_that_restarts_loses_its_locks() {
  local v
  ip -n server link set mars1 up
  for v in $VERSIONS; do
    echo data >$A/$v/lost.$v
    hold $v mars $LOCK w try 0 0 $B/$v/lost.$v
  done
  for v in $VERSIONS; do await held $v; denied $LOCK w try 0 0 $A/$v/lost.$v true; done
  mars ls /var/lib/nfs/sm
  mars ip link del mars0
  mars_comes_up mars.again
  mars sm-notify -f
  await says 'host has restarted'
  mars_mounts 4.0 4.1 4.2
  for v in $VERSIONS; do $LOCK w try 0 0 $A/$v/lost.$v true; done
}

as() { local id=$1; shift; setpriv --reuid "$id" --regid "$id" --clear-groups "$@"; }

acls() {
  cd "$1"; chmod 755 .; mkdir acl; cd acl
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

# acls_of_version4 VERSION: venus sets one and mars another, with what NFSv4 has for it; the file system does what they say, and
# POSIX's tools see the same on its disk.
acls_of_version4() {
  local there=$EXPORT/acl.$1
  cd $A/$1; mkdir acl.$1; cd acl.$1
  echo private >f; chmod 600 f
  refused as 1234 cat f
  nfs4_setfacl -a A::1234:rwa,A:g:4321:r f
  nfs4_getfacl f | tee /dev/stderr | grep -E '^A::1234:rwa'
  equal "user::rw- user:1234:rw- group::--- group:4321:r-- mask::rw- other::---" "$(getfacl -nc $there/f | xargs)"
  as 1234 sh -c 'echo written >f'; equal written "$(as 4321 cat f)"
  refused as 4321 sh -c 'echo x >f'; refused as 1235 cat f
  mars nfs4_setfacl -a D::1234:wa $B/$1/acl.$1/f
  mars nfs4_getfacl $B/$1/acl.$1/f | tee /dev/stderr | grep -E '^A::1234:r[^wa]*$'
  equal "user:1234:r--" "$(getfacl -nc $there/f | grep ^user:1234)"
  equal written "$(as 1234 cat f)"; refused as 1234 sh -c 'echo x >f'
  mars nfs4_setfacl -s A::OWNER@:rwa,A::EVERYONE@:r $B/$1/acl.$1/f
  equal "user::rw- group::r-- other::r--" "$(getfacl -nc $there/f | xargs)"; equal 644 "$(stat -c %a f)"
  # What a directory passes on.
  mkdir d; nfs4_setfacl -a A:fd:1234:rx d; mkdir d/sub; touch d/file
  nfs4_getfacl d/sub | tee /dev/stderr | grep -E '^A:fdi:1234:[a-z]*r'
  nfs4_getfacl d/file | grep -E '^A::1234:[a-z]*r'
  equal "user:1234:r-x" "$(getfacl -nc $there/d/sub | grep ^default:user:1234 | cut -d: -f2-)"
  # And what POSIX's tools have set.
  setfacl -m u:777:rw $there/d/file
  mars nfs4_getfacl $B/$1/acl.$1/d/file | tee /dev/stderr | grep -E '^A::777:[a-z]*w'
}

acls_are_on_the_servers_disk() { getfacl -nc $EXPORT/acl/d/file | grep '^user:1234:rwx'; }

unmount_all() { local v; umount $A/memory; for v in $VERSIONS; do umount $A/$v; done; mars umount $B/4.0 $B/4.1 $B/4.2; }

check "network namespaces" network; passed || exit 1
check "venus: rpcbind and statd" monitor /run/venus; passed || exit 1
check "slipway serves" eval "configure; serve"; passed || exit 1
check "mars: rpcbind and statd" mars_comes_up mars; passed || exit 1
check "mounts" mount_all; passed || exit 1
check "rdma: acls of version 3" acls $A/3
check "acls are on the server's disk" acls_are_on_the_servers_disk
check "memory: acls of version 3" acls $A/memory
for v in 4.0 4.1 4.2; do check "$v: acls" acls_of_version4 $v; done
for v in $VERSIONS; do
  check "$v: fcntl between two clients" contend_by_fcntl $v
  check "$v: flock between two clients" contend_by_flock $v
done
check "3: granted by callback" granted_by_callback
check "3: who gives up does not get it" who_gives_up_does_not_get_it
check "versions see each other's locks" versions_see_each_other
for v in 4.0 4.1 4.2; do check "$v: a delegation to read is recalled" delegation_to_read $v; done
for v in 4.1 4.2; do check "$v: a delegation to write is recalled" delegation_to_write $v; done
for v in 4.1 4.2; do check "$v: four connections" four_connections $v; done
check "locks survive the server's death under load" locks_survive_the_servers_death_under_load
check "leases: idle clients, and one that is cut off" leases
check "a client that restarts loses its locks" a_client_that_restarts_loses_its_locks
[ $BACKEND = posix ] || check "clients have used the data servers" used_data_servers
check "unmounts" unmount_all
check "kernel log is clean" kernel_log_is_clean "lock reclaim failed|not responding|lost [0-9]+ locks"
! grep -q ^fail "$RESULTS"
