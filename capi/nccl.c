//go:build libweft

// The plug-ins for NCCL: a tuner that hands NCCL weft's choice, and a profiler that writes what weft doctor and weft watch read.
//
//     NCCL_TUNER_PLUGIN=/path/libweft.so    WEFT_NCCL_TABLE=FILE     of `weft explain --emit nccl-tuner`
//     NCCL_PROFILER_PLUGIN=/path/libweft.so WEFT_NCCL_PROFILE=DIR    gets a file for each process, JSON lines
//
// NCCL asks for the newest symbol it knows and goes down; the layouts below are those of versions 2 to 5 of the tuner (NCCL 2.21 to
// 2.29) and 1 to 5 of the profiler (2.23 to 2.29). Events come from several threads of NCCL, so everything about them is C: they are
// kept in a ring that one thread writes out.

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "nccl.h"
#include "weft.h"

#include "_cgo_export.h"

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_USAGE = 5 }; // ncclResult_t
enum { WARN = 2, INFO = 3 };                               // ncclDebugLogLevel
enum { SUBSYSTEM = 256 | 1 };                              // NCCL_TUNING, NCCL_INIT

typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *fmt, ...);

// ---- contexts ----

// What init gave out and finalize has not taken back: a second finalize finds nothing to free.
struct given {
	struct given *next;
	void *context;
};
static pthread_mutex_t given_lock = PTHREAD_MUTEX_INITIALIZER;
static struct given *all_given;

static bool give(void **to, void *context)
{
	struct given *g = malloc(sizeof *g);
	if (!g)
		return false;
	pthread_mutex_lock(&given_lock);
	*g = (struct given){all_given, context};
	all_given = g;
	pthread_mutex_unlock(&given_lock);
	*to = context;
	return true;
}

// take_back says whether a context was given out, and forgets it.
static bool take_back(void *context)
{
	struct given *found = NULL;
	pthread_mutex_lock(&given_lock);
	for (struct given **g = &all_given; *g; g = &(*g)->next) {
		if ((*g)->context == context) {
			found = *g;
			*g = found->next;
			break;
		}
	}
	pthread_mutex_unlock(&given_lock);
	free(found);
	return found != NULL;
}

// ---- tuner ----

enum { ALGOS = 7, PROTOS = 3 };

struct tuner {
	int rows;
	struct weft_tuner_row row[];
};

static int tuner_init(void **context, size_t ranks, size_t nodes, logger log)
{
	if (!context)
		return INVALID_USAGE;
	*context = NULL;
	const char *file = getenv("WEFT_NCCL_TABLE");
	if (!file || !*file) {
		if (log)
			log(INFO, SUBSYSTEM, "weft", 0, "weft tuner: WEFT_NCCL_TABLE is not set: NCCL's own choices stay");
		return SUCCESS;
	}
	enum { MOST = 4096 };
	struct tuner *t = calloc(1, sizeof *t + MOST * sizeof *t->row);
	char said[512] = "";
	if (!t)
		return SYSTEM_ERROR;
	t->rows = goTunerTable((char *)file, (int)nodes, (int)ranks, t->row, MOST, said, sizeof said);
	if (t->rows < 0) {
		if (log)
			log(WARN, SUBSYSTEM, "weft", 0, "weft tuner: %s", said);
		free(t);
		return INVALID_USAGE;
	}
	if (log)
		log(INFO, SUBSYSTEM, "weft", 0, "weft tuner: %s", said);
	if (!give(context, t)) {
		free(t);
		return SYSTEM_ERROR;
	}
	return SUCCESS;
}

// tuner_find is the first row that fits. It depends on nothing but the table and the call, so it is the same on all ranks.
static const struct weft_tuner_row *tuner_find(const struct tuner *t, int func, size_t bytes, int pipe_ops, int registered)
{
	for (int i = 0; t && i < t->rows; i++) {
		const struct weft_tuner_row *r = &t->row[i];
		if (r->kind == func && bytes >= (uint64_t)r->min && bytes <= (uint64_t)r->max && (r->pipe_ops < 0 || r->pipe_ops == pipe_ops) &&
		    (r->registered < 0 || registered < 0 || r->registered == registered))
			return r;
	}
	return NULL;
}

