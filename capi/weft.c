//go:build libweft

#define _GNU_SOURCE
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "weft.h"

#include "_cgo_export.h"

// A child made by fork has one thread and no Go runtime that works, so nothing of Go may be called there.
static volatile int forked;

static void in_child(void) { forked = 1; }

__attribute__((constructor)) static void loaded(void) { pthread_atfork(NULL, NULL, in_child); }

static int refuse_child(weft_error *e)
{
	if (e) {
		memset(e, 0, sizeof *e);
		e->code = WEFT_FORKED;
		e->rank = -1;
		snprintf(e->text, sizeof e->text,
			 "weft cannot be used in a child made by fork: load it after the fork, or start the child with exec or spawn");
	}
	return WEFT_FORKED;
}

// inside is how many calls of this thread are in Go: only such a thread is asked whether to give up.
static __thread int inside;
static int (*give_up)(void *);
static void *give_up_arg;

int weft_gives_up(void) { return inside && give_up ? give_up(give_up_arg) : 0; }

int weft_on_wait(int (*f)(void *), void *arg)
{
	give_up = NULL;
	give_up_arg = arg;
	give_up = f;
	return WEFT_OK;
}

#define GO(e, call)                    \
	do {                           \
		if (forked)            \
			return refuse_child(e); \
		inside++;              \
		int rc = (call);       \
		inside--;              \
		return rc;             \
	} while (0)

// Two runtimes of Go in one process take signals and thread-local memory from one another. A file that was made with Go has a
// note of its owner "Go" with the number 4.
struct other {
	uintptr_t own; // an address inside this library
	char path[512];
};

static int made_with_go(const struct dl_phdr_info *f)
{
	for (int i = 0; i < f->dlpi_phnum; i++) {
		const ElfW(Phdr) *h = &f->dlpi_phdr[i];
		if (h->p_type != PT_NOTE)
			continue;
		const char *at = (const char *)(f->dlpi_addr + h->p_vaddr), *end = at + h->p_memsz;
		while (at + sizeof(ElfW(Nhdr)) <= end) {
			const ElfW(Nhdr) *n = (const ElfW(Nhdr) *)at;
			const char *name = at + sizeof *n;
			if (n->n_type == 4 && n->n_namesz == 4 && name + 4 <= end && !memcmp(name, "Go", 3))
				return 1;
			at = name + (((size_t)n->n_namesz + 3) & ~(size_t)3) + (((size_t)n->n_descsz + 3) & ~(size_t)3);
		}
	}
	return 0;
}

static int look_for_other(struct dl_phdr_info *f, size_t size, void *arg)
{
	struct other *o = arg;
	(void)size;
	for (int i = 0; i < f->dlpi_phnum; i++) {
		const ElfW(Phdr) *h = &f->dlpi_phdr[i];
		if (h->p_type == PT_LOAD && o->own - (f->dlpi_addr + h->p_vaddr) < h->p_memsz)
			return 0; // this one
	}
	if (!made_with_go(f))
		return 0;
	snprintf(o->path, sizeof o->path, "%s", f->dlpi_name && f->dlpi_name[0] ? f->dlpi_name : "the program itself");
	return 1;
}

// refuse_other refuses a process that has another library of Go.
static int refuse_other(weft_error *e)
{
	struct other o = {(uintptr_t)(void *)&refuse_other, ""};
	if (!dl_iterate_phdr(look_for_other, &o))
		return WEFT_OK;
	if (e) {
		memset(e, 0, sizeof *e);
		e->code = WEFT_INVALID;
		e->rank = -1;
		snprintf(e->text, sizeof e->text,
			 "this process has another library made with Go, %s: two runtimes of Go in one process do not work; use it in a process of its own", o.path);
	}
	return WEFT_INVALID;
}

int weft_abi(void) { return WEFT_ABI; }
const char *weft_version(void)
{
	static char text[64];
	if (!forked && !text[0])
		goVersion(text, sizeof text);
	return text;
}

