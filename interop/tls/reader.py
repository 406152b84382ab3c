#!/usr/bin/env python3
"""Reads a file over RPC with TLS with OpenSSL and NFSv3: reader.py PORT CA NAME EXPORT FILE COPY

NAME is in the server's certificate. FILE is read by calls of 256 KiB, compared with COPY, and "read" is printed with the cipher. Then
the server must end the connection with an alert: "ended" is printed. OPENSSL_CONF selects the cipher.
"""
import ssl
import struct
import sys

from peer import MOUNT, NFS, call, context, opaque, probed, reply, success, sys_credential

BLOCK = 256 << 10


def results(stream, xid, program, procedure, arguments):
    """Returns the results of a call that begin with a status of 0, without that status."""
    stream.sendall(call(xid, program, procedure, sys_credential(), arguments))
    body = success(reply(stream, xid))
    assert body[:4] == bytes(4), f"procedure {procedure}: status {struct.unpack('>I', body[:4])}"
    return body[4:]


def counted(data):
    (size,) = struct.unpack(">I", data[:4])
    return data[4 : 4 + size]


def main():
    port, ca, name, export, file = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4].encode(), sys.argv[5].encode()
    with open(sys.argv[6], "rb") as copy:
        expected = copy.read()
    # Without this argument, Python reports the end of the stream without an alert like an alert.
    with context(ca).wrap_socket(probed(port), server_hostname=name, suppress_ragged_eofs=False) as stream:
        root = counted(results(stream, 2, MOUNT, 1, opaque(export)))
        handle = counted(results(stream, 3, NFS, 3, opaque(root) + opaque(file)))
        at = 0
        while at < len(expected):
            read = results(stream, 4, NFS, 6, opaque(handle) + struct.pack(">QI", at, BLOCK))
            # The attributes of the file, the count, the end of the file, and the data.
            assert read[:4] == struct.pack(">I", 1), "attributes"
            data = counted(read[4 + 84 + 8 :])
            assert data and data == expected[at : at + len(data)], f"other data at {at}"
            at += len(data)
        print(f"read {stream.cipher()[0]}", flush=True)
        assert stream.recv(1) == b"", "data after the last reply"
        print("ended", flush=True)


if __name__ == "__main__":
    main()