// tuner_force makes the choice the cheapest of NCCL's table, which is dense. What NCCL excluded stays so.
static int tuner_force(void *context, int func, size_t bytes, int pipe_ops, float **table, int algos, int protos, int registered, int *channels)
{
	const struct weft_tuner_row *r = tuner_find(context, func, bytes, pipe_ops, registered);
	if (!r || !table || r->algo >= algos || r->proto >= protos)
		return SUCCESS;
	float *cost = (float *)table + (size_t)r->algo * protos + r->proto;
	if (*cost < 0)
		return SUCCESS;
	*cost = 0;
	if (r->channels > 0 && channels)
		*channels = r->channels;
	return SUCCESS;
}

static int tuner_free(void *context)
{
	if (context && take_back(context))
		free(context);
	return SUCCESS;
}

static int tuner_init_v2(size_t ranks, size_t nodes, logger log, void **context) { return tuner_init(context, ranks, nodes, log); }
static int tuner_init_v5(void **context, uint64_t comm, size_t ranks, size_t nodes, logger log, void *domains, void *constants)
{
	(void)comm, (void)domains, (void)constants;
	return tuner_init(context, ranks, nodes, log);
}
static int tuner_v2(void *context, int func, size_t bytes, int collnet, int nvls, int pipe_ops, int *algo, int *proto, int *channels)
{
	const struct weft_tuner_row *r = tuner_find(context, func, bytes, pipe_ops, -1);
	if (!r || !algo || !proto || ((r->algo == 2 || r->algo == 3) && !collnet) || ((r->algo == 4 || r->algo == 5) && !nvls) || r->algo > 5)
		return SUCCESS;
	*algo = r->algo;
	*proto = r->proto;
	if (r->channels > 0 && channels)
		*channels = r->channels;
	return SUCCESS;
}
static int tuner_v3(void *context, int func, size_t bytes, int pipe_ops, float **table, int algos, int protos, int *channels)
{
	return tuner_force(context, func, bytes, pipe_ops, table, algos, protos, -1, channels);
}

struct tuner_plugin {
	const char *name;
	void *init, *get, *finalize;
};
EXPORT const struct tuner_plugin ncclTunerPlugin_v2 = {"weft", tuner_init_v2, tuner_v2, tuner_free};
EXPORT const struct tuner_plugin ncclTunerPlugin_v3 = {"weft", tuner_init_v2, tuner_v3, tuner_free};
EXPORT const struct tuner_plugin ncclTunerPlugin_v4 = {"weft", tuner_init_v2, tuner_force, tuner_free};
EXPORT const struct tuner_plugin ncclTunerPlugin_v5 = {"weft", tuner_init_v5, tuner_force, tuner_free};
EXPORT const struct {
	struct tuner_plugin v5;
	void *chunk_size;
} ncclTunerPlugin_v6 = {{"weft", tuner_init_v5, tuner_force, tuner_free}, NULL}; // a table has no chunk sizes: NCCL's stay

// ---- profiler ----

enum { COLL = 2, KERNEL_CH = 64 };   // kinds of event that are asked for
enum { KERNEL_CH_STOP = 22 };        // a state of KERNEL_CH: when the GPU was done with a channel
enum { SLOTS = 1024, CHANNELS = 64 }; // operations of a communicator that are kept until they are written
enum { FREE, USED, DONE };

struct slot;

// channel is a kernel's work on one channel.
struct channel {
	int kind;
	struct slot *of;
	uint64_t began, ended;         // of the host, ns
	uint64_t gpu_began, gpu_ended; // of the GPU, ns; 0 if not known
};

// slot is a collective under way.
struct slot {
	int kind;
	_Atomic int state;
	_Atomic int holders; // itself and its channels
	_Atomic int seen;    // channels
	int rank, root, channels, warps;
	uint64_t comm, seq, began, ended;
	size_t count;
	char func[24], type[24], algo[24], proto[16];
	struct channel channel[CHANNELS];
};

// profile is what is kept for a communicator.
struct profile {
	uint64_t comm;
	int rank, ranks, nodes;
	char name[64];
	_Atomic uint64_t next; // slot to be used
	_Atomic uint64_t lost;
	uint64_t told;
	_Atomic bool closing;
	pthread_t writer;
	bool writes;
	struct slot slot[SLOTS];
};

