# Runs in the guest: RPC with TLS with Linux at either end. The kernel's client and server hand their handshakes to tlshd. `slipway`
# runs in a network namespace. /run/out/env sets SLIPWAY, TLSHD, READER, and the cells VERSION:PROTECTION.
. /run/out/guest/lib.sh
. /run/out/env
near SLIPWAY
: >"$RESULTS"
SERVER=server.slipway.test
VENUS=venus.slipway.test
EXPORT=/run/export
KEYS=/run/keys
head -c 3M /run/out/random >/run/sample

network() {
  hostname $VENUS
  ip netns add server
  ip link add venus0 type veth peer name venus1 netns server
  ip addr add 10.9.1.2/24 dev venus0; ip link set venus0 up
  ip -n server addr add 10.9.1.1/24 dev venus1; ip -n server link set venus1 up; ip -n server link set lo up
  printf '127.0.0.1 localhost\n10.9.1.1 %s\n10.9.1.2 %s\n' $SERVER $VENUS >/etc/hosts
}

# Runs a command in the server's network. `ip netns exec` would copy the mounts for it, too. A server that holds a mount of itself
# does not end when it is killed.
IN_SERVER="nsenter --net=/run/netns/server"

# issuer NAME; certificate ISSUER NAME HOST
issuer() {
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -keyout $KEYS/$1.key -out $KEYS/$1.pem -subj "/CN=$1"
}
certificate() {
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $KEYS/$2.key -out /run/request -subj "/CN=$3"
  printf 'subjectAltName = DNS:%s' $3 >/run/names
  openssl x509 -req -in /run/request -CA $KEYS/$1.pem -CAkey $KEYS/$1.key -CAcreateserial -days 30 -extfile /run/names -out $KEYS/$2.pem
}
keys() {
  mkdir -p $KEYS
  issuer issuer; issuer stranger
  certificate issuer server $SERVER
  certificate issuer venus $VENUS
  certificate issuer other other.slipway.test
  certificate stranger strange $SERVER
  chmod 600 $KEYS/*.key
}

# serve CERTIFICATE [KTLS]: starts the server, or starts it again.
serve() {
  mkdir -p $EXPORT/tls $EXPORT/mtls $EXPORT/any /run/state
  cat >/run/slipway.toml <<T
[server]
state_dir = "/run/state"
rpcbind = "builtin"
lease_s = 15
grace_s = 15
[tls]
certificate = "$KEYS/$1.pem"
key = "$KEYS/$1.key"
client_ca = "$KEYS/issuer.pem"
ktls = "${2:-auto}"
[[listen]]
transport = "tcp"
address = "0.0.0.0:2049"
[[export]]
path = "$EXPORT/any"
[[export]]
path = "$EXPORT/tls"
xprtsec = ["tls"]
squash = "none"
[[export]]
path = "$EXPORT/mtls"
xprtsec = ["mtls"]
squash = "none"
T
  rm -f /run/ready
  $IN_SERVER "$SLIPWAY" -vv serve --config /run/slipway.toml --ready-file /run/ready >>/run/out/serve.log 2>&1 &
  echo $! >/run/server.pid
  await ready_or_dead
  test -e /run/ready
}
ready_or_dead() { [ -e /run/ready ] || ! kill -0 "$(cat /run/server.pid)"; }
stop() { kill -9 "$(cat /run/server.pid)"; await has_ended "$(cat /run/server.pid)"; }
has_ended() { ! kill -0 "$1"; }

# tlshd serves the kernel's client and server with the host's own certificate.
tlshd() {
  cat >/run/tlshd.conf <<T
[debug]
loglevel=1
[authenticate.client]
x509.truststore=$KEYS/issuer.pem
x509.certificate=$KEYS/venus.pem
x509.private_key=$KEYS/venus.key
[authenticate.server]
x509.truststore=$KEYS/issuer.pem
x509.certificate=$KEYS/venus.pem
x509.private_key=$KEYS/venus.key
T
  "$TLSHD" --stderr --config /run/tlshd.conf >/run/out/logs/tlshd.log 2>&1 &
  await grep -q Built /run/out/logs/tlshd.log
}

# options VERSION PROTECTION
options() {
  local more=
  [ "$1" != 3 ] || more=,nolock,mountproto=tcp
  echo "vers=$1,xprtsec=$2,proto=tcp$more"
}

# kernel_client VERSION PROTECTION: Linux writes and reads. It goes on after the server was killed.
kernel_client() {
  local at=/run/mnt/$1.$2 file=$1.$2
  mkdir -p $at
  timeout 300 mount -t nfs -o "$(options $1 $2)" $SERVER:$EXPORT/$2 $at
  grep -E " $at .*xprtsec=$2" /proc/mounts
  cp /run/sample $at/$file; sync $at/$file
  cmp /run/sample $EXPORT/$2/$file
  exec 5<>$at/$file
  stop; serve server 5>&-
  head -c 100000 /run/sample >&5; sync $at/$file
  exec 5>&-
  umount $at
  timeout 300 mount -t nfs -o "$(options $1 $2)" $SERVER:$EXPORT/$2 $at
  cmp /run/sample $at/$file
  rm $at/$file; refused test -e $EXPORT/$2/$file
  umount $at
}

# Each of these must not be mounted: in clear what demands TLS, and without a certificate what demands one.
clear_is_refused() {
  local version
  mkdir -p /run/mnt/refused
  for version in 3 4.0 4.2; do
    refused timeout 100 mount -t nfs -o "$(options $version none)" $SERVER:$EXPORT/tls /run/mnt/refused
    refused timeout 100 mount -t nfs -o "$(options $version tls)" $SERVER:$EXPORT/mtls /run/mnt/refused
  done
  mount -t nfs -o "$(options 3 none)" $SERVER:$EXPORT/any /run/mnt/refused; umount /run/mnt/refused
}

# Linux's client refuses a certificate of another name and of another issuer. It can try again until the mount is interrupted.
wrong_certificates() {
  mkdir -p /run/mnt/wrong
  wrong_certificate other 'Certificate owner unexpected'
  wrong_certificate strange 'Certificate signer not found'
  stop; serve server
}
wrong_certificate() {
  local mounting
  stop; serve $1
  mount.nfs $SERVER:$EXPORT/tls /run/mnt/wrong -o "$(options 4.2 tls)" &
  mounting=$!
  await grep -q "$2" /run/out/logs/tlshd.log
  kill -9 $mounting || true
  refused wait $mounting
  refused grep /run/mnt/wrong /proc/mounts
}

# by_kernel SIDE: the number of connections of server or client (this namespace) whose records the kernel has encrypted.
by_kernel() {
  local in=
  [ $1 = client ] || in=$IN_SERVER
  $in awk '$1 == "TlsTxSw" {print $2}' /proc/net/tls_stat
}

# copy_both_ways MORE: our client writes a file and reads it. Its length is no multiple of a page.
copy_both_ways() {
  local url="nfs://$SERVER$EXPORT/tls/copy?vers=4.2&xprtsec=tls&tls_ca=$KEYS/issuer.pem$1"
  head -c 2999999 /run/sample >/run/odd
  rm -f /tmp/back $EXPORT/tls/copy
  timeout 300 "$SLIPWAY" cp /run/odd "$url"
  cmp /run/odd $EXPORT/tls/copy
  timeout 300 "$SLIPWAY" cp "$url" /tmp/back
  cmp /run/odd /tmp/back
}

# The kernel encrypts what each side sends, unless that side forbids it.
ktls() {
  local of_server of_client
  "$SLIPWAY" doctor | grep 'ok .*(kTLS)'
  of_server=$(by_kernel server) of_client=$(by_kernel client)
  copy_both_ways ""
  [ $(by_kernel server) -gt $of_server ]
  [ $(by_kernel client) -gt $of_client ]
  grep 'the kernel encrypts what connections of TLS send' /run/out/serve.log
  stop; serve server off
  of_server=$(by_kernel server) of_client=$(by_kernel client)
  copy_both_ways "&ktls=off"
  equal $of_server $(by_kernel server)
  equal $of_client $(by_kernel client)
  stop; serve server
}

accepts_nobody() { ! $IN_SERVER bash -c '</dev/tcp/127.0.0.1/2049'; }

# ktls_cipher CIPHER: OpenSSL reads what the kernel has encrypted with this cipher. When the server ends, more is queued than sockets
# have room for. All of it arrives, and then the alert.
ktls_cipher() {
  local reading before=$(by_kernel server)
  cp /run/sample $EXPORT/any/read
  printf 'openssl_conf = init\n[init]\nssl_conf = ssl\n[ssl]\nsystem_default = own\n[own]\nCiphersuites = %s\n' $1 >/run/openssl.cnf
  rm -f /run/go; mkfifo /run/go
  exec 6<>/run/go
  OPENSSL_CONF=/run/openssl.cnf $IN_SERVER python3 "$READER" 2049 $KEYS/issuer.pem $SERVER $EXPORT/any read /run/sample >/run/read.log <&6 &
  reading=$!
  await grep -q "^read $1" /run/read.log
  [ $(by_kernel server) -gt $before ]
  kill -TERM "$(cat /run/server.pid)"
  await accepts_nobody
  echo go >&6
  wait $reading
  grep -E 'ended after [1-9]' /run/read.log
  await has_ended "$(cat /run/server.pid)"
  serve server
}

check "network" network; passed || exit 1
check "keys" keys; passed || exit 1
check "slipway serve: starts" serve server; passed || exit 1
check "tlshd: starts" tlshd; passed || exit 1
# First, because Linux sends its calls by another mount of the same server if it can.
check "kernel client: what demands TLS is refused in clear" clear_is_refused
for cell in $CELLS; do
  IFS=: read -r version protection <<<"$cell"
  check "kernel client: version $version with $protection" kernel_client $version $protection
done
check "kernel client: wrong certificates" wrong_certificates
check "kTLS: records of both sides" ktls
for cipher in TLS_AES_256_GCM_SHA384 TLS_AES_128_GCM_SHA256 TLS_CHACHA20_POLY1305_SHA256; do
  check "kTLS: $cipher" ktls_cipher $cipher
done

# Linux's server, with our client in the namespace.
linux_server() {
  stop
  mkdir -p /run/knfsd; mount -t tmpfs -o size=1g export /run/knfsd; chmod 777 /run/knfsd
  siw
  knfsd /run/knfsd
}

# our_client VERSION PROTECTION
our_client() {
  local file=$1.$2 url more=
  [ "$2" != mtls ] || more="&tls_cert=$KEYS/server.pem&tls_key=$KEYS/server.key"
  # tlshd selects no application protocol.
  url="nfs://$VENUS/$file?vers=$1&xprtsec=$2&tls_alpn=optional&tls_ca=$KEYS/issuer.pem$more"
  $IN_SERVER timeout 300 "$SLIPWAY" cp /run/sample "$url"
  cmp /run/sample /run/knfsd/$file
  rm -f /tmp/back
  $IN_SERVER timeout 300 "$SLIPWAY" cp "$url" /tmp/back
  cmp /run/sample /tmp/back
  refused $IN_SERVER timeout 300 "$SLIPWAY" ls "${url/tls_alpn=optional/tls_alpn=required}"
  # The same server by another issuer's word.
  refused $IN_SERVER timeout 300 "$SLIPWAY" ls "${url/issuer.pem/stranger.pem}"
}

check "knfsd: starts" linux_server
if passed; then
  for cell in $CELLS; do
    IFS=: read -r version protection <<<"$cell"
    # rpc.mountd does not support TLS, and our client demands it of MOUNT, too.
    [ $version != 3 ] || continue
    check "knfsd: version $version with $protection" our_client $version $protection
  done
fi
check "kernel log is clean" kernel_log_is_clean "check lease failed on NFSv4 server $SERVER with error 13"
! grep -q ^fail "$RESULTS"
