"""Turns compare.sh's results into a table: the median of the rounds, and our rates over theirs."""
import json
import statistics
import sys

THEIRS = "libnfs on Ganesha"
OURS = ["tcp, tmpfs", "rdma, tmpfs", "tcp, memory", "rdma, memory"]

rows = {}
for line in open(sys.argv[1]):
    name, theirs, *ours = (field if i == 0 else json.loads(field) for i, field in enumerate(line.rstrip("\n").split("\t")))
    row = rows.setdefault(name, {column: [] for column in [THEIRS, *OURS]})
    cpu = theirs["cpu_s_per_gb"] or theirs["cpu_us_per_op"]
    row[THEIRS].append((theirs["ops_per_s"], theirs["gb_per_s"], cpu))
    for backend, report in zip(["tmpfs", "memory"], ours):
        for result in report["results"]:
            costs = [result["client_cpu"], result["server_cpu"]]
            moves = result.get("gb_per_s") is not None
            cpu = sum(cost["seconds_per_gb" if moves else "us_per_operation"]["median"] for cost in costs)
            rate = result["gb_per_s"]["median"] if moves else 0
            row[f"{result['series']}, {backend}"].append((result["iops"]["median"], rate, cpu))


def median(samples):
    return [statistics.median(column) for column in zip(*samples)]


def cell(sample, bulk, moves):
    rate, gigabytes, cpu = sample
    shown = f"{gigabytes:.2f} GB/s" if bulk else f"{rate:,.0f}/s"
    return f"{shown}, {cpu:.2f} {'s/GB' if moves else 'µs'}"


titles = ["", THEIRS, *(f"Slipway {column}" for column in OURS), "tcp over libnfs", "its CPU", "rdma over tcp"]
print("| " + " | ".join(titles) + " |")
print("|---" * len(titles) + "|")
for name, row in rows.items():
    libnfs, *ours = (median(samples) for samples in row.values())
    moves = libnfs[1] > 0
    bulk = "Ki" in name and not name.startswith("random") or "Mi" in name
    cells = [cell(sample, bulk, moves) for sample in (libnfs, *ours)]
    tcp, _, tcp_memory, rdma_memory = ours
    ratios = [f"**{tcp[0] / libnfs[0]:.2f}**", f"{tcp[2] / libnfs[2]:.2f}", f"{rdma_memory[0] / tcp_memory[0]:.2f}"]
    print(f"| {name} | " + " | ".join(cells + ratios) + " |")
print()
print("CPU is client and server together. 'tcp over libnfs' and 'its CPU' compare the same tmpfs, ours over theirs;")
print("'rdma over tcp' compares our transports on memory.")