static pthread_mutex_t file_lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *file;
static char host[65];

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void copy(char *to, size_t room, const char *from)
{
	size_t n = 0;
	for (; from && from[n] && n + 1 < room; n++) // what goes into JSON as it is
		to[n] = from[n] == '"' || from[n] == '\\' || (unsigned char)from[n] < 32 ? '_' : from[n];
	to[n] = 0;
}

static size_t size_of(const char *type)
{
	static const struct {
		const char *name;
		size_t size;
	} all[] = {{"Int8", 1}, {"Uint8", 1}, {"Char", 1}, {"Float8", 1}, {"Float16", 2}, {"Half", 2}, {"Bfloat16", 2}, {"Int32", 4}, {"Uint32", 4}, {"Float32", 4},
		   {"Int64", 8}, {"Uint64", 8}, {"Float64", 8}, {"Double", 8}};
	if (!strncmp(type, "nccl", 4))
		type += 4;
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (!strncmp(type, all[i].name, strlen(all[i].name)))
			return all[i].size;
	return 1;
}

// write_one writes an operation as NCCL's Inspector does, which many tools read.
static void write_one(struct profile *p, struct slot *s)
{
	uint64_t first = 0, last = 0, longest = 0, shortest = 0;
	int seen = atomic_load(&s->seen), slow = -1;
	bool gpu = seen > 0;
	for (int i = 0; i < seen && i < CHANNELS; i++)
		gpu = gpu && s->channel[i].gpu_began && s->channel[i].gpu_ended;
	for (int i = 0; i < seen && i < CHANNELS; i++) {
		const struct channel *c = &s->channel[i];
		uint64_t a = gpu ? c->gpu_began : c->began, b = gpu ? c->gpu_ended : c->ended;
		if (!first || a < first)
			first = a;
		if (b > last)
			last = b;
		if (b - a > longest)
			longest = b - a, slow = i;
		if (!shortest || b - a < shortest)
			shortest = b - a;
	}
	const char *source = gpu ? "kernel_gpu" : seen ? "kernel_cpu" : "collective_cpu";
	if (!seen)
		first = s->began, last = s->ended;
	double us = (double)(last - first) / 1e3, n = p->ranks;
	double bytes = (double)s->count * (double)size_of(s->type), factor = 1;
	if (!strcmp(s->func, "AllGather") || !strcmp(s->func, "ReduceScatter"))
		bytes *= n, factor = (n - 1) / n;
	else if (!strcmp(s->func, "AllReduce"))
		factor = 2 * (n - 1) / n;
	if (n < 1)
		factor = 0;
	double rate = us > 0 ? bytes / us / 1e3 : 0;
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	fprintf(file,
		"{\"header\":{\"id\":\"0x%llx\",\"rank\":%d,\"n_ranks\":%d,\"nnodes\":%d},\"metadata\":{\"rec_mechanism\":\"weft\",\"dump_timestamp_us\":%llu,\"hostname\":\"%s\",\"pid\":%d,\"comm_name\":\"%s\"},"
		"\"coll_perf\":{\"coll\":\"%s\",\"coll_sn\":%llu,\"coll_msg_size_bytes\":%.0f,\"coll_exec_time_us\":%.3f,\"coll_timing_source\":\"%s\",\"coll_algobw_gbs\":%.6f,\"coll_busbw_gbs\":%.6f,"
		"\"algo\":\"%s\",\"proto\":\"%s\",\"channels\":%d,\"channel_us_min\":%.3f,\"channel_us_max\":%.3f,\"channel_slowest\":%d}}\n",
		(unsigned long long)s->comm, s->rank, p->ranks, p->nodes, (unsigned long long)t.tv_sec * 1000000 + (unsigned long long)t.tv_nsec / 1000, host, (int)getpid(), p->name, s->func,
		(unsigned long long)s->seq, bytes, us, source, rate, rate * factor, s->algo, s->proto, seen ? seen : s->channels, (double)shortest / 1e3, (double)longest / 1e3, slow);
}