int weft_threads(int n, weft_error *e) { GO(e, goThreads(n, e)); }
int weft_join(const weft_config *cfg, weft_comm *c, weft_error *e)
{
	if (refuse_other(e)) {
		*c = 0;
		return WEFT_INVALID;
	}
	GO(e, goJoin((weft_config *)cfg, c, e));
}
int weft_close(weft_comm c, weft_error *e) { GO(e, goClose(c, e)); }
int weft_abort(weft_comm c, const char *why, weft_error *e) { GO(e, goAbort(c, (char *)why, e)); }
int weft_split(weft_comm c, int color, int key, weft_comm *sub, weft_error *e) { GO(e, goSplit(c, color, key, sub, e)); }
int weft_dup(weft_comm c, weft_comm *same, weft_error *e) { GO(e, goDup(c, same, e)); }
int weft_group(weft_comm c, const int32_t *ranks, int n, weft_exchange gather, void *arg, weft_comm *sub, weft_error *e)
{
	GO(e, goGroup(c, (int32_t *)ranks, n, gather, arg, sub, e));
}
int weft_listen(const char *address, char *got, int cap, weft_listener *l, weft_error *e) { GO(e, goListen((char *)address, got, cap, l, e)); }
int weft_unlisten(weft_listener l, weft_error *e) { GO(e, goUnlisten(l, e)); }
int weft_follow(weft_follower *f, weft_error *e) { GO(e, goFollow(f, e)); }
int weft_follow_next(weft_follower f, int64_t timeout_ms, weft_task *t, weft_error *e) { GO(e, goFollowNext(f, timeout_ms, t, e)); }
int weft_follow_done(weft_follower f, int last, int failed, const char *why, weft_error *e) { GO(e, goFollowDone(f, last, failed, (char *)why, e)); }
int weft_follow_leave(weft_follower f, weft_error *e) { GO(e, goFollowLeave(f, e)); }
int weft_follow_close(weft_follower f, weft_error *e) { GO(e, goFollowClose(f, e)); }
int weft_shrink(weft_comm c, weft_comm *left, weft_error *e) { GO(e, goShrink(c, left, e)); }
int weft_rank(weft_comm c) { return forked ? -1 : goRank(c); }
int weft_size(weft_comm c) { return forked ? -1 : goSize(c); }
int weft_get_info(weft_comm c, weft_info *info, weft_error *e) { GO(e, goInfo(c, info, e)); }
int weft_check(weft_comm c, weft_error *e) { GO(e, goCheck(c, e)); }
int weft_ended(weft_comm c, weft_error *e) { GO(e, goEnded(c, e)); }

int weft_run(weft_comm c, const weft_call *call, weft_status *status, weft_error *e) { GO(e, goRun(c, (weft_call *)call, status, e)); }
int weft_run_all(weft_comm c, const weft_call *calls, int n, weft_error *e) { GO(e, goRunAll(c, (weft_call *)calls, n, e)); }
int weft_start(weft_comm c, const weft_call *call, weft_request *r, weft_error *e) { GO(e, goStart(c, (weft_call *)call, r, e)); }
int weft_try(weft_comm c, const weft_call *call, weft_request *r, weft_error *e) { GO(e, goTry(c, (weft_call *)call, r, e)); }
int weft_test(weft_request r, weft_status *status, weft_error *e) { GO(e, goTest(r, status, e)); }
int weft_wait(weft_request r, int64_t timeout_ms, weft_status *status, weft_error *e) { GO(e, goWait(r, timeout_ms, status, e)); }
int weft_wait_any(const weft_request *r, int n, int64_t timeout_ms, int *which, weft_status *status, weft_error *e)
{
	GO(e, goWaitAny((weft_request *)r, n, timeout_ms, which, status, e));
}
int weft_cancel(weft_request r, weft_error *e) { GO(e, goCancel(r, e)); }
int weft_block(weft_request r, void *stream, weft_error *e) { GO(e, goBlock(r, (uintptr_t)stream, e)); }
int weft_enqueue(weft_comm c, const weft_call *call, weft_error *e) { GO(e, goEnqueue(c, (weft_call *)call, e)); }
int weft_prepare(weft_comm c, const weft_call *call, weft_prepared *p, weft_error *e) { GO(e, goPrepare(c, (weft_call *)call, p, e)); }
int weft_begin(weft_prepared p, weft_request *r, weft_error *e) { GO(e, goBegin(p, r, e)); }
int weft_forget(weft_prepared p, weft_error *e) { GO(e, goForget(p, e)); }
int weft_queue_new(weft_queue *q, weft_error *e) { GO(e, goQueueNew(q, e)); }
int weft_next(weft_queue q, int64_t timeout_ms, weft_request *r, weft_error *e) { GO(e, goNext(q, timeout_ms, r, e)); }
int weft_queue_free(weft_queue q, weft_error *e) { GO(e, goQueueFree(q, e)); }
int weft_tell(weft_request r, weft_queue q, weft_error *e) { GO(e, goTell(r, q, e)); }

