/* A driver without a GPU: memory of the "GPU" is memory of the host, kernels are not run but looked at. It has the signatures of
   NVIDIA's manual, so that what Go passes is checked as C receives it: structs by value, eleven arguments, pointers to pointers.
   -DVERSION, -DINIT, -DJIT, -DGPUS, -DNO_LAUNCH, -DNO_VALUES make the drivers that people meet. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef VERSION
#define VERSION 12040
#endif
#ifndef INIT
#define INIT 0
#endif
#ifndef JIT
#define JIT 0
#endif
#ifndef GPUS
#define GPUS 2
#endif

typedef int R;
typedef uint64_t P;
typedef struct { char reserved[64]; } H;

/* Callers have threads, as with the real driver: what is behind a table looks at it ALONE. */
static pthread_mutex_t tables = PTHREAD_MUTEX_INITIALIZER;
static void others(int *locked) { pthread_mutex_unlock(&tables); }
#define ALONE __attribute__((cleanup(others))) int locked = pthread_mutex_lock(&tables)

static _Atomic int calls; /* of what a copy takes: contexts, copies, numbers and questions */
int test_calls(void) { return calls; }
static __thread int current; /* contexts pushed and not popped: they are a thread's */
static uint64_t ids = 7;
static struct { P at; size_t n; uint64_t id; } got[64];

R cuInit(unsigned f) { return f ? 1 : INIT; }
R cuDriverGetVersion(int *v) { *v = VERSION; return 0; }
R cuDeviceGetCount(int *n) { *n = GPUS; return 0; }
R cuDeviceGet(int *d, int i) { *d = i + 40; return i < GPUS ? 0 : 101; }
R cuDeviceGetName(char *b, int n, int d) { strncpy(b, d == 40 ? "test 0" : "test 1", n); return 0; }
R cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 16 ? 132 : a == 75 ? 9 : 0; return d >= 40 ? 0 : 101; }
R cuDeviceGetUuid(char *b, int d) { memset(b, d, 16); return 0; }
R cuDeviceTotalMem_v2(size_t *n, int d) { *n = (size_t)141 << 30; return d >= 40 ? 0 : 101; }
R cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)(uintptr_t)(1000 + d); return 0; }
R cuDevicePrimaryCtxRelease_v2(int d) { return current ? 201 : d >= 40 ? 0 : 101; }
R cuCtxPushCurrent_v2(void *c) { calls++; current++; return (uintptr_t)c < 1000 ? 201 : 0; }
R cuCtxPopCurrent_v2(void **c) { calls++; *c = 0; current--; return 0; }

R cuMemAlloc_v2(P *p, size_t n) {
	if (!current) return 201;
	if (n > 1 << 24) return 2;
	*p = (P)(uintptr_t)aligned_alloc(256, (n + 255) & ~(size_t)255);
	ALONE;
	for (int i = 0; i < 64; i++) if (!got[i].at) { got[i].at = *p; got[i].n = n; got[i].id = ids++; break; }
	return 0;
}
R cuMemFree_v2(P p) {
	ALONE;
	for (int i = 0; i < 64; i++) if (got[i].at == p) { got[i].at = 0; free((void *)(uintptr_t)p); return 0; }
	return 1;
}
static struct { char *at; size_t n; } pinned[256];
R cuMemHostRegister_v2(void *p, size_t n, unsigned f) {
	int free = -1;
	if (!p || !n || f != 3) return 1;
	ALONE;
	for (int i = 255; i >= 0; i--) {
		if (!pinned[i].at) free = i;
		else if ((char *)p < pinned[i].at + pinned[i].n && pinned[i].at < (char *)p + n) return 712;
	}
	if (free < 0) return 2;
	pinned[free].n = n; pinned[free].at = p;
	return 0;
}
R cuMemHostUnregister(void *p) {
	ALONE;
	for (int i = 0; p && i < 256; i++) if (pinned[i].at == p) { pinned[i].at = 0; return 0; }
	return 713;
}
R cuMemHostGetDevicePointer_v2(P *d, void *p, unsigned f) { calls++; *d = (P)(uintptr_t)p; return f; }
R cuMemcpyHtoDAsync_v2(P d, const void *s, size_t n, void *q) { calls++; memcpy((void *)(uintptr_t)d, s, n); return q ? 0 : 1; }
R cuMemcpyDtoHAsync_v2(void *d, P s, size_t n, void *q) { calls++; memcpy(d, (void *)(uintptr_t)s, n); return q ? 0 : 1; }
R cuMemcpyDtoDAsync_v2(P d, P s, size_t n, void *q) { calls++; memmove((void *)(uintptr_t)d, (void *)(uintptr_t)s, n); return q ? 0 : 1; }