// drain writes what is over.
static void drain(struct profile *p)
{
	uint64_t next = atomic_load(&p->next);
	pthread_mutex_lock(&file_lock);
	for (uint64_t i = next; file && i < next + SLOTS; i++) { // the oldest comes first
		struct slot *s = &p->slot[i % SLOTS];
		if (atomic_load(&s->state) == DONE) {
			write_one(p, s);
			atomic_store(&s->state, FREE);
		}
	}
	uint64_t lost = atomic_load(&p->lost);
	if (file && lost != p->told) {
		fprintf(file, "{\"header\":{\"id\":\"0x%llx\",\"rank\":%d,\"n_ranks\":%d,\"nnodes\":%d},\"metadata\":{\"hostname\":\"%s\",\"pid\":%d},\"dump_stats\":{\"dropped\":%llu}}\n",
			(unsigned long long)p->comm, p->rank, p->ranks, p->nodes, host, (int)getpid(), (unsigned long long)(lost - p->told));
		p->told = lost;
	}
	if (file)
		fflush(file);
	pthread_mutex_unlock(&file_lock);
}

static void *write_all(void *arg)
{
	struct profile *p = arg;
	while (!atomic_load(&p->closing)) {
		struct timespec t = {0, 100000000};
		nanosleep(&t, NULL);
		drain(p);
	}
	return NULL;
}

static int profiler_init(void **context, int *mask, const char *name, uint64_t comm, int nodes, int ranks, int rank, logger log)
{
	if (!context || !mask)
		return INVALID_USAGE;
	*context = NULL;
	*mask = 0;
	const char *dir = getenv("WEFT_NCCL_PROFILE");
	if (!dir || !*dir) {
		if (log)
			log(INFO, SUBSYSTEM, "weft", 0, "weft profiler: WEFT_NCCL_PROFILE is not set: nothing is recorded");
		return SUCCESS;
	}
	static char path[4096];
	pthread_mutex_lock(&file_lock);
	if (!file) {
		gethostname(host, sizeof host - 1);
		copy(host, sizeof host, host);
		mkdir(dir, 0777);
		snprintf(path, sizeof path, "%s/nccl-%s-%d.jsonl", dir, host, (int)getpid());
		file = fopen(path, "ae");
		if (!file) {
			int why = errno;
			pthread_mutex_unlock(&file_lock);
			if (log)
				log(WARN, SUBSYSTEM, "weft", 0, "weft profiler: %s: %s; set WEFT_NCCL_PROFILE to a directory that can be written", path, strerror(why));
			return SUCCESS; // training goes on without it
		}
	}
	pthread_mutex_unlock(&file_lock);
	if (log)
		log(INFO, SUBSYSTEM, "weft", 0, "weft profiler: operations go to %s", path);
	struct profile *p = calloc(1, sizeof *p);
	if (!p)
		return SUCCESS;
	p->comm = comm, p->rank = rank, p->ranks = ranks, p->nodes = nodes;
	copy(p->name, sizeof p->name, name);
	if (!give(context, p)) {
		free(p);
		return SUCCESS;
	}
	p->writes = pthread_create(&p->writer, NULL, write_all, p) == 0;
	*mask = COLL | KERNEL_CH;
	return SUCCESS;
}

static int profiler_init_v1(void **context, int *mask) { return profiler_init(context, mask, "", 0, 0, 0, -1, NULL); }
static int profiler_init_v4(void **context, int *mask, const char *name, uint64_t comm, int nodes, int ranks, int rank, logger log)
{
	return profiler_init(context, mask, name, comm, nodes, ranks, rank, log);
}
static int profiler_init_v5(void **context, uint64_t comm, int *mask, const char *name, int nodes, int ranks, int rank, logger log)
{
	return profiler_init(context, mask, name, comm, nodes, ranks, rank, log);
}

// begin takes a slot for a collective; NULL if all are in use.
static struct slot *begin(struct profile *p, int rank)
{
	uint64_t i = atomic_fetch_add(&p->next, 1);
	struct slot *s = &p->slot[i % SLOTS];
	int is_free = FREE;
	if (!atomic_compare_exchange_strong(&s->state, &is_free, USED)) {
		atomic_fetch_add(&p->lost, 1);
		return NULL;
	}
	s->kind = COLL;
	atomic_store(&s->holders, 1);
	atomic_store(&s->seen, 0);
	s->rank = rank, s->comm = p->comm;
	s->began = now(), s->ended = 0;
	s->algo[0] = s->proto[0] = s->func[0] = s->type[0] = 0;
	return s;
}