#define CALL(name, ...) weft_call name = {.size = sizeof(weft_call), __VA_ARGS__}

int weft_barrier(weft_comm c, weft_error *e)
{
	CALL(k, .op = WEFT_BARRIER);
	return weft_run(c, &k, NULL, e);
}
int weft_all_reduce(weft_comm c, void *dst, const void *src, int64_t count, weft_type t, int op, weft_error *e)
{
	CALL(k, .op = WEFT_ALL_REDUCE, .dst = dst, .src = src, .count = count, .type = t, .reduce = op);
	return weft_run(c, &k, NULL, e);
}
int weft_reduce_scatter(weft_comm c, void *dst, const void *src, int64_t count, weft_type t, int op, weft_error *e)
{
	CALL(k, .op = WEFT_REDUCE_SCATTER, .dst = dst, .src = src, .count = count, .type = t, .reduce = op);
	return weft_run(c, &k, NULL, e);
}
int weft_all_gather(weft_comm c, void *dst, const void *src, int64_t count, weft_type t, weft_error *e)
{
	CALL(k, .op = WEFT_ALL_GATHER, .dst = dst, .src = src, .count = count, .type = t);
	return weft_run(c, &k, NULL, e);
}
int weft_broadcast(weft_comm c, void *buf, int64_t count, weft_type t, int root, weft_error *e)
{
	CALL(k, .op = WEFT_BROADCAST, .dst = buf, .count = count, .type = t, .root = root);
	return weft_run(c, &k, NULL, e);
}
int weft_reduce(weft_comm c, void *dst, const void *src, int64_t count, weft_type t, int op, int root, weft_error *e)
{
	CALL(k, .op = WEFT_REDUCE, .dst = dst, .src = src, .count = count, .type = t, .reduce = op, .root = root);
	return weft_run(c, &k, NULL, e);
}
int weft_all_to_all(weft_comm c, void *dst, const void *src, int64_t count, weft_type t, weft_error *e)
{
	CALL(k, .op = WEFT_ALL_TO_ALL, .dst = dst, .src = src, .count = count, .type = t);
	return weft_run(c, &k, NULL, e);
}
int weft_gather(weft_comm c, void *dst, const void *src, int64_t count, weft_type t, int root, weft_error *e)
{
	CALL(k, .op = WEFT_GATHER, .dst = dst, .src = src, .count = count, .type = t, .root = root);
	return weft_run(c, &k, NULL, e);
}
int weft_scatter(weft_comm c, void *dst, const void *src, int64_t count, weft_type t, int root, weft_error *e)
{
	CALL(k, .op = WEFT_SCATTER, .dst = dst, .src = src, .count = count, .type = t, .root = root);
	return weft_run(c, &k, NULL, e);
}
int weft_scan(weft_comm c, void *buf, int64_t count, weft_type t, int op, weft_error *e)
{
	CALL(k, .op = WEFT_SCAN, .dst = buf, .count = count, .type = t, .reduce = op);
	return weft_run(c, &k, NULL, e);
}
int weft_exscan(weft_comm c, void *buf, int64_t count, weft_type t, int op, weft_error *e)
{
	CALL(k, .op = WEFT_EXSCAN, .dst = buf, .count = count, .type = t, .reduce = op);
	return weft_run(c, &k, NULL, e);
}
void weft_fold(weft_combine f, void *acc, void *x, int64_t count, void *arg) { f(acc, x, count, arg); }
int weft_all_reduce_by(weft_comm c, void *buf, int64_t count, int64_t size, weft_combine f, void *arg, weft_error *e)
{
	GO(e, goFold(c, buf, count, size, f, arg, 0, e));
}
int weft_scan_by(weft_comm c, void *buf, int64_t count, int64_t size, weft_combine f, void *arg, weft_error *e)
{
	GO(e, goFold(c, buf, count, size, f, arg, 1, e));
}
int weft_reduce_scatter_v(weft_comm c, void *dst, const void *src, const int64_t *counts, weft_type t, int op, weft_error *e)
{
	CALL(k, .op = WEFT_REDUCE_SCATTER, .dst = dst, .src = src, .counts = counts, .type = t, .reduce = op);
	return weft_run(c, &k, NULL, e);
}
int weft_all_gather_v(weft_comm c, void *dst, const void *src, const int64_t *counts, weft_type t, weft_error *e)
{
	CALL(k, .op = WEFT_ALL_GATHER, .dst = dst, .src = src, .counts = counts, .type = t);
	return weft_run(c, &k, NULL, e);
}
int weft_gather_v(weft_comm c, void *dst, const void *src, const int64_t *counts, weft_type t, int root, weft_error *e)
{
	CALL(k, .op = WEFT_GATHER, .dst = dst, .src = src, .counts = counts, .type = t, .root = root);
	return weft_run(c, &k, NULL, e);
}
int weft_scatter_v(weft_comm c, void *dst, const void *src, const int64_t *counts, weft_type t, int root, weft_error *e)
{
	CALL(k, .op = WEFT_SCATTER, .dst = dst, .src = src, .counts = counts, .type = t, .root = root);
	return weft_run(c, &k, NULL, e);
}
int weft_all_to_all_v(weft_comm c, void *dst, const int64_t *recv_counts, const void *src, const int64_t *send_counts, weft_type t, weft_error *e)
{
	CALL(k, .op = WEFT_ALL_TO_ALL, .dst = dst, .src = src, .counts = recv_counts, .send_counts = send_counts, .type = t);
	return weft_run(c, &k, NULL, e);
}
int weft_send(weft_comm c, const void *buf, int64_t count, weft_type t, int to, int tag, weft_error *e)
{
	CALL(k, .op = WEFT_SEND, .src = buf, .count = count, .type = t, .peer = to, .tag = tag);
	return weft_run(c, &k, NULL, e);
}
int weft_recv(weft_comm c, void *buf, int64_t count, weft_type t, int from, int tag, weft_status *status, weft_error *e)
{
	CALL(k, .op = WEFT_RECV, .dst = buf, .count = count, .type = t, .peer = from, .tag = tag);
	return weft_run(c, &k, status, e);
}
int weft_probe(weft_comm c, int from, int tag, weft_status *status, weft_error *e)
{
	CALL(k, .op = WEFT_PROBE, .peer = from, .tag = tag);
	return weft_run(c, &k, status, e);
}
int weft_try_probe(weft_comm c, int from, int tag, weft_status *status, weft_error *e) { GO(e, goTryProbe(c, from, tag, status, e)); }

