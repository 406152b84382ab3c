"""Turns compare.sh's results into tables: the median of the rounds, and our rates over theirs.

table.py version3 FILE | version4 FILE | knfsd FILE | mount FILE | kernel FILE | security FILE | ganesha FILE
"""
import json
import statistics
import sys


def rounds(path):
    """Name and reports of each line."""
    for line in open(path):
        name, *reports = line.rstrip("\n").split("\t")
        yield name, [json.loads(report) for report in reports]


def sample(result):
    """Operations and GB a second, and the CPU of both ends, as far as it is known, of a series of `slipway bench`."""
    costs = [cost for cost in [result["client_cpu"], result.get("server_cpu")] if cost]
    moves = result.get("gb_per_s") is not None
    cpu = sum(cost["seconds_per_gb" if moves else "us_per_operation"]["median"] for cost in costs)
    return result["iops"]["median"], result["gb_per_s"]["median"] if moves else 0, cpu


def median(samples):
    return [statistics.median(column) for column in zip(*samples)]


def cell(name, sample):
    rate, gigabytes, cpu = sample
    bulk = "Ki" in name and not name.startswith("random") or "Mi" in name
    shown = f"{gigabytes:.2f} GB/s" if bulk else f"{rate:,.0f}/s"
    return f"{shown}, {cpu:.2f} {'s/GB' if gigabytes > 0 else 'µs'}"


def table(titles, rows, ratios):
    """`rows` has for each name samples by column; `ratios` makes the last cells of their medians."""
    print("| " + " | ".join(["", *titles]) + " |")
    print("|---" * (len(titles) + 1) + "|")
    for name, row in rows.items():
        medians = {column: median(samples) for column, samples in row.items()}
        print("| " + " | ".join([name, *(cell(name, sample) for sample in medians.values()), *ratios(medians)]) + " |")
    print()


def version3(path):
    rows = {}
    for name, (theirs, *ours) in rounds(path):
        row = rows.setdefault(name, {})
        cpu = theirs["cpu_s_per_gb"] or theirs["cpu_us_per_op"]
        row.setdefault("libnfs", []).append((theirs["ops_per_s"], theirs["gb_per_s"], cpu))
        for backend, report in zip(["tmpfs", "memory"], ours):
            for result in report["results"]:
                row.setdefault(f"{result['series']}, {backend}", []).append(sample(result))

    def ratios(of):
        libnfs, tcp, tcp_memory, rdma_memory = (of[c] for c in ["libnfs", "tcp, tmpfs", "tcp, memory", "rdma, memory"])
        return [f"**{tcp[0] / libnfs[0]:.2f}**", f"{tcp[2] / libnfs[2]:.2f}", f"{rdma_memory[0] / tcp_memory[0]:.2f}"]

    ours = [f"Slipway {t}, {b}" for b in ["tmpfs", "memory"] for t in ["tcp", "rdma"]]
    table(["libnfs on Ganesha", *ours, "tcp over libnfs", "its CPU", "rdma over tcp"], rows, ratios)
    print("CPU is client and server together. 'tcp over libnfs' and 'its CPU' compare the same tmpfs, ours over theirs;")
    print("'rdma over tcp' compares our transports on memory.")


def version4(path):
    rows = {}
    for name, (theirs, ours) in rounds(path):
        row = rows.setdefault(name, {})
        row.setdefault("Ganesha", []).append(sample(theirs["results"][0]))
        for result in ours["results"]:
            row.setdefault(result["series"], []).append(sample(result))

    def ratios(of):
        over = lambda one, other: f"{of[one][0] / of[other][0]:.2f}"
        return [f"**{over('tcp vers=4.1', 'Ganesha')}**", over("tcp vers=4.1", "tcp vers=3"), over("shm vers=4.1", "shm vers=3")]

    ours = [f"Slipway, {t}, {v}" for t in ["tcp", "shm"] for v in ["3", "4.1"]]
    table(["Ganesha, tcp, 4.1", *ours, "4.1 over Ganesha", "tcp, 4.1 over 3", "shm, 4.1 over 3"], rows, ratios)
    print("Slipway's client on both servers, which export the same tmpfs. CPU is client and server together, but the client's")
    print("alone on Ganesha.")


def ganesha(path):
    """Lines of a name and the reports of our client on NFS-Ganesha and on our server, from security.sh."""
    rows = {}
    for name, (theirs, ours) in rounds(path):
        row = rows.setdefault(name, {})
        row.setdefault("Ganesha", []).append(sample(theirs["results"][0]))
        row.setdefault("Slipway", []).append(sample(ours["results"][0]))
    table(["Ganesha", "Slipway", "over Ganesha"], rows, lambda of: [f"**{of['Slipway'][0] / of['Ganesha'][0]:.2f}**"])


def knfsd(path):
    """Lines of a name, a server, a client and its report, from interop/guest/compare.sh."""
    rows = {}
    for line in open(path):
        name, server, client, report = line.rstrip("\n").split("\t")
        report = json.loads(report)
        if client == "fio":
            job = report["jobs"][0]
            rate = sum(job[way]["iops"] for way in ["read", "write"])
        else:
            rate = report["results"][0]["iops"]["median"]
        rows.setdefault(name, {}).setdefault(server, []).append(rate)
    print("| | knfsd | user-space floor | Slipway | floor over knfsd | Slipway over floor | Slipway over knfsd |")
    print("|---|---|---|---|---|---|---|")
    for name, row in rows.items():
        # The servers of one round are measured one after the other, so the ratios are those of the rounds.
        over = lambda one, other: statistics.median(a / b for a, b in zip(row[one], row[other]))
        rates = " | ".join(f"{statistics.median(row[server]):,.0f}/s" for server in ["knfsd", "floor", "slipway"])
        ratios = f"{over('floor', 'knfsd'):.2f} | {over('slipway', 'floor'):.2f} | **{over('slipway', 'knfsd'):.2f}**"
        print(f"| {name} | {rates} | {ratios} |")


