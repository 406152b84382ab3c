#!/usr/bin/env python3
"""A client of RPC with TLS (RFC 9289) on OpenSSL, independent of Slipway's code: peer.py PORT CA EXPORT

Sends the probe, makes the TLS handshake, and mounts and reads an export over the session with NFSv3. Then it checks what a
server must refuse: another application protocol, TLS 1.2, and the probe inside of a session. Prints one line for each step, and
fails with a traceback.
"""
import socket
import ssl
import struct
import sys

AUTH_NONE, AUTH_SYS, AUTH_TLS = 0, 1, 7
NFS, MOUNT = (100003, 3), (100005, 3)


def opaque(data):
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


def call(xid, program, procedure, credential, arguments=b""):
    header = struct.pack(">6I", xid, 0, 2, *program, procedure)
    message = header + credential + struct.pack(">2I", AUTH_NONE, 0) + arguments
    return struct.pack(">I", 1 << 31 | len(message)) + message


def exactly(stream, size):
    data = b""
    while len(data) < size:
        more = stream.recv(size - len(data))
        if not more:
            raise EOFError("the server closed the connection")
        data += more
    return data


def reply(stream, xid):
    """Returns the reply after its XID, which is one fragment."""
    (mark,) = struct.unpack(">I", exactly(stream, 4))
    assert mark & 1 << 31, "fragments"
    message = exactly(stream, mark & 0x7FFFFFFF)
    assert struct.unpack(">2I", message[:8]) == (xid, 1), message[:8]
    return message[8:]


def flavor(number):
    return struct.pack(">2I", number, 0)


def sys_credential():
    body = struct.pack(">I", 0) + opaque(b"peer") + struct.pack(">3I", 0, 0, 0)
    return struct.pack(">I", AUTH_SYS) + opaque(body)


def probed(port):
    stream = socket.create_connection(("127.0.0.1", port), timeout=60)
    stream.sendall(call(1, NFS, 0, flavor(AUTH_TLS)))
    accepted = struct.pack(">2I", 0, AUTH_NONE) + opaque(b"STARTTLS") + struct.pack(">I", 0)
    assert reply(stream, 1) == accepted, "the answer to the probe"
    return stream


def context(ca):
    made = ssl.create_default_context(cafile=ca)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    return made


def success(body):
    """Returns the results of an accepted call."""
    assert struct.unpack(">4I", body[:16]) == (0, AUTH_NONE, 0, 0), body[:16]
    return body[16:]


def null_and_getattr(stream, export):
    stream.sendall(call(2, NFS, 0, flavor(AUTH_NONE)))
    assert success(reply(stream, 2)) == b""
    stream.sendall(call(3, MOUNT, 1, sys_credential(), opaque(export)))
    mounted = success(reply(stream, 3))
    status, size = struct.unpack(">2I", mounted[:8])
    assert status == 0, f"MNT: {status}"
    handle = mounted[8 : 8 + size]
    # Two calls in one record of TLS, and a call in two.
    getattr_ = call(4, NFS, 1, sys_credential(), opaque(handle))
    stream.sendall(getattr_ + call(5, NFS, 0, flavor(AUTH_NONE)))
    status, kind = struct.unpack(">2I", success(reply(stream, 4))[:8])
    assert (status, kind) == (0, 2), "the root must be a directory"
    success(reply(stream, 5))
    stream.sendall(getattr_[:10])
    stream.sendall(getattr_[10:])
    success(reply(stream, 4))


def refused(port, ctx, what):
    try:
        with ctx.wrap_socket(probed(port), server_hostname="localhost") as stream:
            stream.sendall(call(2, NFS, 0, flavor(AUTH_NONE)))
            reply(stream, 2)
    except (ssl.SSLError, EOFError, ConnectionError) as error:
        print(f"refused: {what}: {error}")
        return
    raise AssertionError(f"the server has accepted {what}")


def main():
    port, ca, export = int(sys.argv[1]), sys.argv[2], sys.argv[3].encode()
    for protocols in [[], ["sunrpc"], ["h2", "sunrpc"]]:
        ctx = context(ca)
        if protocols:
            ctx.set_alpn_protocols(protocols)
        with ctx.wrap_socket(probed(port), server_hostname="localhost") as stream:
            assert stream.version() == "TLSv1.3"
            assert stream.selected_alpn_protocol() == ("sunrpc" if protocols else None)
            null_and_getattr(stream, export)
            stream.sendall(call(6, NFS, 0, flavor(AUTH_TLS)))
            assert reply(stream, 6) == struct.pack(">3I", 1, 1, 1), "AUTH_BADCRED inside of a session"
            print(f"ok: {stream.cipher()[0]}, ALPN {protocols}")
    ctx = context(ca)
    ctx.set_alpn_protocols(["h2"])
    refused(port, ctx, "another application protocol")
    ctx = ssl.create_default_context(cafile=ca)
    ctx.maximum_version = ssl.TLSVersion.TLSv1_2
    refused(port, ctx, "TLS 1.2")
    for cipher_bytes in [b"\x16\x03\x01\x00\x05hello", call(2, NFS, 0, flavor(AUTH_NONE))]:
        stream = probed(port)
        stream.sendall(cipher_bytes)
        while True:
            try:
                if not stream.recv(4096):
                    break
            except ConnectionError:
                break
    print("ok: bytes that are no handshake close the connection")


if __name__ == "__main__":
    main()
