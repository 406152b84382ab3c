# The checks that every mount must pass: $M is the mount, $M2 a second mount of the same export that shares no cache
# with it and revalidates every attribute, $HERE a new directory name in both, $FILES the manifest (sha256sum's format)
# of $TREE, an archive. HOLES_ARE_DATA is set if the server reports holes as data and as used space.
TREE=/run/out/tree.tar

# The tree that the server had before the mount must read back unchanged.
given_tree_reads_back() {
  cd "$M/given/tree"
  sha256sum --quiet -c "$FILES"
}

# Unpacks a source tree. The other mount must see every name and size. (The host compares the contents afterwards.)
source_tree_unpacks() {
  mkdir "$M/$HERE/tree"
  tar xf "$TREE" -C "$M/$HERE/tree"
  sync -f "$M/$HERE"
  equal "$(cut -c67- "$FILES" | sort | sha256sum)" "$(cd "$M2/$HERE/tree" && find . -type f -printf '%P\n' | sort | sha256sum)"
}

unpacked_tree_reads_back() {
  cd "$M2/$HERE/tree"
  head -n 300 "$FILES" | sha256sum --quiet -c -
}

listing_is_complete() {
  [ -n "${BRIEF:-}" ] || equal 3000 "$(find "$M/given/many" -name 'entry-*' | sort -u | wc -l)"
  ls -lR "$M/$HERE/tree" >/tmp/listing.$HERE
  equal "$(wc -l <"$FILES")" "$(grep -c '^-' /tmp/listing.$HERE)"
  refused grep -F '?' /tmp/listing.$HERE
}

files_rename_and_unlink() {
  cd "$M/$HERE"; mkdir rename; cd rename
  echo one >a; echo two >b; mkdir -p d1/d2 empty
  mv a c; [ ! -e a ]; equal one "$(cat c)"
  mv c b; equal one "$(cat b)"
  mv b d1/d2/b; mv d1/d2 d3; equal one "$(cat d3/b)"
  mv -T d3 empty; equal one "$(cat empty/b)"
  refused rmdir empty
  refused mv -T d1 empty
  refused rm d1
  refused mv empty empty/inside
  equal one "$(cat "$M2/$HERE/rename/empty/b")"
  rm empty/b; rmdir empty d1
  equal "" "$(ls -A)"
  equal "" "$(ls -A "$M2/$HERE/rename")"
}

hard_and_symbolic_links() {
  cd "$M/$HERE"; mkdir link; cd link
  echo text >f; ln f g; equal 2 "$(stat -c %h f)"; equal "$(stat -c %i f)" "$(stat -c %i g)"
  echo more >>g; equal "text more" "$(tr '\n' ' ' <f | sed 's/ $//')"
  refused ln f g
  rm f; equal 1 "$(stat -c %h g)"
  ln -s g s; equal g "$(readlink s)"; equal text "$(head -n1 s)"
  ln -s /nowhere/at/all dangling; equal /nowhere/at/all "$(readlink dangling)"; refused cat dangling
  local long; long=$(printf 'x%.0s' {1..1000}); ln -s "$long" long; equal "$long" "$(readlink "$M2/$HERE/link/long")"
  ln -s ../../../../etc/passwd out; equal ../../../../etc/passwd "$(readlink out)"
}

special_files() {
  cd "$M/$HERE"; mkdir special; cd special
  mkfifo p; mknod c c 1 3; mknod b b 7 5
  equal "fifo" "$(stat -c %F p)"
  equal "character special file 1 3" "$(stat -c '%F %t %T' c)"
  equal "block special file 7 5" "$(stat -c '%F %t %T' "$M2/$HERE/special/b")"
  (echo through >p) & equal through "$(cat p)"
  echo x >c
  python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("s")'
  equal socket "$(stat -c %F s)"
}

attributes_are_set() {
  cd "$M/$HERE"; mkdir attr; cd attr
  echo x >f; chmod 4751 f; equal 4751 "$(stat -c %a f)"
  chown 1234:5678 f; equal 1234:5678 "$(stat -c %u:%g f)"
  touch -d '2001-02-03 04:05:06.123456789' f; equal 2001-02-03 "$(date -d @"$(stat -c %Y f)" +%F)"
  equal 123456789 "$(date -d "$(stat -c %y "$M2/$HERE/attr/f")" +%N)"
  truncate -s 12345 f; equal 12345 "$(stat -c %s "$M2/$HERE/attr/f")"
  mkdir -m 2775 d; equal 2775 "$(stat -c %a d)"
  chown 0:5678 d; chmod g+s d; touch d/inherits; equal 5678 "$(stat -c %g d/inherits)"
}