static void release(struct slot *s)
{
	if (atomic_fetch_sub(&s->holders, 1) == 1)
		atomic_store(&s->state, DONE);
}

// begin_channel takes a place for a kernel's channel.
static struct channel *begin_channel(struct slot *s, uint64_t gpu)
{
	if (!s || s->kind != COLL)
		return NULL;
	int i = atomic_fetch_add(&s->seen, 1);
	if (i >= CHANNELS) {
		atomic_fetch_sub(&s->seen, 1);
		return NULL;
	}
	struct channel *c = &s->channel[i];
	atomic_fetch_add(&s->holders, 1);
	c->kind = KERNEL_CH, c->of = s;
	c->began = now(), c->ended = 0;
	c->gpu_began = gpu, c->gpu_ended = 0;
	return c;
}

static int profiler_stop(void *event)
{
	if (!event)
		return SUCCESS;
	if (*(int *)event == KERNEL_CH) {
		struct channel *c = event;
		c->ended = now();
		release(c->of);
	} else {
		struct slot *s = event;
		s->ended = now();
		release(s);
	}
	return SUCCESS;
}

static int profiler_state(void *event, int state, void *args)
{
	if (event && args && state == KERNEL_CH_STOP && *(int *)event == KERNEL_CH)
		((struct channel *)event)->gpu_ended = *(uint64_t *)args;
	return SUCCESS;
}
static int profiler_no_state(void *event, int state, void *args)
{
	(void)event, (void)state, (void)args; // before version 4 no state has the GPU's time
	return SUCCESS;
}

static int profiler_finalize(void *context)
{
	struct profile *p = context;
	if (!p || !take_back(p))
		return SUCCESS;
	atomic_store(&p->closing, true);
	if (p->writes)
		pthread_join(p->writer, NULL);
	drain(p);
	free(p);
	return SUCCESS;
}

// What NCCL says of an event: its beginning is the same in all versions but for the width of the kind, which padding hides.
struct event_head {
	uint8_t kind; // the lowest byte in versions that have 8: kinds above 255 are not asked for
	void *parent;
	int rank;
};

struct coll_v1 {
	struct event_head head;
	const char *name;
	uint64_t comm, seq;
	uint8_t func;
	const void *send;
	void *recv;
	size_t count;
	int root;
	uint8_t type;
	uint32_t op;
	size_t traffic;
	uint8_t channels, warps, algo, proto;
};
struct coll_v2 {
	struct event_head head;
	const char *name;
	uint64_t comm, seq;
	const char *func;
	const void *send;
	void *recv;
	size_t count;
	int root;
	const char *type;
	size_t traffic;
	uint8_t channels, warps;
	const char *algo, *proto;
};
struct coll_v3 {
	struct event_head head;
	const char *name;
	uint64_t comm, seq;
	const char *func;
	const void *send;
	void *recv;
	size_t count;
	int root;
	const char *type;
	uint8_t channels, warps;
	const char *algo, *proto;
};
struct coll_v4 { // and 5, 6
	struct event_head head;
	uint64_t seq;
	const char *func;
	const void *send;
	void *recv;
	size_t count;
	int root;
	const char *type;
	uint8_t channels, warps;
	const char *algo, *proto;
};
struct kernel_v4 {
	struct event_head head;
	uint8_t channel;
	uint64_t timer;
};

#define FILL(s, d)                                              \
	do {                                                    \
		(s)->seq = (d)->seq;                            \
		(s)->count = (d)->count, (s)->root = (d)->root; \
		(s)->channels = (d)->channels, (s)->warps = (d)->warps; \
	} while (0)
#define NAMES(s, d)                                             \
	do {                                                    \
		copy((s)->func, sizeof (s)->func, (d)->func);   \
		copy((s)->type, sizeof (s)->type, (d)->type);   \
		copy((s)->algo, sizeof (s)->algo, (d)->algo);   \
		copy((s)->proto, sizeof (s)->proto, (d)->proto); \
	} while (0)

