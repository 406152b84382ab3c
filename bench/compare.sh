#!/usr/bin/env bash
# compare.sh SLIPWAY [SECONDS]: compares our client on our server with libnfs's client on NFS-Ganesha, in one run.
#
# Both servers export the same tmpfs; ours also exports its memory back end. Both clients use one connection and one
# thread, under the same congestion control (CONGESTION, default cubic: bbr paces even on loopback). With several, as in
# "cubic,bbr", everything is measured under each in turn, with a table for each. Rounds (ROUNDS, default 3) alternate
# between the two sides, and the tables have their median. Everything runs in a separate network namespace, so no other
# program interferes. Then our client runs on both servers with version 4.1, and on ours with 3. Prints tables in
# Markdown; needs root, libnfs-dev, nfs-ganesha-vfs, rpcbind, gcc and python3. `cargo xtask compare` installs these,
# makes a release build of Slipway and runs this script.
set -euo pipefail

slipway=$(realpath "${1:?usage: compare.sh SLIPWAY [SECONDS]}")
seconds=${2:-5}
IFS=, read -ra congestions <<< "${CONGESTION:-cubic}"
rounds=${ROUNDS:-3}

[ "$(id -u)" = 0 ] || { echo "compare.sh: must be root, for a network namespace and NFS-Ganesha" >&2; exit 1; }
if [ -z "${IN_NAMESPACE:-}" ]; then
  # A namespace can select one of the allowed ones; the machine's own setting stays.
  for congestion in "${congestions[@]}"; do
    allowed=$(sysctl -n net.ipv4.tcp_allowed_congestion_control)
    case " $allowed " in
      *" $congestion "*) ;;
      *) sysctl -qw net.ipv4.tcp_allowed_congestion_control="$allowed $congestion" ;;
    esac
  done
  IN_NAMESPACE=1 exec unshare --net --mount "${BASH_SOURCE[0]}" "$slipway" "$seconds"
fi

here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
work=$(mktemp -d)
children=()
cleanup() {
  for child in "${children[@]}"; do kill "$child" 2>/dev/null || true; done
  wait || true
  umount "$work/export" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
ip link set lo up
cc -O2 -o "$work/nfsbench" "$here/libnfs/nfsbench.c" -lnfs

mkdir "$work/export" "$work/recovery"
mount -t tmpfs -o size=2g export "$work/export"
cat > "$work/ganesha.conf" <<C
NFS_CORE_PARAM { NFS_Port = 12049; MNT_Port = 12050; Protocols = 3,4; Enable_NLM = false; Enable_RQUOTA = false; }
NFSV4 { Graceless = true; RecoveryRoot = $work/recovery; }
EXPORT { Export_Id = 1; Path = $work/export; Pseudo = /bench; Protocols = 3,4; Transports = TCP; Access_Type = RW;
         Squash = None; SecType = sys; FSAL { Name = VFS; } }
LOG { Default_Log_Level = CRIT; }
C
rpcbind -f >/dev/null 2>&1 & children+=($!)
sleep 0.5
start_ganesha() {
  ganesha.nfsd -F -f "$work/ganesha.conf" -L "$work/ganesha.log" -p "$work/ganesha.pid" >/dev/null 2>&1 & ganesha=$!
  children+=("$ganesha")
  for _ in {1..100}; do
    if ss -ltn | grep -q :12049; then return; fi
    sleep 0.1
  done
  echo "compare.sh: NFS-Ganesha does not listen" >&2
  exit 1
}
stop_ganesha() {
  kill "$ganesha"
  wait "$ganesha" || true
}

theirs() { "$work/nfsbench" 127.0.0.1 12049 12050 "$work/export" "$ganesha" "$seconds" "$@"; }
ours() { "$slipway" bench "${@:2}" --backend "$1" --transport tcp,rdma --seconds "$seconds" --rounds 1 --json; }
theirs4() { "$slipway" bench "$@" --url "nfs://127.0.0.1:12049/bench?vers=4.1" --seconds "$seconds" --rounds 1 --json; }
ours4() {
  "$slipway" bench "$@" --backend "dir:$work/export" --transport tcp,shm --axis vers=3,4.1 --seconds "$seconds" --rounds 1 --json
}

# name, nfsbench's test, block and in flight, `slipway bench`'s words
cat > "$work/plan" <<'P'
READ 128 KiB × 8|read 131072 8|read --block 128K --in-flight 8
WRITE 128 KiB × 8|write 131072 8|write --block 128K --in-flight 8
READ 1 MiB × 8|read 1048576 8|read --block 1M --in-flight 8
random READ 4 KiB × 16|randread 4096 16|read --random --block 4K --in-flight 16
GETATTR × 16|getattr 0 16|getattr --in-flight 16
CREATE+REMOVE × 16|create 0 16|create --in-flight 16
P
# version 4.1: our client generates the load on both servers
cat > "$work/plan4" <<'P'
READ 128 KiB × 8|read --block 128K --in-flight 8
WRITE 128 KiB × 8|write --block 128K --in-flight 8
random READ 4 KiB × 16|read --random --block 4K --in-flight 16
GETATTR × 16|getattr --in-flight 16
small files, one after the other|small --in-flight 1
small files × 16|small --in-flight 16
P
# Connections use the namespace's setting at the time they are made, and accepted ones that of the listening socket. So
# Ganesha is restarted for each.
measure() {
  sysctl -qw net.ipv4.tcp_congestion_control="$1"
  start_ganesha
  for round in $(seq "$rounds"); do
    while IFS='|' read -r name their_words our_words; do
      echo "$1, round $round: $name" >&2
      # shellcheck disable=SC2086 # words
      printf '%s\t%s\t%s\t%s\n' "$name" "$(theirs $their_words </dev/null)" "$(ours "dir:$work/export" $our_words </dev/null)" \
        "$(ours memory $our_words </dev/null)" >> "$work/results.$1"
    done < "$work/plan"
    while IFS='|' read -r name words; do
      echo "$1, round $round: version 4.1, $name" >&2
      # shellcheck disable=SC2086 # words
      printf '%s\t%s\t%s\n' "$name" "$(theirs4 $words </dev/null)" "$(ours4 $words </dev/null)" >> "$work/results4.$1"
    done < "$work/plan4"
  done
  stop_ganesha
}
for congestion in "${congestions[@]}"; do measure "$congestion"; done
for congestion in "${congestions[@]}"; do
  echo "Linux $(uname -r), $(nproc) cores, congestion control $congestion, $seconds s × $rounds rounds;" \
    "libnfs $(dpkg-query -W -f '${Version}' libnfs13), NFS-Ganesha $(dpkg-query -W -f '${Version}' nfs-ganesha)"
  echo
  python3 "$here/table.py" version3 "$work/results.$congestion"
  echo
  python3 "$here/table.py" version4 "$work/results4.$congestion"
  echo
done
