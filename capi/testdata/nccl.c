/* Loads the plug-ins as NCCL does and makes its calls in its order, with NCCL's layouts written once more. */
#define _DEFAULT_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char logged[65536];

static void logger(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
	(void)flags, (void)file, (void)line;
	size_t n = strlen(logged);
	va_list a;
	va_start(a, fmt);
	n += (size_t)snprintf(logged + n, sizeof logged - n, "%d ", level);
	n += (size_t)vsnprintf(logged + n, sizeof logged - n, fmt, a);
	va_end(a);
	snprintf(logged + n, sizeof logged - n, "\n");
}

static void is(double x, double want, const char *what, int line)
{
	if (x == want)
		return;
	fprintf(stderr, "line %d: %s is %g, not %g\n%s", line, what, x, want, logged);
	exit(1);
}
#define IS(x, want) is((double)(x), (double)(want), #x, __LINE__)

typedef struct {
	const char *name;
	int (*init)(size_t, size_t, void (*)(int, unsigned long, const char *, int, const char *, ...), void **);
	int (*get)(void *, int, size_t, int, int, int, int *, int *, int *);
	int (*destroy)(void *);
} tuner_v2;
typedef struct {
	const char *name;
	int (*init)(size_t, size_t, void (*)(int, unsigned long, const char *, int, const char *, ...), void **);
	int (*get)(void *, int, size_t, int, float **, int, int, int *);
	int (*destroy)(void *);
} tuner_v3;
typedef struct {
	const char *name;
	int (*init)(size_t, size_t, void (*)(int, unsigned long, const char *, int, const char *, ...), void **);
	int (*get)(void *, int, size_t, int, float **, int, int, int, int *);
	int (*destroy)(void *);
} tuner_v4;
typedef struct {
	int domains, least, most;
} domains_v5;
typedef struct {
	const char *name;
	int (*init)(void **, uint64_t, size_t, size_t, void (*)(int, unsigned long, const char *, int, const char *, ...), domains_v5 *, void *);
	int (*get)(void *, int, size_t, int, float **, int, int, int, int *);
	int (*finalize)(void *);
} tuner_v5;
typedef struct {
	tuner_v5 v5;
	int (*chunk)(void *, int, size_t, int, int, int, size_t *);
} tuner_v6;

enum { TREE, RING, NVLS = 4, LL = 0, LL128, SIMPLE };

/* cheapest is what NCCL makes of a table: the first least of what is not excluded. */
static int cheapest(float t[7][3])
{
	int best = -1;
	for (int i = 0; i < 21; i++)
		if ((&t[0][0])[i] >= 0 && (best < 0 || (&t[0][0])[i] < (&t[0][0])[best]))
			best = i;
	return best;
}

static void fresh(float t[7][3])
{
	for (int i = 0; i < 21; i++)
		(&t[0][0])[i] = i < 6 ? 10 + (float)i : -1; /* NCCL excluded all but ring and tree */
}