names_long_and_strange() {
  cd "$M/$HERE"; mkdir names; cd names
  local long; long=$(printf 'n%.0s' {1..255}); echo x >"$long"; [ -e "$long" ]
  refused touch "${long}n"
  local name
  for name in 'with space' 'quote"' 'ünïcödé-日本語' $'new\nline' '\back' '*' '-dash' '...'; do
    echo "$name" >"./$name"
    equal "$name" "$(cat "$M2/$HERE/names/$name")"
  done
  equal 9 "$(find . -type f -printf x | wc -c)"
}

exclusive_create_and_unlinked_open() {
  cd "$M/$HERE"; mkdir excl; cd excl
  (set -o noclobber; echo first >f)
  refused bash -c 'set -o noclobber; echo second >f'
  equal first "$(cat f)"
  exec 5<>f; rm f; echo still >&5; equal still "$(head -n1 /dev/fd/5)"; exec 5>&-
  # Linux removes the renamed file in the background.
  await is_empty
}
is_empty() { equal "" "$(ls -A)"; }

sparse_files() {
  cd "$M/$HERE"; mkdir sparse; cd sparse
  truncate -s 8M hole; printf data | dd of=hole bs=1 seek=4194304 conv=notrunc status=none
  equal 8388608 "$(stat -c %s hole)"
  [ -n "${HOLES_ARE_DATA:-}" ] || [ "$(du -k hole | cut -f1)" -lt 1024 ]
  { head -c 4194304 /dev/zero; printf data; head -c 4194300 /dev/zero; } | cmp - "$M2/$HERE/sparse/hole"
}

# 24 MiB in requests of 1 MiB, written by one mount and read by the other, aligned and unaligned.
large_reads_and_writes() {
  cd "$M/$HERE"; mkdir large; cd large
  grep -E " $M .*rsize=$IOSIZE,wsize=$IOSIZE," /proc/mounts
  dd if=/run/out/random of=f bs=1M conv=fsync status=none
  cmp /run/out/random "$M2/$HERE/large/f"
  dd if=/run/out/random of=odd bs=1000003 conv=fsync status=none
  cmp /run/out/random "$M2/$HERE/large/odd"
  # Overwrite a range that begins and ends within a page, then read it back through the other mount.
  dd if=/run/out/random of=odd bs=777 seek=1234 skip=99 count=3000 conv=notrunc,fsync status=none
  dd if=/run/out/random bs=777 skip=99 count=3000 status=none | cmp - <(dd if="$M2/$HERE/large/odd" bs=777 skip=1234 count=3000 status=none)
  dd if="$M2/$HERE/large/f" bs=1M iflag=direct status=none | cmp - /run/out/random
  dd if=/run/out/random of=direct bs=1M oflag=direct status=none
  cmp /run/out/random "$M2/$HERE/large/direct"
}

beyond_four_gib() {
  cd "$M/$HERE"; mkdir far; cd far
  local mib
  for mib in 4095 4096 5000; do
    dd if=/run/out/random of=f bs=1M seek=$mib skip=$((mib % 8)) count=2 conv=notrunc,fsync status=none
  done
  equal $((5002 * 1048576)) "$(stat -c %s "$M2/$HERE/far/f")"
  dd if="$M2/$HERE/far/f" bs=1M skip=5000 count=2 status=none | cmp - <(dd if=/run/out/random bs=1M skip=0 count=2 status=none)
  dd if="$M2/$HERE/far/f" bs=1M skip=4095 count=1 status=none | cmp - <(dd if=/run/out/random bs=1M skip=7 count=1 status=none)
  dd if="$M2/$HERE/far/f" bs=1M skip=4096 count=2 status=none | cmp - <(dd if=/run/out/random bs=1M skip=0 count=2 status=none)
}