int weft_alloc(weft_comm c, int64_t bytes, void **p, weft_error *e) { GO(e, goAlloc(c, bytes, p, e)); }
int weft_free(weft_comm c, void *p, weft_error *e) { GO(e, goFree(c, p, e)); }
int weft_key_of(weft_comm c, const void *p, int64_t bytes, weft_key *key, weft_error *e) { GO(e, goKeyOf(c, (void *)p, bytes, key, e)); }
int weft_notices(weft_comm c, int32_t *from, uint32_t *values, int cap, int *n, weft_error *e) { GO(e, goNotices(c, from, values, cap, n, e)); }

int weft_way(weft_comm c, char *buf, int64_t cap, int64_t *need, weft_error *e) { GO(e, goText(c, 3, buf, cap, need, e)); }
int weft_explain(weft_comm c, char *buf, int64_t cap, int64_t *need, weft_error *e) { GO(e, goText(c, 0, buf, cap, need, e)); }
int weft_flight_json(weft_comm c, char *buf, int64_t cap, int64_t *need, weft_error *e) { GO(e, goText(c, 1, buf, cap, need, e)); }
int weft_counters_json(weft_comm c, char *buf, int64_t cap, int64_t *need, weft_error *e) { GO(e, goText(c, 2, buf, cap, need, e)); }