static void tuners(void *so)
{
	void *ctx;
	float t[7][3];
	int channels, algo, proto;

	tuner_v2 *v2 = dlsym(so, "ncclTunerPlugin_v2");
	IS(v2->init(8, 1, logger, &ctx), 0);
	algo = proto = -1, channels = 0;
	IS(v2->get(ctx, 4, 1 << 20, 0, 0, 1, &algo, &proto, &channels), 0);
	IS(algo, RING), IS(proto, LL128), IS(channels, 0);
	algo = proto = -1;
	IS(v2->get(ctx, 4, 1 << 30, 0, 0, 1, &algo, &proto, &channels), 0); /* nvls, which is not there */
	IS(algo, -1), IS(proto, -1);
	IS(v2->get(ctx, 4, 1 << 30, 0, 1, 1, &algo, &proto, &channels), 0);
	IS(algo, NVLS), IS(proto, SIMPLE), IS(channels, 16);
	IS(v2->destroy(ctx), 0);

	tuner_v3 *v3 = dlsym(so, "ncclTunerPlugin_v3");
	IS(v3->init(8, 1, logger, &ctx), 0);
	fresh(t), channels = 0;
	IS(v3->get(ctx, 4, 100, 1, (float **)t, 7, 3, &channels), 0);
	IS(cheapest(t), TREE * 3 + LL);
	IS(v3->destroy(ctx), 0);

	tuner_v4 *v4 = dlsym(so, "ncclTunerPlugin_v4");
	IS(v4->init(8, 1, logger, &ctx), 0);
	fresh(t);
	IS(v4->get(ctx, 4, 1 << 20, 1, (float **)t, 7, 3, 0, &channels), 0);
	IS(cheapest(t), RING * 3 + LL128);
	fresh(t);
	IS(v4->get(ctx, 4, 1 << 30, 1, (float **)t, 7, 3, 0, &channels), 0); /* excluded by NCCL: never revived */
	IS(t[NVLS][SIMPLE], -1), IS(cheapest(t), 0), IS(channels, 0);
	fresh(t);
	IS(v4->get(ctx, 0, 1 << 20, 1, (float **)t, 7, 3, 0, &channels), 0); /* no row for broadcasts */
	IS(t[RING][LL128], 14);
	IS(v4->destroy(ctx), 0);

	tuner_v5 *v5 = dlsym(so, "ncclTunerPlugin_v5");
	domains_v5 d = {1, 8, 8};
	char constants[4096] = {0};
	IS(v5->init(&ctx, 0xabc, 8, 1, logger, &d, constants), 0);
	fresh(t);
	IS(v5->get(ctx, 4, 1 << 20, 1, (float **)t, 7, 3, 1, &channels), 0);
	IS(cheapest(t), RING * 3 + LL128);
	IS(v5->get(ctx, 4, 1 << 20, 1, NULL, 7, 3, 1, &channels), 0); /* nothing to write to */
	IS(v5->get(ctx, 4, 1 << 20, 1, (float **)t, 7, 3, 1, NULL), 0);
	IS(v5->get(NULL, 4, 1 << 20, 1, NULL, 7, 3, 1, NULL), 0);
	IS(v2->get(ctx, 4, 1 << 30, 0, 1, 1, NULL, NULL, NULL), 0);
	IS(v5->init(NULL, 0xabc, 8, 1, NULL, NULL, NULL), 5);
	IS(v2->init(8, 1, NULL, NULL), 5);
	void *other;
	IS(v5->init(&other, 0xabc, 8, 1, NULL, NULL, NULL), 0);
	IS(v5->finalize(ctx), 0);
	IS(v5->finalize(ctx), 0); /* twice, and of what nobody gave: the other context stays */
	IS(v5->finalize(NULL), 0);
	IS(v5->finalize(constants), 0);
	fresh(t);
	IS(v5->get(other, 4, 1 << 20, 1, (float **)t, 7, 3, 1, &channels), 0);
	IS(cheapest(t), RING * 3 + LL128);
	IS(v5->finalize(other), 0);
	IS(v5->init(&ctx, 0xabc, 16, 2, logger, &d, constants), 0); /* the table is of another communicator */
	fresh(t);
	IS(v5->get(ctx, 4, 1 << 20, 1, (float **)t, 7, 3, 1, &channels), 0);
	IS(cheapest(t), 0);
	IS(v5->finalize(ctx), 0);

	tuner_v6 *v6 = dlsym(so, "ncclTunerPlugin_v6");
	IS(v6->chunk == NULL, 1); /* it is optional */
	IS(v6->v5.init(&ctx, 0xabc, 8, 1, logger, &d, constants), 0);
	fresh(t);
	IS(v6->v5.get(ctx, 4, 1 << 20, 1, (float **)t, 7, 3, 1, &channels), 0);
	IS(cheapest(t), RING * 3 + LL128);
	IS(v6->v5.finalize(ctx), 0), IS(v6->v5.finalize(ctx), 0);

	char *table = strdup(getenv("WEFT_NCCL_TABLE"));
	setenv("WEFT_NCCL_TABLE", "/nowhere/table.csv", 1);
	IS(v5->init(&ctx, 0xabc, 8, 1, logger, &d, constants), 5);
	IS(strstr(logged, "/nowhere/table.csv") != NULL, 1);
	unsetenv("WEFT_NCCL_TABLE");
	IS(v5->init(&ctx, 0xabc, 8, 1, logger, &d, constants), 0);
	fresh(t);
	IS(v5->get(ctx, 4, 1 << 20, 1, (float **)t, 7, 3, 1, &channels), 0);
	IS(cheapest(t), 0);
	IS(v5->finalize(ctx), 0);
	setenv("WEFT_NCCL_TABLE", table, 1);
	free(table);
}

#define EVENT(KIND, ...)                                                        \
	struct {                                                                \
		KIND type;                                                      \
		void *parent;                                                   \
		int rank;                                                       \
		union {                                                         \
			struct {                                                \
				__VA_ARGS__                                     \
			} coll;                                                 \
			struct {                                                \
				uint8_t channel;                                \
				uint64_t timer;                                 \
			} kernel;                                               \
			char room[200];                                         \
		} u;                                                            \
	}
