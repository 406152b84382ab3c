#!/usr/bin/env bash
# security.sh SLIPWAY REALM SECONDS: compares our server with NFS-Ganesha, both with Kerberos, in one run.
#
# Both servers export the same tmpfs. Our client uses them by version 4.1 over one connection of TCP, with AUTH_SYS and with
# each flavour of Kerberos. One call is in flight, because NFS-Ganesha 4.3 does not answer all calls of a context if several are.
# Rounds (ROUNDS, default 3) alternate between the servers, and the table has their median. REALM is a directory with the
# files of a realm of MIT Kerberos: krb5.conf, kdc.conf, server.keytab with a key of nfs/localhost, and the database of the
# user alice, whose ticket KRB5CCNAME names. Everything runs in a separate network namespace, so a key distribution centre is
# started there, too. Prints a table in Markdown; needs root, nfs-ganesha-vfs, rpcbind, krb5-kdc and python3.
# `cargo xtask compare --security` runs this script.
set -euo pipefail

slipway=$(realpath "${1:?usage: security.sh SLIPWAY REALM SECONDS}")
realm=$(realpath "$2")
seconds=$3
rounds=${ROUNDS:-3}

[ "$(id -u)" = 0 ] || { echo "security.sh: must be root, for a network namespace and NFS-Ganesha" >&2; exit 1; }
[ -n "${IN_NAMESPACE:-}" ] || IN_NAMESPACE=1 exec unshare --net --mount "${BASH_SOURCE[0]}" "$slipway" "$realm" "$seconds"

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
export KRB5_CONFIG=$realm/krb5.conf KRB5_KDC_PROFILE=$realm/kdc.conf

mkdir "$work/export" "$work/recovery"
mount -t tmpfs -o size=2g export "$work/export"
# The user alice is nobody on this machine.
chmod 777 "$work/export"
cat > "$work/ganesha.conf" <<C
NFS_CORE_PARAM { NFS_Port = 12049; MNT_Port = 12050; Protocols = 4; Enable_NLM = false; Enable_RQUOTA = false; }
NFSV4 { Graceless = true; RecoveryRoot = $work/recovery; }
NFS_KRB5 { PrincipalName = nfs; KeytabPath = $realm/server.keytab; CCacheDir = $work/recovery; Active_krb5 = true; }
EXPORT { Export_Id = 1; Path = $work/export; Pseudo = /bench; Protocols = 4; Transports = TCP; Access_Type = RW;
         Squash = None; SecType = sys, krb5, krb5i, krb5p; FSAL { Name = VFS; } }
LOG { Default_Log_Level = CRIT; }
C
krb5kdc -n > "$work/kdc.log" 2>&1 & children+=($!)
rpcbind -f > /dev/null 2>&1 & children+=($!)
sleep 0.5
ganesha.nfsd -F -f "$work/ganesha.conf" -L "$work/ganesha.log" -p "$work/ganesha.pid" > /dev/null 2>&1 & children+=($!)
for _ in {1..100}; do
  ss -ltn | grep -q :12049 && break
  sleep 0.1
done
ss -ltn | grep -q :12049 || { echo "security.sh: NFS-Ganesha does not listen" >&2; exit 1; }

cat > "$work/slipway.toml" <<C
[server]
state_dir = "$work/state"
rpcbind = "off"
workers = 1
[kerberos]
keytab = "$realm/server.keytab"
[[listen]]
transport = "tcp"
address = "127.0.0.1:12051"
[[export]]
name = "/bench"
path = "$work/export"
squash = "none"
sec = ["sys", "krb5", "krb5i", "krb5p"]
C
"$slipway" serve --config "$work/slipway.toml" --ready-file "$work/ready" >&2 & children+=($!)
for _ in {1..100}; do
  [ -e "$work/ready" ] && break
  sleep 0.1
done

# at PORT FLAVOR WORDS…
at() { "$slipway" bench "${@:3}" --seconds "$seconds" --rounds 1 --json --url "nfs://localhost:$1/bench?vers=4.1&sec=$2"; }

for round in $(seq "$rounds"); do
  while IFS='|' read -r name words; do
    for flavor in sys krb5 krb5i krb5p; do
      echo "round $round: $name, $flavor" >&2
      # shellcheck disable=SC2086 # words
      printf '%s, %s\t%s\t%s\n' "$name" "$flavor" "$(at 12049 $flavor $words </dev/null)" "$(at 12051 $flavor $words </dev/null)" >> "$work/results"
    done
  done <<'P'
READ 128 KiB × 1|read --block 128K --in-flight 1
WRITE 128 KiB × 1|write --block 128K --in-flight 1
GETATTR × 1|getattr --in-flight 1
P
done
echo "NFS-Ganesha $(dpkg-query -W -f '${Version}' nfs-ganesha), version 4.1 over TCP ($(sysctl -n net.ipv4.tcp_congestion_control)), tmpfs, $seconds s × $rounds rounds. CPU is that of the client."
echo
python3 "$here/table.py" ganesha "$work/results"