static const char *pick(const char *const *list, size_t n, unsigned i) { return i < n ? list[i] : "?"; }
#define PICK(list, i) pick(list, sizeof(list) / sizeof *(list), i)

// begins says that no event is kept, and whether there is one to look at.
static bool begins(void **event, const void *descriptor)
{
	if (event)
		*event = NULL;
	return event && descriptor;
}

static int profiler_start_v1(void *context, void **event, const struct coll_v1 *d)
{
	static const char *const funcs[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "Send", "Recv"};
	static const char *const types[] = {"Int8", "Uint8", "Int32", "Uint32", "Int64", "Uint64", "Float16", "Float32", "Float64", "Bfloat16"};
	static const char *const algos[] = {"TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"};
	static const char *const protos[] = {"LL", "LL128", "SIMPLE"};
	if (!begins(event, d))
		return SUCCESS;
	struct slot *s = context && d->head.kind == COLL ? begin(context, d->head.rank) : NULL;
	if (!s)
		return SUCCESS;
	FILL(s, d);
	s->comm = d->comm;
	copy(s->func, sizeof s->func, PICK(funcs, d->func));
	copy(s->type, sizeof s->type, PICK(types, d->type));
	copy(s->algo, sizeof s->algo, PICK(algos, d->algo));
	copy(s->proto, sizeof s->proto, PICK(protos, d->proto));
	*event = s;
	return SUCCESS;
}
static int profiler_start_v2(void *context, void **event, const struct coll_v2 *d)
{
	if (!begins(event, d))
		return SUCCESS;
	struct slot *s = context && d->head.kind == COLL ? begin(context, d->head.rank) : NULL;
	if (!s)
		return SUCCESS;
	FILL(s, d);
	NAMES(s, d);
	s->comm = d->comm;
	*event = s;
	return SUCCESS;
}
static int profiler_start_v3(void *context, void **event, const struct coll_v3 *d)
{
	if (!begins(event, d))
		return SUCCESS;
	if (context && d->head.kind == KERNEL_CH) {
		*event = begin_channel(d->head.parent, 0);
		return SUCCESS;
	}
	struct slot *s = context && d->head.kind == COLL ? begin(context, d->head.rank) : NULL;
	if (!s)
		return SUCCESS;
	FILL(s, d);
	NAMES(s, d);
	s->comm = d->comm;
	*event = s;
	return SUCCESS;
}
static int profiler_start_v4(void *context, void **event, const struct coll_v4 *d)
{
	if (!begins(event, d))
		return SUCCESS;
	if (context && d->head.kind == KERNEL_CH) {
		*event = begin_channel(d->head.parent, ((const struct kernel_v4 *)d)->timer);
		return SUCCESS;
	}
	struct slot *s = context && d->head.kind == COLL ? begin(context, d->head.rank) : NULL;
	if (!s)
		return SUCCESS;
	FILL(s, d);
	NAMES(s, d);
	*event = s;
	return SUCCESS;
}
static int profiler_start_v5(void *context, void **event, const struct coll_v4 *d)
{
	uint64_t kind;
	if (!begins(event, d))
		return SUCCESS;
	memcpy(&kind, d, sizeof kind);
	return kind > 255 ? SUCCESS : profiler_start_v4(context, event, d);
}

struct profiler_plugin {
	const char *name;
	void *init, *start, *stop, *state, *finalize;
};
#define PROFILER(version, init, start, state) \
	EXPORT const struct profiler_plugin ncclProfiler_v##version = {"weft", init, start, profiler_stop, state, profiler_finalize}
PROFILER(1, profiler_init_v1, profiler_start_v1, profiler_no_state);
PROFILER(2, profiler_init_v1, profiler_start_v2, profiler_no_state);
PROFILER(3, profiler_init_v1, profiler_start_v3, profiler_no_state);
PROFILER(4, profiler_init_v4, profiler_start_v4, profiler_state);
PROFILER(5, profiler_init_v5, profiler_start_v5, profiler_state);
PROFILER(6, profiler_init_v5, profiler_start_v5, profiler_state); // its collectives by copy engines are not asked for: NCCL does not tell when they are over