typedef EVENT(uint8_t, const char *name; uint64_t comm; uint64_t seq; uint8_t func; const void *send; void *recv; size_t count; int root; uint8_t type; uint32_t op; size_t traffic; uint8_t channels; uint8_t warps; uint8_t algo; uint8_t proto; int collnet; int nvls;) event_v1;
typedef EVENT(uint8_t, const char *name; uint64_t comm; uint64_t seq; const char *func; const void *send; void *recv; size_t count; int root; const char *type; size_t traffic; uint8_t channels; uint8_t warps; const char *algo; const char *proto;) event_v2;
typedef EVENT(uint8_t, const char *name; uint64_t comm; uint64_t seq; const char *func; const void *send; void *recv; size_t count; int root; const char *type; uint8_t channels; uint8_t warps; const char *algo; const char *proto;) event_v3;
typedef EVENT(uint8_t, uint64_t seq; const char *func; const void *send; void *recv; size_t count; int root; const char *type; uint8_t channels; uint8_t warps; const char *algo; const char *proto;) event_v4;
typedef EVENT(uint64_t, uint64_t seq; const char *func; const void *send; void *recv; size_t count; int root; const char *type; uint8_t channels; uint8_t warps; const char *algo; const char *proto; void *group;) event_v5;

typedef struct {
	const char *name;
	void *init;
	int (*start)(void *, void **, void *);
	int (*stop)(void *);
	int (*state)(void *, int, void *);
	int (*finalize)(void *);
} profiler;

typedef int (*init_v1)(void **, int *);
typedef int (*init_v4)(void **, int *, const char *, uint64_t, int, int, int, void (*)(int, unsigned long, const char *, int, const char *, ...));
typedef int (*init_v5)(void **, uint64_t, int *, const char *, int, int, int, void (*)(int, unsigned long, const char *, int, const char *, ...));

static profiler *p5;
static void *ctx5;

/* One collective as NCCL profiles it: the host enqueues it, and a thread of its own sees the kernel's channels begin and end. */
static void one(uint64_t seq, uint64_t gpu_us)
{
	event_v5 e;
	memset(&e, 0, sizeof e);
	e.type = 1; /* a group: not asked for, and harmless */
	void *group = &e, *coll, *ch[2];
	IS(p5->start(ctx5, &group, &e), 0);
	e.type = 2, e.rank = 3, e.parent = group;
	e.u.coll.seq = seq, e.u.coll.func = "AllReduce", e.u.coll.count = 1 << 18, e.u.coll.type = "ncclFloat32", e.u.coll.channels = 2, e.u.coll.algo = "RING", e.u.coll.proto = "LL128";
	IS(p5->start(ctx5, &coll, &e), 0);
	for (int i = 0; i < 2; i++) {
		event_v5 k;
		memset(&k, 0, sizeof k);
		k.type = 64, k.parent = coll, k.rank = 3, k.u.kernel.channel = (uint8_t)i, k.u.kernel.timer = 1000000 + seq * 1000000;
		IS(p5->start(ctx5, &ch[i], &k), 0);
	}
	IS(p5->stop(coll), 0);
	for (int i = 0; i < 2; i++) {
		uint64_t done = 1000000 + seq * 1000000 + gpu_us * 1000 / (uint64_t)(2 - i);
		if (ch[i]) {
			IS(p5->state(ch[i], 22, &done), 0);
			IS(p5->stop(ch[i]), 0);
		}
	}
	IS(p5->stop(group == &e ? NULL : group), 0);
}

static void *many(void *arg)
{
	for (int i = 0; i < 50; i++)
		one((uint64_t)(size_t)arg + (uint64_t)i, 100);
	return NULL;
}