int weft_xfer_open(const weft_xfer_config *cfg, weft_xfer_agent *a, weft_error *e) { GO(e, goXferOpen((weft_xfer_config *)cfg, a, e)); }
int weft_xfer_close(weft_xfer_agent a, weft_error *e) { GO(e, goXferClose(a, e)); }
int weft_xfer_alloc(weft_xfer_agent a, int64_t bytes, void **p, weft_error *e) { GO(e, goXferAlloc(a, bytes, p, e)); }
int weft_xfer_free_memory(weft_xfer_agent a, void *p, weft_error *e) { GO(e, goXferFreeMemory(a, p, e)); }
int weft_xfer_register(weft_xfer_agent a, const char *name, void *p, int64_t bytes, int access, weft_region *r, weft_error *e)
{
	GO(e, goXferRegister(a, (char *)name, p, bytes, access, r, e));
}
int weft_xfer_register_file(weft_xfer_agent a, const char *name, const char *file, int64_t bytes, int access, weft_region *r, weft_error *e)
{
	GO(e, goXferRegisterFile(a, (char *)name, (char *)file, bytes, access, r, e));
}
int weft_xfer_register_object(weft_xfer_agent a, const char *name, const char *place, const char *key, int64_t bytes, int access, weft_region *r, weft_error *e)
{
	GO(e, goXferRegisterObject(a, (char *)name, (char *)place, (char *)key, bytes, access, r, e));
}
int weft_xfer_register_gpu(weft_xfer_agent a, const char *name, int gpu, uint64_t address, int64_t bytes, int access, weft_region *r, weft_error *e)
{
	GO(e, goXferRegisterGPU(a, (char *)name, gpu, address, bytes, access, r, e));
}
int weft_xfer_reclaim(weft_region r, int64_t offset, int64_t bytes, int64_t timeout_ms, weft_error *e) { GO(e, goXferReclaim(r, offset, bytes, timeout_ms, e)); }
int weft_xfer_publish(weft_region r, int64_t offset, int64_t bytes, weft_error *e) { GO(e, goXferPublish(r, offset, bytes, e)); }
int weft_xfer_release(weft_region r, int64_t timeout_ms, weft_error *e) { GO(e, goXferRelease(r, timeout_ms, e)); }
int weft_xfer_describe(weft_xfer_agent a, char *buf, int64_t cap, int64_t *need, weft_error *e) { GO(e, goXferDescribe(a, buf, cap, need, e)); }
int weft_xfer_peer_open(weft_xfer_agent a, const char *description, int64_t bytes, weft_xfer_peer *p, weft_error *e)
{
	GO(e, goXferPeerOpen(a, (char *)description, bytes, p, e));
}
int weft_xfer_meet(weft_xfer_agent a, const char *name, const char *address, int64_t timeout_ms, weft_xfer_peer *p, weft_error *e)
{
	GO(e, goXferMeet(a, (char *)name, (char *)address, timeout_ms, p, e));
}
int weft_xfer_told_open(int64_t *t, weft_error *e) { GO(e, goToldOpen(t, e)); }
int weft_xfer_told(int64_t t, const char *line, int64_t bytes, char *buf, int64_t cap, int64_t *need, weft_error *e)
{
	GO(e, goTold(t, (void *)line, bytes, buf, cap, need, e));
}
int weft_xfer_told_post(int64_t t, const weft_told_move *m, weft_told_state *s, weft_error *e) { GO(e, goToldPost(t, (weft_told_move *)m, s, e)); }
int weft_xfer_told_look(int64_t t, int64_t request, weft_told_state *s, weft_error *e) { GO(e, goToldLook(t, request, s, e)); }
int weft_xfer_told_close(int64_t t, weft_error *e) { GO(e, goToldClose(t, e)); }
int weft_xfer_forget(weft_xfer_peer p, weft_error *e) { GO(e, goXferForget(p, e)); }
int weft_xfer_region(weft_xfer_peer p, const char *name, weft_region *r, int64_t *bytes, weft_error *e) { GO(e, goXferRegion(p, (char *)name, r, bytes, e)); }
int weft_xfer_prepare(weft_xfer_agent a, weft_xfer_peer p, const weft_xfer_desc *d, int64_t n, weft_xfer_list *l, weft_error *e)
{
	GO(e, goXferPrepare(a, p, (weft_xfer_desc *)d, n, l, e));
}
int weft_xfer_unprepare(weft_xfer_list l, weft_error *e) { GO(e, goXferUnprepare(l, e)); }
int weft_xfer_post(weft_xfer_agent a, const weft_xfer_move *m, weft_xfer_request *t, weft_error *e) { GO(e, goXferPost(a, (weft_xfer_move *)m, t, e)); }
int weft_xfer_poll(weft_xfer_request t, weft_xfer_status *s, weft_error *e) { GO(e, goXferWait(t, 0, s, e)); }
int weft_xfer_wait(weft_xfer_request t, int64_t timeout_ms, weft_xfer_status *s, weft_error *e) { GO(e, goXferWait(t, timeout_ms, s, e)); }
int weft_xfer_cancel(weft_xfer_request t, weft_error *e) { GO(e, goXferCancel(t, e)); }
int weft_xfer_free(weft_xfer_request t, weft_error *e) { GO(e, goXferFree(t, e)); }
int weft_xfer_notify(weft_xfer_agent a, weft_xfer_peer p, const void *data, int64_t bytes, weft_error *e) { GO(e, goXferNotify(a, p, (void *)data, bytes, e)); }
int weft_xfer_notice(weft_xfer_agent a, int64_t timeout_ms, char from[208], void *buf, int64_t cap, int64_t *need, weft_error *e)
{
	GO(e, goXferNotice(a, timeout_ms, from, buf, cap, need, e));
}

