"""edges.py FILE WRITER WRITERS [MODE]: writes to a file on a mount, and compares what is read with a model in memory.

Several programs run it at the same time for one file, each as another WRITER from 0 on: a byte range belongs to one of them, and they end
with the same contents. MODE is `direct` (O_DIRECT), `map` (memory maps) or `cached`. Without it, prints the contents as they must be.
"""

import mmap
import os
import sys

UNIT = 65536  # the stripe unit of the suite
PAGE = 4096
SIZE = 24 * UNIT
# Offsets and lengths around the edges of stripe units, with holes between them, in pages.
RANGES = [(at - before, before + after) for at, before, after in
          ((unit * 16, 1 + unit % 3, 1 + unit % 5) for unit in range(1, 23))]
RANGES.append((SIZE // PAGE - 1, 1))


def contents(number, length):
    return b"".join(b"%08d%08d" % (number, page) * (PAGE // 16) for page in range(length // PAGE))


def buffer(length):
    # O_DIRECT needs aligned memory.
    return mmap.mmap(-1, length)


def write(fd, mode, number, offset, length):
    data = contents(number, length)
    if mode == "map":
        with mmap.mmap(fd, SIZE) as memory:
            memory[offset:offset + length] = data
            memory.flush(offset, length)
    elif mode == "direct":
        memory = buffer(length)
        memory[:] = data
        assert os.pwrite(fd, memory, offset) == length
    else:
        assert os.pwrite(fd, data, offset) == length


def model():
    expected = bytearray(SIZE)
    for number, (page, pages) in enumerate(RANGES):
        expected[page * PAGE:(page + pages) * PAGE] = contents(number, pages * PAGE)
    return bytes(expected)


def read(fd, mode):
    """Reads the file in parts that cross holes and the edges of stripe units."""
    found, at = bytearray(), 0
    while at < SIZE:
        length = min(21 * PAGE, SIZE - at)
        if mode == "map":
            with mmap.mmap(fd, SIZE, prot=mmap.PROT_READ) as memory:
                found += memory[at:at + length]
        else:
            memory = buffer(length)
            count = os.preadv(fd, [memory], at)
            assert count == length, f"{count} bytes at {at}, not {length}"
            found += memory[:]
        at += length
    return bytes(found)


def main(path, writer, writers, mode):
    fd = os.open(path, os.O_RDWR | (os.O_DIRECT if mode == "direct" else 0))
    own = [(number, *of) for number, of in enumerate(RANGES) if number % writers == writer]
    for number, page, pages in own:
        write(fd, mode, number, page * PAGE, pages * PAGE)
    os.fsync(fd)
    if writers == 1:
        found, expected = read(fd, mode), model()
        wrong = [page for page in range(SIZE // PAGE) if found[page * PAGE:][:PAGE] != expected[page * PAGE:][:PAGE]]
        assert not wrong, f"pages {wrong} differ"
    os.close(fd)


if len(sys.argv) == 1:
    sys.stdout.buffer.write(model())
else:
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