/* Addresses 0x5000... are kinds of memory that nobody got: 0x51 mapped, 0x52 of a pool, 0x53 managed, 0x54 of GPU 1. */
R cuPointerGetAttributes(unsigned n, const int *a, void **to, P p) {
	ALONE;
	calls++;
	P start = 0; size_t bytes = 0; uint64_t id = 0; int kind = (int)(p >> 40);
	for (int i = 0; i < 64; i++)
		if (got[i].at && p >= got[i].at && p < got[i].at + got[i].n) { start = got[i].at; bytes = got[i].n; id = got[i].id; kind = 0x50; }
	if (kind > 0x50) { start = p & ~(P)0xfffff; bytes = 1 << 20; id = 3; }
	for (int i = 0; i < 256; i++)
		if (pinned[i].at && (char *)p >= pinned[i].at && (char *)p < pinned[i].at + pinned[i].n) { start = (P)pinned[i].at; bytes = pinned[i].n; kind = 0x10; }
	for (unsigned i = 0; i < n; i++) switch (a[i]) {
	case 2: *(unsigned *)to[i] = kind >= 0x50 && kind <= 0x54 ? 2 : kind == 0x10; break;
	case 7: *(uint64_t *)to[i] = id; break;
	case 8: *(unsigned *)to[i] = kind == 0x53; break;
	case 9: *(int *)to[i] = kind == 0x54 ? 1 : 0; break;
	case 10: *(unsigned *)to[i] = kind == 0x50 || kind == 0x54; break;
	case 11: *(P *)to[i] = start; break;
	case 12: *(size_t *)to[i] = bytes; break;
	case 17: *(void **)to[i] = kind == 0x52 ? (void *)1 : 0; break;
	default: return 1;
	}
	return 0;
}

R cuIpcGetMemHandle(H *h, P p) {
	for (int i = 0; i < 64; i++) h->reserved[i] = (char)i;
	memcpy(h->reserved + 8, &p, 8);
	return 0;
}
R cuIpcOpenMemHandle_v2(P *p, H h, unsigned flags) {
	for (int i = 0; i < 64; i++) if ((i < 8 || i > 15) && h.reserved[i] != (char)i) return 400;
	memcpy(p, h.reserved + 8, 8);
	*p += 1 << 30;
	return flags == 1 && current ? 0 : 1;
}
R cuIpcCloseMemHandle(P p) { return current && p > (1 << 30) ? 0 : 1; }