int weft_kv_open(const char *address, const char *token, const char *chain, weft_kv *k, weft_error *e)
{
	GO(e, goKVOpen((char *)address, (char *)token, (char *)chain, k, e));
}
int weft_kv_close(weft_kv k, weft_error *e) { GO(e, goKVClose(k, e)); }
int weft_kv_hashes(const char *convention, const char *seed, int block_tokens, const uint32_t *tokens, int64_t n, const char *salt, uint8_t *hashes, int64_t *count, char print[64], weft_error *e)
{
	GO(e, goKVHashes((char *)convention, (char *)seed, block_tokens, (uint32_t *)tokens, n, (char *)salt, hashes, count, print, e));
}
int weft_kv_match(weft_kv k, const uint8_t *hashes, int64_t n, int64_t *blocks, weft_error *e) { GO(e, goKVMatch(k, (uint8_t *)hashes, n, blocks, e)); }
int weft_kv_get(weft_kv k, const uint8_t *hashes, int64_t n, int64_t from, void *dst, int64_t stride, int64_t *sizes, int64_t *got, weft_error *e)
{
	GO(e, goKVGet(k, (uint8_t *)hashes, n, from, dst, stride, sizes, got, e));
}
int weft_kv_put(weft_kv k, const uint8_t *hashes, int64_t n, int64_t from, const void *src, int64_t stride, const int64_t *sizes, int64_t *stored, weft_error *e)
{
	GO(e, goKVPut(k, (uint8_t *)hashes, n, from, (void *)src, stride, (int64_t *)sizes, stored, e));
}

// Python's interpreter, as its package weft hands it over: a blocking call asks it for signals, and keeps the exception that a
// handler raised until the call has returned.
static struct {
	int (*ensure)(void);
	void (*release)(int);
	int (*check)(void);
	void (*fetch)(void **, void **, void **);
	void (*restore)(void *, void *, void *);
} python;
static __thread void *raised[3];

static int python_gives_up(void *arg)
{
	(void)arg;
	int state = python.ensure();
	int up = python.check();
	if (up)
		python.fetch(&raised[0], &raised[1], &raised[2]);
	python.release(state);
	return up;
}

int weft_python(void *ensure, void *release, void *check, void *fetch, void *restore)
{
	python.ensure = (int (*)(void))ensure;
	python.release = (void (*)(int))release;
	python.check = (int (*)(void))check;
	python.fetch = (void (*)(void **, void **, void **))fetch;
	python.restore = (void (*)(void *, void *, void *))restore;
	return weft_on_wait(python_gives_up, NULL);
}

// Called with the interpreter's lock, after a call that was interrupted.
void weft_python_restore(void)
{
	if (raised[0])
		python.restore(raised[0], raised[1], raised[2]);
	raised[0] = raised[1] = raised[2] = NULL;
}