static void profilers(void *so)
{
	void *ctx, *coll;
	int mask = -1;

	profiler *v1 = dlsym(so, "ncclProfiler_v1");
	IS(((init_v1)v1->init)(&ctx, &mask), 0);
	IS((mask & 2) != 0, 1);
	event_v1 a;
	memset(&a, 0, sizeof a);
	a.type = 2, a.rank = 1, a.u.coll.comm = 0x11, a.u.coll.seq = 1, a.u.coll.func = 2, a.u.coll.count = 10, a.u.coll.type = 7, a.u.coll.algo = 1, a.u.coll.proto = 2;
	IS(v1->start(ctx, &coll, &a), 0);
	IS(v1->stop(coll), 0);
	IS(v1->finalize(ctx), 0);

	profiler *v2 = dlsym(so, "ncclProfiler_v2");
	IS(((init_v1)v2->init)(&ctx, &mask), 0);
	event_v2 b;
	memset(&b, 0, sizeof b);
	b.type = 2, b.rank = 1, b.u.coll.comm = 0x22, b.u.coll.seq = 2, b.u.coll.func = "Broadcast", b.u.coll.count = 10, b.u.coll.type = "ncclInt64", b.u.coll.algo = "TREE", b.u.coll.proto = "LL";
	IS(v2->start(ctx, &coll, &b), 0);
	IS(v2->stop(coll), 0);
	IS(v2->finalize(ctx), 0);

	profiler *v3 = dlsym(so, "ncclProfiler_v3");
	IS(((init_v1)v3->init)(&ctx, &mask), 0);
	event_v3 c;
	memset(&c, 0, sizeof c);
	c.type = 2, c.rank = 1, c.u.coll.comm = 0x33, c.u.coll.seq = 3, c.u.coll.func = "Reduce", c.u.coll.count = 10, c.u.coll.type = "ncclBfloat16", c.u.coll.algo = "RING", c.u.coll.proto = "SIMPLE";
	IS(v3->start(ctx, &coll, &c), 0);
	IS(v3->stop(coll), 0);
	IS(v3->finalize(ctx), 0);

	profiler *v4 = dlsym(so, "ncclProfiler_v4");
	IS(((init_v4)v4->init)(&ctx, &mask, "a \"name\"", 0x44, 1, 8, 5, logger), 0);
	IS(mask, 66);
	event_v4 d;
	memset(&d, 0, sizeof d);
	d.type = 2, d.rank = 5, d.u.coll.seq = 4, d.u.coll.func = "AllGather", d.u.coll.count = 10, d.u.coll.type = "ncclFloat16", d.u.coll.algo = "NVLS", d.u.coll.proto = "SIMPLE";
	IS(v4->start(ctx, &coll, &d), 0);
	IS(v4->stop(coll), 0);
	IS(v4->finalize(ctx), 0);

	p5 = dlsym(so, "ncclProfiler_v5");
	IS(((init_v5)p5->init)(&ctx5, 0x55, &mask, "world", 1, 8, 3, logger), 0);
	one(5, 61);
	pthread_t t[4];
	for (size_t i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, many, (void *)(1000 + 100 * i));
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	/* one that never ends does not hold the others up */
	event_v5 e;
	memset(&e, 0, sizeof e);
	e.type = 2, e.u.coll.seq = 9999, e.u.coll.func = "AllReduce", e.u.coll.type = "ncclFloat32";
	IS(p5->start(ctx5, &coll, &e), 0);
	one(6, 80);
	e.type = 4096; /* kinds of later versions */
	IS(p5->start(ctx5, &coll, &e), 0);
	IS(coll == NULL, 1);
	profiler *v6 = dlsym(so, "ncclProfiler_v6");
	void *ctx6;
	IS(((init_v5)v6->init)(&ctx6, 0x66, &mask, "six", 1, 8, 3, logger), 0);
	IS(mask, 66);
	event_v5 f;
	memset(&f, 0, sizeof f);
	f.type = 2, f.rank = 3, f.u.coll.seq = 7, f.u.coll.func = "ReduceScatter", f.u.coll.count = 10, f.u.coll.type = "ncclFloat32", f.u.coll.algo = "PAT", f.u.coll.proto = "SIMPLE";
	IS(v6->start(ctx6, &coll, &f), 0);
	IS(v6->stop(coll), 0);
	f.type = 4096; /* by a copy engine */
	IS(v6->start(ctx6, &coll, &f), 0), IS(coll == NULL, 1);
	IS(v6->finalize(ctx6), 0);
	profiler *all[] = {v1, v2, v3, v4, p5, v6};
	for (int i = 0; i < 6; i++) {
		IS(all[i]->start(ctx5, NULL, &e), 0);
		IS(all[i]->start(ctx5, &coll, NULL), 0), IS(coll == NULL, 1);
		IS(all[i]->start(NULL, &coll, &d), 0), IS(coll == NULL, 1);
		IS(all[i]->stop(NULL), 0);
		IS(all[i]->state(NULL, 22, NULL), 0);
		IS(all[i]->finalize(NULL), 0);
	}
	IS(((init_v5)p5->init)(NULL, 0x55, &mask, NULL, 1, 8, 3, NULL), 5);
	IS(((init_v5)p5->init)(&ctx, 0x55, NULL, NULL, 1, 8, 3, NULL), 5);
	IS(((init_v1)v1->init)(NULL, NULL), 5);
	IS(((init_v5)p5->init)(&ctx, 0x56, &mask, NULL, 1, 8, 3, NULL), 0);
	IS(p5->finalize(ctx), 0);
	IS(p5->finalize(ctx), 0);
	IS(p5->finalize(ctx5), 0);
	IS(p5->finalize(ctx5), 0);

	unsetenv("WEFT_NCCL_PROFILE");
	IS(((init_v5)p5->init)(&ctx5, 0x55, &mask, "world", 1, 8, 3, logger), 0);
	IS(mask, 0);
	IS(p5->finalize(ctx5), 0);
}

int main(int argc, char **argv)
{
	(void)argc;
	for (int round = 0; round < 2; round++) { /* NCCL loads the tuner and the profiler each on their own */
		void *so = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
		if (!so) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
		IS(dlsym(so, "ncclTunerPlugin_v7") == NULL, 1); /* NCCL goes down to what is there */
		round ? profilers(so) : tuners(so);
		dlclose(so);
	}
	fputs(logged, stdout);
	return 0;
}