R cuStreamCreate(void **s, unsigned f) { *s = (void *)0x77; return f == 1 ? 0 : 1; }
R cuStreamDestroy_v2(void *s) { return s == (void *)0x77 ? 0 : 400; }
R cuStreamQuery(void *s) { calls++; return s == (void *)0x77 || s == (void *)0x55 || !s ? 0 : s == (void *)0x56 ? 600 : 400; } /* 0x55 is idle, 0x56 busy */
R cuStreamSynchronize(void *s) { return s == (void *)0x77 ? 0 : 400; }
static void *recorded[8192]; /* streams, by event */
static _Atomic int nevents;
static int known(void *e) { return (uintptr_t)e > 0x8000 && (uintptr_t)e <= 0x8000 + nevents; }
R cuEventCreate(void **e, unsigned f) { *e = (void *)(uintptr_t)(0x8000 + ++nevents); return f == 2 ? 0 : 1; }
R cuEventDestroy_v2(void *e) { return known(e) ? 0 : 400; }
R cuEventRecord(void *e, void *s) { if (!known(e)) return 400; recorded[(uintptr_t)e - 0x8000] = s; return 0; }
static void *follower, *followed;
R cuStreamWaitEvent(void *s, void *e, unsigned f) { ALONE; if (!known(e)) return 400; follower = s; followed = recorded[(uintptr_t)e - 0x8000]; return f; }
/* Which stream the last wait for an event made wait, and for which one. */
void *test_follower(void) { return follower; }
void *test_followed(void) { return followed; }

#ifndef NO_VALUES
static struct { void *s; P at; uint32_t v; } waits[16];
static int nwaits;
R cuStreamWriteValue32_v2(void *s, P at, uint32_t v, unsigned f) { calls++; *(volatile uint32_t *)(uintptr_t)at = v; return f; }
R cuStreamWaitValue32_v2(void *s, P at, uint32_t v, unsigned f) {
	ALONE;
	waits[nwaits].s = s; waits[nwaits].at = at; waits[nwaits].v = v; nwaits = (nwaits + 1) % 16;
	return f;
}
/* Whether the last wait would be over. */
int test_waits_over(void) { int i = (nwaits + 15) % 16; return (int32_t)(*(uint32_t *)(uintptr_t)waits[i].at - waits[i].v) >= 0; }
#endif

R cuModuleLoadDataEx(void **m, const char *text, unsigned n, const int *options, void **values) {
	if (JIT || strstr(text, "broken")) {
		if (n == 2 && options[0] == 5 && options[1] == 6 && (size_t)values[1] > 20) strcpy(values[0], "ptxas: line 3; it is broken");
		return JIT ? JIT : 218;
	}
	*m = (void *)0x99;
	return current && strstr(text, ".visible .entry weft(") ? 0 : 1;
}
R cuModuleGetFunction(void **f, void *m, const char *name) { *f = (void *)0xaa; return m == (void *)0x99 && !strcmp(name, "weft") ? 0 : 500; }
R cuModuleUnload(void *m) { return m == (void *)0x99 ? 0 : 400; }

#ifndef NO_LAUNCH
static unsigned char launched[4096];
static unsigned geometry[7];
R cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *s, void **params, void **extra) {
	if (f != (void *)0xaa || s != (void *)0x77 || params || !extra) return 1;
	if (extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4]) return 1;
	size_t n = *(size_t *)extra[3];
	if (n > sizeof launched) return 1;
	ALONE;
	memcpy(launched, extra[1], n);
	unsigned g[7] = {gx, gy, gz, bx, by, bz, shared};
	memcpy(geometry, g, sizeof g);
	if (n == 12) { /* the kernel that copies pieces; others compute nothing */
		struct { void *to, *from; uint64_t bytes; } *piece;
		uint32_t pieces;
		memcpy(&piece, launched, 8);
		memcpy(&pieces, launched + 8, 4);
		for (; pieces; pieces--, piece++) memcpy(piece->to, piece->from, piece->bytes);
	}
	return 0;
}
/* A word of the last launch: of its parameters, or, from 4096 on, of its geometry. */
uint64_t test_launched(uint64_t at) {
	uint64_t v = 0;
	if (at >= 4096) return geometry[at - 4096];
	memcpy(&v, launched + at, 8);
	return v;
}
#endif
R cuGetErrorName(R e, const char **s) { *s = e == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : e == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_OTHER"; return 0; }
R cuGetErrorString(R e, const char **s) { *s = e == 2 ? "out of memory" : "something"; return 0; }