def mount(path):
    """Lines of a name, a column, an amount of work, seconds, and seconds of processor time, from mount.sh."""
    programs(path, lambda column: "tmpfs" if column != "tmpfs" else None)
    print("The processor time is that of the server and of slipway mount. Ratios are of speeds: below 1, the mount is slower.")


def kernel(path):
    """The same from interop/guest/mount.sh, beside the kernel's client."""
    bases = {"tcp": "kernel tcp", "shm": "kernel tcp", "rdma": "kernel rdma"}
    programs(path, bases.get)
    print("All of it is emulated, so only the ratios are meaningful. They are of speeds: below 1, slipway mount is slower than the")
    print("kernel's client. The processor time is that of the whole guest, with the programs.")


def programs(path, base_of):
    """`base_of` names the column to which another one is compared, if any."""
    rows, columns = {}, {}
    for line in open(path):
        name, column, work, seconds, cpu = line.rstrip("\n").split("\t")
        columns[column] = None
        rows.setdefault(name, {}).setdefault(column, []).append((float(work), float(seconds), float(cpu)))

    def shown(name, samples):
        work, seconds, cpu = (statistics.median(column) for column in zip(*samples))
        if name.startswith("memory"):
            return f"{seconds:.0f} MiB"
        used = f", {cpu:.2f} s CPU" if cpu else ""
        if work == 0:
            return f"{seconds:.2f} s{used}"
        rate = work / seconds
        return (f"{rate / 1e6:,.0f} MB/s" if work > 1e7 else f"{rate:,.0f}/s") + used

    def ratio(row, column):
        """The speed of a column over that of its base; the median of the rounds."""
        pairs = zip(row.get(column, []), row.get(base_of(column), []))
        ratios = [base[1] / here[1] * (here[0] / base[0] if base[0] else 1) for here, base in pairs]
        return f"{statistics.median(ratios):.2f}" if ratios else ""

    mounts = [column for column in columns if base_of(column)]
    print("| | " + " | ".join([*columns, *(f"{column} over {base_of(column)}" for column in mounts)]) + " |")
    print("|---" * (len(columns) + len(mounts) + 1) + "|")
    for name, row in rows.items():
        cells = [shown(name, row[column]) if column in row else "" for column in columns]
        print("| " + " | ".join([name, *cells, *(ratio(row, column) for column in mounts)]) + " |")
    print()


def security(path):
    """A report of `slipway bench security`: rates, the CPU of both ends, and ratios to AUTH_SYS and to the cipher."""
    report = json.load(open(path))
    rates = {(result["series"], result["operation"]): sample(result) for result in report["results"]}
    columns = {"read": "READ 128 KiB × 8", "write": "WRITE 128 KiB × 8", "getattr": "GETATTR × 16"}
    ratios = ["of AUTH_SYS", "of the cipher", "of the cipher at both ends"]
    heads = [head for name in columns.values() for head in [name, *ratios[: 3 if "KiB" in name else 1]]]
    print("| | " + " | ".join(heads) + " |")
    print("|---" * (len(heads) + 1) + "|")
    for series in report["series"]:
        mount = series["mount"]
        flavour, tls = mount.get("sec", "sys"), mount.get("xprtsec", "none") == "tls"
        cipher = {("krb5p", False): "kerberos", ("sys", True): "cipher", ("krb5", True): "cipher", ("krb5i", True): "cipher"}
        cells = []
        for operation, name in columns.items():
            if (series["name"], operation) not in rates:
                cells += ["-"] * (4 if "KiB" in name else 2)
                continue
            this = rates[series["name"], operation]
            plain = next(s["name"] for s in report["series"] if s["mount"].get("sec", "sys") == "sys" and s["mount"].get("xprtsec", "none") == "none")
            bound = rates.get((cipher.get((flavour, tls)), "read"))
            loop = series["backend"] == "none"
            cells += [cell(name, this), "" if loop else f"{this[0] / rates[plain, operation][0]:.2f}"]
            if "KiB" in name:
                cells.append(f"{this[0] / bound[0]:.2f}" if bound and not loop else "")
                both = rates.get(("send-cipher", "read")) if cipher.get((flavour, tls)) == "cipher" and not loop else None
                cells.append(f"{this[0] / both[0]:.2f}" if both else "")
        title = {"cipher": "AES-256-GCM alone", "send-cipher": "AES-256-GCM at both ends of a connection", "kerberos": "GSS_Wrap alone"}.get(series["name"], flavour + (", TLS" if tls else ""))
        print("| " + " | ".join([title, *cells]) + " |")
    print()
    print(f"{report['conditions']['rounds']} rounds of {report['conditions']['seconds']} s, one connection. CPU is client and server together.")


{"version3": version3, "version4": version4, "knfsd": knfsd, "mount": mount, "kernel": kernel, "security": security, "ganesha": ganesha}[sys.argv[1]](sys.argv[2])