appends_from_two_mounts() {
  cd /
  mkdir "$M/$HERE/append"
  local i want=
  for i in {1..40}; do
    echo "line $i of the first" >>"$M/$HERE/append/f"
    echo "line $i of the second" >>"$M2/$HERE/append/f"
    want+="line $i of the first"$'\n'"line $i of the second"$'\n'
  done
  equal "${want%$'\n'}" "$(cat "$M/$HERE/append/f")"
}

df_tells_the_truth() {
  local total; total=$(df -B1 --output=size "$M" | tail -n1 | tr -d ' ')
  # The totals of some file systems change a little during use.
  local want=${EXPORT_BYTES:-$total}
  [ $(((total > want ? total - want : want - total) * 100)) -lt "$want" ]
  [ "$total" -gt 0 ]
  [ "$(df --output=itotal "$M" | tail -n1)" -gt 0 ]
}

# The server acts with the caller's identity.
callers_identity() {
  cd "$M/$HERE"; mkdir -m 1777 users; cd users
  echo private >root; chmod 600 root
  as 1234 sh -c 'echo mine >u1234 && chmod 640 u1234'
  equal 1234:1234 "$(stat -c %u:%g u1234)"
  refused as 1234 cat root
  refused as 1234 rm -f root
  refused as 4321 cat u1234
  mkdir -m 750 group; chgrp 777 group; echo g >group/f; chmod 640 group/f; chgrp 777 group/f
  refused as 1234 cat group/f
  equal g "$(setpriv --reuid 1234 --regid 1234 --groups 777 cat group/f)"
}

as() { local id=$1; shift; setpriv --reuid "$id" --regid "$id" --clear-groups "$@"; }

# Runs every check on one mount. $1 names the transport in the results. BRIEF omits the directory of many names, if
# another mount of the same kind tests it.
content() {
  local t=$1 c
  mkdir -p "$M/$HERE"
  for c in given_tree_reads_back source_tree_unpacks unpacked_tree_reads_back listing_is_complete files_rename_and_unlink \
    hard_and_symbolic_links special_files attributes_are_set names_long_and_strange exclusive_create_and_unlinked_open \
    sparse_files large_reads_and_writes beyond_four_gib appends_from_two_mounts df_tells_the_truth callers_identity; do
    check "$t: ${c//_/ }" "$c"
  done
}

# part DIRECTORY NAME: makes /run/NAME.tar and /run/NAME, which can replace TREE and FILES by this part of the tree.
part() {
  mkdir /run/unpacked; tar xf /run/out/tree.tar -C /run/unpacked "$1"
  tar cf "/run/$2.tar" -C /run/unpacked "$1"; grep -F "  $1/" /run/out/manifest >"/run/$2"
  rm -r /run/unpacked
}

# brief ARGUMENTS: `over` with few files, if another mount of the same kind tests many.
part asm-generic/bitops few
brief() { BRIEF=1 TREE=/run/few.tar FILES=/run/few over "$@"; }

# mount_twice NAME OPTIONS: $M and $M2, of version 3 unless OPTIONS say otherwise, which share no cache (and see each other's writes at once)
mount_twice() {
  M=/run/mnt/$1 M2=/run/mnt/$1-again HERE=by-$1
  mkdir -p "$M" "$M2"
  local options="nosharecache,rsize=$IOSIZE,wsize=$IOSIZE,$2"
  case $2 in *vers=*) ;; *) options="vers=3,nolock,$options" ;; esac
  mount -t nfs -o "$options" "$SERVER:$EXPORT" "$M"
  mount -t nfs -o "$options,actimeo=0" "$SERVER:$EXPORT" "$M2"
  # The options that are in effect can differ from those that were requested.
  local proto=${2#*proto=}
  awk -v m="$M" '$2 == m { print $4 }' /proc/mounts | tr , '\n' | grep -x "proto=${proto%%,*}"
}

# over NAME OPTIONS [CHECKS]: every check on $EXPORT over one transport, and CHECKS if given, with the results in a
# separate file.
over() {
  local t=$1 options=$2
  RESULTS=/run/out/results.$t
  M=/run/mnt/$t M2=/run/mnt/$t-again HERE=by-$t
  check "$t: mounts" mount_twice "$t" "$options"; passed || return
  content "$t"
  ${3:-:} "$t"
  check "$t: unmounts" umount "$M" "$M2"
}
