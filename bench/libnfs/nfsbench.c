/*
 * nfsbench: request rates of libnfs's client, to have something to compare with.
 *
 *   nfsbench HOST NFS_PORT MOUNT_PORT EXPORT SERVER_PID SECONDS TEST BLOCK IN_FLIGHT
 *
 * TEST is read, write, randread, getattr or create (CREATE and REMOVE in turn, counted together as one). It uses
 * libnfs's raw interface, one thread and one connection, with IN_FLIGHT calls outstanding at any time. What it reads
 * it leaves where libnfs received it: no copy is charged to libnfs. After half a second to warm up, it counts for
 * SECONDS and prints one line of JSON: operations and bytes per second, CPU seconds of client and server.
 */
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <nfsc/libnfs.h>
#include <nfsc/libnfs-raw.h>
#include <nfsc/libnfs-raw-mount.h>
#include <nfsc/libnfs-raw-nfs.h>

#define FILE_SIZE (256u << 20)
#define HANDLE_MAX 64

struct handle { unsigned len; char bytes[HANDLE_MAX]; };

struct slot { char name[32]; int exists; };

enum test { READ, WRITE, RANDREAD, GETATTR, CREATE };

static struct rpc_context *rpc;
static struct handle root, file;
static enum test test;
static unsigned block, in_flight;
static char *data;
static int done, stopping;
static unsigned outstanding;
static uint64_t operations, next_offset, seed = 88172645463325252ull;

