#!/usr/bin/env python3
"""Reads a file over RPC with TLS with OpenSSL and NFSv3: reader.py PORT CA NAME EXPORT FILE COPY

NAME is in the server's certificate. FILE is read by calls of 256 KiB, compared with COPY, and "read" is printed with the cipher. Then
there are more calls than sockets have room for replies, which are not read before there is a line on the standard input. Meanwhile the
server must be told to end. It must end the connection with an alert, after whole replies: "ended" is printed with their number.
OPENSSL_CONF selects the cipher.
"""
import ssl
import struct
import sys

from peer import MOUNT, NFS, call, context, exactly, opaque, probed, reply, success, sys_credential

BLOCK = 256 << 10
CALLS = 64


def results(stream, xid, program, procedure, arguments):
    """Returns the results of a call that begin with a status of 0, without that status."""
    stream.sendall(call(xid, program, procedure, sys_credential(), arguments))
    body = success(reply(stream, xid))
    assert body[:4] == bytes(4), f"procedure {procedure}: status {struct.unpack('>I', body[:4])}"
    return body[4:]


def counted(data):
    (size,) = struct.unpack(">I", data[:4])
    return data[4 : 4 + size]


def data_of(read):
    """Returns the data of the results of READ, behind the attributes of the file, the count, and the end of the file."""
    assert read[:4] == struct.pack(">I", 1), "attributes"
    return counted(read[4 + 84 + 8 :])


def read_replies(stream, expected):
    """Reads whole replies until the server ends the connection. Returns their number."""
    replies = 0
    while mark := stream.recv(1):
        (mark,) = struct.unpack(">I", mark + exactly(stream, 3))
        message = exactly(stream, mark & 0x7FFFFFFF)
        at = (struct.unpack(">I", message[:4])[0] - CALLS) * BLOCK % len(expected)
        assert data_of(success(message[8:])[4:]) == expected[at : at + BLOCK], f"other data at {at}"
        replies += 1
    return replies


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
            data = data_of(read)
            assert data and data == expected[at : at + len(data)], f"other data at {at}"
            at += len(data)
        for number in range(CALLS):
            arguments = opaque(handle) + struct.pack(">QI", number * BLOCK % len(expected), BLOCK)
            stream.sendall(call(CALLS + number, NFS, 6, sys_credential(), arguments))
        print(f"read {stream.cipher()[0]}", flush=True)
        sys.stdin.readline()
        print(f"ended after {read_replies(stream, expected)} replies", flush=True)


if __name__ == "__main__":
    main()