static void die(const char *what, const char *why) {
	fprintf(stderr, "nfsbench: %s: %s\n", what, why ? why : "?");
	exit(1);
}

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static double client_cpu(void) {
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static double server_cpu(const char *pid) {
	char path[64], line[1024];
	unsigned long user, system;
	snprintf(path, sizeof path, "/proc/%s/stat", pid);
	FILE *f = fopen(path, "r");
	if (!f || !fgets(line, sizeof line, f)) die(path, "cannot be read");
	fclose(f);
	/* The name, in parentheses, may hold anything. */
	char *after = strrchr(line, ')');
	if (!after || sscanf(after + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
		die(path, "has another format");
	return (double)(user + system) / sysconf(_SC_CLK_TCK);
}

/* Services the connection until *flag is set. */
static void service(struct rpc_context *on, int *flag) {
	while (!*flag) {
		struct pollfd p = { .fd = rpc_get_fd(on), .events = rpc_which_events(on) };
		if (poll(&p, 1, 1000) < 0) die("poll", "failed");
		if (rpc_service(on, p.revents) < 0) die("connection", rpc_get_error(on));
	}
}

static void connected(struct rpc_context *on, int status, void *reply, void *arg) {
	(void)arg; (void)reply;
	if (status != RPC_STATUS_SUCCESS) die("connect", rpc_get_error(on));
	done = 1;
}

static struct rpc_context *connect_to(const char *host, int port, int program) {
	struct rpc_context *on = rpc_init_context();
	done = 0;
	if (rpc_connect_port_async(on, host, port, program, 3, connected, NULL)) die("connect", rpc_get_error(on));
	service(on, &done);
	return on;
}

static void keep(struct handle *h, unsigned len, const char *bytes) {
	if (len > HANDLE_MAX) die("handle", "is too long");
	h->len = len;
	memcpy(h->bytes, bytes, len);
}

static void mounted(struct rpc_context *on, int status, void *reply, void *arg) {
	mountres3 *r = reply;
	(void)arg;
	if (status != RPC_STATUS_SUCCESS || r->fhs_status != MNT3_OK) die("mount", rpc_get_error(on));
	keep(&root, r->mountres3_u.mountinfo.fhandle.fhandle3_len, r->mountres3_u.mountinfo.fhandle.fhandle3_val);
	done = 1;
}

static nfs_fh3 fh(struct handle *h) {
	nfs_fh3 f;
	f.data.data_len = h->len;
	f.data.data_val = h->bytes;
	return f;
}

static void create(char *name, rpc_cb cb, void *arg) {
	CREATE3args a;
	memset(&a, 0, sizeof a);
	a.where.dir = fh(&root);
	a.where.name = name;
	a.how.mode = UNCHECKED;
	a.how.createhow3_u.obj_attributes.mode.set_it = 1;
	a.how.createhow3_u.obj_attributes.mode.set_mode3_u.mode = 0644;
	if (rpc_nfs3_create_async(rpc, cb, &a, arg)) die("CREATE", rpc_get_error(rpc));
}

static void file_made(struct rpc_context *on, int status, void *reply, void *arg) {
	CREATE3res *r = reply;
	(void)arg;
	if (status != RPC_STATUS_SUCCESS || r->status != NFS3_OK) die("CREATE", rpc_get_error(on));
	post_op_fh3 *made = &r->CREATE3res_u.resok.obj;
	if (!made->handle_follows) die("CREATE", "returned no handle");
	keep(&file, made->post_op_fh3_u.handle.data.data_len, made->post_op_fh3_u.handle.data.data_val);
	done = 1;
}

static void issue(struct slot *s);

/* Every NFSv3 result begins with its status. */
static void answered(struct rpc_context *on, int status, void *reply, void *arg) {
	struct slot *s = arg;
	if (status != RPC_STATUS_SUCCESS) die("call", rpc_get_error(on));
	if (*(nfsstat3 *)reply != NFS3_OK) die("call", "was answered by an NFS error");
	if (test <= RANDREAD) {
		unsigned n = test == WRITE ? ((WRITE3res *)reply)->WRITE3res_u.resok.count : ((READ3res *)reply)->READ3res_u.resok.count;
		if (n != block) die("call", "moved fewer bytes than asked");
	}
	/* A creation counts when its file is gone again. */
	if (test != CREATE || s->exists) operations++;
	s->exists = !s->exists;
	outstanding--;
	if (!stopping || (test == CREATE && s->exists)) issue(s);
}

static uint64_t offset(void) {
	uint64_t blocks = FILE_SIZE / block, n;
	if (test == RANDREAD) {
		seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17;
		n = seed;
	} else {
		n = next_offset++;
	}
	return n % blocks * block;
}

static void issue(struct slot *s) {
	int rc = 0;
	outstanding++;
	switch (test) {
	case READ: case RANDREAD: {
		READ3args a = { .file = fh(&file), .offset = offset(), .count = block };
		rc = rpc_nfs3_read_async(rpc, answered, &a, s);
		break;
	}
	case WRITE: {
		WRITE3args a = { .file = fh(&file), .offset = offset(), .count = block, .stable = UNSTABLE };
		a.data.data_len = block;
		a.data.data_val = data;
		rc = rpc_nfs3_write_async(rpc, answered, &a, s);
		break;
	}
	case GETATTR: {
		GETATTR3args a = { .object = fh(&file) };
		rc = rpc_nfs3_getattr_async(rpc, answered, &a, s);
		break;
	}
	case CREATE:
		if (s->exists) {
			REMOVE3args a = { .object = { .dir = fh(&root), .name = s->name } };
			rc = rpc_nfs3_remove_async(rpc, answered, &a, s);
		} else {
			create(s->name, answered, s);
		}
		break;
	}
	if (rc) die("call", rpc_get_error(rpc));
}

static void run_for(double seconds) {
	double end = now() + seconds;
	while (now() < end) {
		struct pollfd p = { .fd = rpc_get_fd(rpc), .events = rpc_which_events(rpc) };
		if (poll(&p, 1, 100) < 0) die("poll", "failed");
		if (rpc_service(rpc, p.revents) < 0) die("connection", rpc_get_error(rpc));
	}
}

static void fill(struct slot *s) {
	enum test wanted = test;
	unsigned wanted_block = block;
	test = WRITE;
	block = 1 << 20;
	stopping = 1;
	for (unsigned i = 0; i < FILE_SIZE / block; i++) {
		issue(s);
		while (outstanding) run_for(0.0001);
	}
	stopping = 0;
	test = wanted;
	block = wanted_block;
	next_offset = 0;
}

int main(int argc, char **argv) {
	static const char *const names[] = { "read", "write", "randread", "getattr", "create" };
	if (argc != 10) die("usage", "nfsbench HOST NFS_PORT MOUNT_PORT EXPORT SERVER_PID SECONDS TEST BLOCK IN_FLIGHT");
	const char *pid = argv[5];
	double seconds = atof(argv[6]);
	int known = 0;
	for (unsigned i = 0; i < 5; i++)
		if (!strcmp(argv[7], names[i])) { test = i; known = 1; }
	if (!known) die("test", "is none of read, write, randread, getattr, create");
	block = atoi(argv[8]);
	in_flight = atoi(argv[9]);
	data = malloc(1 << 20);
	memset(data, 'x', 1 << 20);
	struct slot *slots = calloc(in_flight, sizeof *slots);

	struct rpc_context *mount = connect_to(argv[1], atoi(argv[3]), MOUNT_PROGRAM);
	done = 0;
	if (rpc_mount3_mnt_async(mount, mounted, argv[4], NULL)) die("mount", rpc_get_error(mount));
	service(mount, &done);
	rpc_destroy_context(mount);
	rpc = connect_to(argv[1], atoi(argv[2]), NFS_PROGRAM);
	done = 0;
	create("nfsbench", file_made, NULL);
	service(rpc, &done);
	fill(slots);

	for (unsigned i = 0; i < in_flight; i++) {
		snprintf(slots[i].name, sizeof slots[i].name, "nfsbench-%u", i);
		slots[i].exists = 0;
		issue(&slots[i]);
	}
	run_for(0.5);
	double start = now(), client = client_cpu(), server = server_cpu(pid);
	operations = 0;
	run_for(seconds);
	double took = now() - start;
	uint64_t counted = operations;
	client = client_cpu() - client;
	server = server_cpu(pid) - server;
	stopping = 1;
	while (outstanding) run_for(0.001);
	double bytes = test <= RANDREAD ? (double)counted * block : 0;
	printf("{\"test\":\"%s\",\"block\":%u,\"in_flight\":%u,\"ops_per_s\":%.0f,\"gb_per_s\":%.3f,\"client_cpu_s\":%.2f,"
	       "\"server_cpu_s\":%.2f,\"cpu_s_per_gb\":%.3f,\"cpu_us_per_op\":%.2f}\n",
	       argv[7], block, in_flight, counted / took, bytes / took / 1e9, client, server,
	       bytes > 0 ? (client + server) / (bytes / 1e9) : 0, (client + server) / counted * 1e6);
	return 0;
}
