/* Every call of weft.h on all ranks, each against what it must give. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "weft.h"

static weft_error e;
static weft_comm c;
static int rank, ranks;

static void ok(int code, int line)
{
	if (code == WEFT_OK)
		return;
	fprintf(stderr, "rank %d line %d: code %d: %s\n", rank, line, code, e.text);
	exit(1);
}

static void is(double x, double want, const char *what, int line)
{
	if (x == want)
		return;
	fprintf(stderr, "rank %d line %d: %s is %g, not %g (%s)\n", rank, line, what, x, want, e.text);
	exit(1);
}

#define OK(x) ok(x, __LINE__)
#define IS(x, want) is((double)(x), (double)(want), #x, __LINE__)

enum { N = 5, MAX = 8 };

static void collectives(void)
{
	int64_t sum = (int64_t)ranks * (ranks - 1) / 2;
	float in[N * MAX], out[N * MAX];
	int64_t counts[MAX], sends[MAX];
	int total = 0;
	for (int i = 0; i < ranks; i++)
		counts[i] = i + 1, total += i + 1;

	for (int i = 0; i < N; i++)
		in[i] = (float)(rank + i);
	OK(weft_all_reduce(c, out, in, N, WEFT_FLOAT32, WEFT_SUM, &e));
	for (int i = 0; i < N; i++)
		IS(out[i], sum + ranks * i), IS(in[i], rank + i);
	OK(weft_all_reduce(c, out, in, N, WEFT_FLOAT32, WEFT_AVG, &e));
	IS(out[2], (float)(sum + ranks * 2) / ranks);

	weft_call scaled = {.size = sizeof scaled, .op = WEFT_ALL_REDUCE, .dst = out, .src = in, .count = N, .type = WEFT_FLOAT32, .reduce = WEFT_PREMULSUM, .factor = 2};
	OK(weft_run(c, &scaled, NULL, &e));
	IS(out[0], 2 * sum);

	for (int i = 0; i < N * ranks; i++)
		in[i] = (float)(i + rank);
	OK(weft_reduce_scatter(c, out, in, N, WEFT_FLOAT32, WEFT_SUM, &e));
	IS(out[1], ranks * (rank * N + 1) + sum);
	OK(weft_all_gather(c, out, in, N, WEFT_FLOAT32, &e));
	for (int r = 0; r < ranks; r++)
		IS(out[r * N + 3], r + 3);
	OK(weft_all_to_all(c, out, in, N, WEFT_FLOAT32, &e));
	for (int r = 0; r < ranks; r++)
		IS(out[r * N], rank * N + r);
	OK(weft_gather(c, out, in, 2, WEFT_FLOAT32, 1, &e));
	if (rank == 1)
		for (int r = 0; r < ranks; r++)
			IS(out[2 * r + 1], r + 1);
	OK(weft_scatter(c, out, in, 2, WEFT_FLOAT32, 0, &e));
	IS(out[1], 2 * rank + 1);
	OK(weft_reduce(c, out, in, N, WEFT_FLOAT32, WEFT_MAX, 1, &e));
	if (rank == 1)
		IS(out[0], ranks - 1);
	out[0] = (float)rank;
	OK(weft_broadcast(c, out, 1, WEFT_FLOAT32, 1, &e));
	IS(out[0], 1);
	out[0] = 1;
	OK(weft_scan(c, out, 1, WEFT_FLOAT32, WEFT_SUM, &e));
	IS(out[0], rank + 1);
	out[0] = 1;
	OK(weft_exscan(c, out, 1, WEFT_FLOAT32, WEFT_SUM, &e));
	IS(out[0], rank ? rank : 1);

	/* blocks of different lengths */
	float v[MAX * MAX], w[MAX * MAX];
	for (int i = 0; i < total; i++)
		v[i] = (float)rank;
	OK(weft_all_gather_v(c, w, v, counts, WEFT_FLOAT32, &e));
	for (int r = 0, at = 0; r < ranks; at += (int)counts[r++])
		IS(w[at], r);
	OK(weft_reduce_scatter_v(c, w, v, counts, WEFT_FLOAT32, WEFT_SUM, &e));
	IS(w[rank], sum);
	OK(weft_gather_v(c, w, v, counts, WEFT_FLOAT32, 0, &e));
	if (rank == 0)
		IS(w[total - 1], ranks - 1);
	for (int i = 0; i < total; i++)
		v[i] = (float)i;
	OK(weft_scatter_v(c, w, v, counts, WEFT_FLOAT32, 0, &e));
	IS(w[0], rank * (rank + 1) / 2);
	for (int r = 0; r < ranks; r++)
		sends[r] = counts[r], counts[r] = rank + 1; /* rank r gets r+1 elements from everybody */
	for (int r = 0, at = 0; r < ranks; r++)
		for (int k = 0; k <= r; k++)
			v[at++] = (float)(100 * rank + r);
	OK(weft_all_to_all_v(c, w, counts, v, sends, WEFT_FLOAT32, &e));
	for (int r = 0; r < ranks; r++)
		IS(w[r * (rank + 1)], 100 * r + rank);

	/* types that weft makes of others */
	unsigned char b[2] = {rank == 0, 0};
	OK(weft_all_reduce(c, b, b, 2, WEFT_BOOL, WEFT_SUM, &e));
	IS(b[0], 1), IS(b[1], 0);
	double z[2] = {rank, 1};
	OK(weft_all_reduce(c, z, z, 1, WEFT_COMPLEX128, WEFT_SUM, &e));
	IS(z[0], sum), IS(z[1], ranks);
	weft_type all[] = {WEFT_INT8, WEFT_INT16, WEFT_INT32, WEFT_INT64, WEFT_UINT8, WEFT_UINT16, WEFT_UINT32, WEFT_UINT64,
			   WEFT_FLOAT16, WEFT_FLOAT32, WEFT_FLOAT64, WEFT_BFLOAT16, WEFT_FLOAT8_E4M3, WEFT_FLOAT8_E5M2};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		char zero[64] = {0};
		OK(weft_all_reduce(c, zero, zero, 3, all[i], WEFT_SUM, &e));
		IS(zero[0], 0);
	}
	OK(weft_all_reduce(c, NULL, NULL, 0, WEFT_FLOAT32, WEFT_SUM, &e)); /* nothing takes part, too */
}

struct at {
	double value;
	int64_t where;
};

/* least keeps the lesser of each pair, and the lower place of equal ones. */
static void least(void *acc, const void *x, int64_t count, void *arg)
{
	struct at *a = acc;
	const struct at *b = x;
	++*(int *)arg;
	for (int64_t i = 0; i < count; i++)
		if (b[i].value < a[i].value || (b[i].value == a[i].value && b[i].where < a[i].where))
			a[i] = b[i];
}

static void functions(void)
{
	struct at x[7];
	int called = 0;
	for (int i = 0; i < 7; i++)
		x[i].value = (rank * 3 + i * 5) % 4, x[i].where = rank;
	OK(weft_all_reduce_by(c, x, 7, sizeof *x, least, &called, &e));
	for (int i = 0; i < 7; i++) {
		int best = 0;
		for (int r = 1; r < ranks; r++)
			if ((r * 3 + i * 5) % 4 < (best * 3 + i * 5) % 4)
				best = r;
		IS(x[i].where, best), IS(x[i].value, (best * 3 + i * 5) % 4);
	}
	struct at y = {(double)-rank, rank};
	OK(weft_scan_by(c, &y, 1, sizeof y, least, &called, &e));
	IS(y.where, rank);
	OK(weft_all_reduce_by(c, NULL, 0, 8, least, &called, &e));
	IS(weft_all_reduce_by(c, x, 7, 0, least, &called, &e), WEFT_INVALID);
	IS(weft_all_reduce_by(c, x, 7, 8, NULL, &called, &e), WEFT_INVALID);
	OK(weft_barrier(c, &e));
}

static void started(void)
{
	double x[3] = {1, 2, 3}, y = rank, big[20000];
	weft_call k = {.size = sizeof k, .op = WEFT_ALL_REDUCE, .dst = x, .src = x, .count = 3, .type = WEFT_FLOAT64, .reduce = WEFT_SUM};
	weft_call m = {.size = sizeof m, .op = WEFT_ALL_REDUCE, .dst = &y, .src = &y, .count = 1, .type = WEFT_FLOAT64, .reduce = WEFT_MAX};
	weft_call l = {.size = sizeof l, .op = WEFT_ALL_REDUCE, .dst = big, .src = big, .count = 20000, .type = WEFT_FLOAT64, .reduce = WEFT_SUM};
	for (int i = 0; i < 20000; i++)
		big[i] = 1;
	weft_request r[3];
	OK(weft_start(c, &k, &r[0], &e));
	OK(weft_start(c, &m, &r[1], &e));
	OK(weft_start(c, &l, &r[2], &e));
	for (int left = 3; left; left--) {
		int which;
		OK(weft_wait_any(r, 3, 30000, &which, NULL, &e));
		r[which] = 0;
	}
	IS(x[2], 3 * ranks), IS(y, ranks - 1), IS(big[19999], ranks);
	IS(weft_wait(r[0] + 12345, 0, NULL, &e), WEFT_INVALID);

	/* a queue, and polling */
	weft_queue q;
	weft_request got;
	OK(weft_queue_new(&q, &e));
	IS(weft_next(q, 0, &got, &e), WEFT_PENDING);
	k.queue = q;
	OK(weft_start(c, &k, &r[0], &e));
	OK(weft_next(q, 30000, &got, &e));
	IS(got, r[0]);
	OK(weft_test(got, NULL, &e));
	OK(weft_queue_free(q, &e));
	k.queue = 0;
	OK(weft_start(c, &k, &r[0], &e));
	int code;
	while ((code = weft_test(r[0], NULL, &e)) == WEFT_PENDING)
		usleep(100);
	OK(code);

	/* prepared, and several at once */
	weft_prepared p;
	OK(weft_prepare(c, &m, &p, &e));
	for (int i = 0; i < 3; i++) {
		y = rank + i;
		OK(weft_begin(p, &r[0], &e));
		OK(weft_wait(r[0], -1, NULL, &e));
		IS(y, ranks - 1 + i);
	}
	OK(weft_forget(p, &e));
	int right = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
	static double there[1 << 16], here[1 << 16];
	there[77] = rank;
	weft_call both[2] = {{.size = sizeof *both, .op = WEFT_SEND, .src = there, .count = 1 << 16, .type = WEFT_FLOAT64, .peer = right, .tag = WEFT_NO_TAG},
			     {.size = sizeof *both, .op = WEFT_RECV, .dst = here, .count = 1 << 16, .type = WEFT_FLOAT64, .peer = before, .tag = WEFT_NO_TAG}};
	OK(weft_run_all(c, both, 2, &e));
	IS(here[77], before);
	weft_call exchange = {.size = sizeof exchange, .op = WEFT_SEND_RECV, .dst = here, .count = 9, .src = there, .send_count = 9, .type = WEFT_FLOAT64, .peer = right, .from = before};
	OK(weft_run(c, &exchange, NULL, &e));
	IS(here[0], 0);
}

static void messages(void)
{
	int32_t x = 10 + rank, y = -1;
	weft_status s;
	int right = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
	/* started sends with one tag keep their order */
	weft_request r[40];
	static int32_t many[20], got[20];
	for (int i = 0; i < 20; i++) {
		many[i] = 100 * rank + i;
		weft_call k = {.size = sizeof k, .op = WEFT_SEND, .src = &many[i], .count = 1, .type = WEFT_INT32, .peer = right, .tag = 3};
		OK(weft_start(c, &k, &r[i], &e));
		weft_call g = {.size = sizeof g, .op = WEFT_RECV, .dst = &got[i], .count = 1, .type = WEFT_INT32, .peer = before, .tag = 3};
		OK(weft_start(c, &g, &r[20 + i], &e));
	}
	for (int i = 0; i < 40; i++) {
		OK(weft_wait(r[i], -1, &s, &e));
		if (i >= 20)
			IS(s.from, before), IS(s.tag, 3), IS(s.count, 1), IS(got[i - 20], 100 * before + i - 20);
	}
	OK(weft_barrier(c, &e)); /* a receive from any rank would take what belongs to the next part */
	if (rank > 0)
		OK(weft_send(c, &x, 1, WEFT_INT32, 0, 40 + rank, &e));
	for (int i = 1; rank == 0 && i < ranks; i++) {
		weft_status seen;
		OK(weft_probe(c, WEFT_ANY, WEFT_ANY, &seen, &e));
		IS(seen.count, 1);
		OK(weft_recv(c, &y, 1, WEFT_INT32, seen.from, seen.tag, &s, &e));
		IS(s.from, seen.from), IS(y, 10 + s.from), IS(s.tag, 40 + s.from);
	}
	OK(weft_barrier(c, &e));
	IS(weft_try_probe(c, WEFT_ANY, WEFT_ANY, &s, &e), WEFT_PENDING);
}

static void memory(void)
{
	void *p;
	weft_key mine, keys[MAX];
	OK(weft_alloc(c, 4096, &p, &e));
	uint64_t *words = p;
	OK(weft_key_of(c, p, 4096, &mine, &e));
	OK(weft_all_gather(c, keys, &mine, 1, WEFT_UINT64, &e));
	uint64_t was, value = 1000 + (uint64_t)rank;
	weft_call add = {.size = sizeof add, .op = WEFT_FETCH_ADD, .key = keys[0], .operand = 3, .was = &was, .peer = 0};
	OK(weft_run(c, &add, NULL, &e));
	IS(was % 3, 0);
	weft_call put = {.size = sizeof put, .op = WEFT_PUT_NOTIFY, .key = keys[0] + 8 * (uint64_t)(rank + 1), .src = &value, .count = 1, .type = WEFT_UINT64, .peer = 0, .value = 70 + (uint32_t)rank};
	OK(weft_run(c, &put, NULL, &e));
	weft_call get = {.size = sizeof get, .op = WEFT_GET, .key = put.key, .dst = &was, .count = 1, .type = WEFT_UINT64, .peer = 0};
	OK(weft_run(c, &get, NULL, &e));
	IS(was, value);
	weft_call swap = {.size = sizeof swap, .op = WEFT_COMPARE_SWAP, .key = put.key, .compare = value, .operand = 5, .was = &was, .peer = 0};
	weft_request r;
	OK(weft_start(c, &swap, &r, &e));
	OK(weft_wait(r, 30000, NULL, &e));
	IS(was, value);
	OK(weft_barrier(c, &e));
	if (rank == 0) {
		IS(words[0], 3 * ranks);
		int all = 0;
		for (int tries = 0; all < ranks && tries < 20000; tries++) {
			int32_t from[2];
			uint32_t values[2];
			int n;
			OK(weft_notices(c, from, values, 2, &n, &e));
			for (int i = 0; i < n; i++)
				IS(values[i], 70 + from[i]);
			all += n;
			if (n == 0)
				usleep(1000);
		}
		IS(all, ranks);
		for (int i = 0; i < ranks; i++)
			IS(words[1 + i], 5);
	}
	OK(weft_all_reduce(c, words + 100, words + 100, 50, WEFT_UINT64, WEFT_SUM, &e));
	OK(weft_barrier(c, &e));
	OK(weft_free(c, p, &e));
	IS(weft_free(c, p, &e), WEFT_INVALID);
}

static void groups(void)
{
	weft_comm sub, same, none;
	double x = 1;
	OK(weft_split(c, rank % 2, -rank, &sub, &e));
	OK(weft_all_reduce(sub, &x, &x, 1, WEFT_FLOAT64, WEFT_SUM, &e));
	IS(x, weft_size(sub)), IS(weft_size(sub), (ranks + 1 - rank % 2) / 2);
	OK(weft_barrier(sub, &e));
	OK(weft_close(sub, &e));
	OK(weft_split(c, rank ? -1 : 0, 0, &none, &e));
	IS(none != 0, rank == 0);
	if (none)
		OK(weft_close(none, &e));
	OK(weft_dup(c, &same, &e));
	OK(weft_barrier(same, &e));
	OK(weft_close(same, &e));
	weft_info i = {.size = sizeof i};
	OK(weft_get_info(c, &i, &e));
	IS(i.ranks, ranks), IS(i.rank, rank), IS(i.epoch, 0), IS(strlen(i.transport) > 0, 1);
	OK(weft_check(c, &e));
	int64_t need = 0;
	char *text = malloc(1 << 20);
	OK(weft_explain(c, text, 1 << 20, &need, &e));
	IS(strstr(text, "all-reduce") != NULL, 1);
	OK(weft_flight_json(c, NULL, 0, &need, &e));
	OK(weft_flight_json(c, text, 1 << 20, &need, &e));
	IS(text[0] == '{' || text[0] == '[', 1), IS(strlen(text) + 1, need);
	OK(weft_counters_json(c, text, 1 << 20, &need, &e));
	OK(weft_flight_json(c, text, 10, &need, &e));
	IS(strlen(text), 9);
	free(text);
}

static void mistakes(void)
{
	float x[4] = {0};
	IS(weft_all_reduce(c, NULL, x, 4, WEFT_FLOAT32, WEFT_SUM, &e), WEFT_INVALID);
	IS(strstr(e.text, "dst is NULL") != NULL, 1), IS(e.rank, -1);
	IS(weft_all_reduce(c, x, x, -1, WEFT_FLOAT32, WEFT_SUM, &e), WEFT_INVALID);
	IS(weft_all_reduce(c, x, x, 4, WEFT_TYPE(2, 24), WEFT_SUM, &e), WEFT_INVALID);
	IS(weft_all_reduce(c, x, x, 4, WEFT_FLOAT32, 99, &e), WEFT_INVALID);
	IS(weft_all_reduce(c, x, x, 2, WEFT_COMPLEX64, WEFT_MAX, &e), WEFT_INVALID);
	IS(weft_all_reduce(c, x, x, 4, WEFT_FLOAT32, WEFT_BAND, &e), WEFT_INVALID);
	IS(weft_broadcast(c, x, 4, WEFT_FLOAT32, ranks, &e), WEFT_INVALID);
	IS(weft_send(c, x, 1, WEFT_FLOAT32, ranks, 0, &e), WEFT_INVALID);
	IS(weft_send(c, x, 1, WEFT_FLOAT32, 0, -7, &e), WEFT_INVALID);
	IS(weft_all_reduce(77777, x, x, 4, WEFT_FLOAT32, WEFT_SUM, &e), WEFT_INVALID);
	IS(weft_all_reduce(77777, x, x, 4, WEFT_FLOAT32, WEFT_SUM, NULL), WEFT_INVALID);
	IS(weft_rank(77777), -1);
	weft_call k = {.size = 8, .op = WEFT_BARRIER};
	IS(weft_run(c, &k, NULL, &e), WEFT_INVALID);
	k.size = sizeof k, k.op = 999;
	IS(weft_run(c, &k, NULL, &e), WEFT_INVALID);
	weft_call gpu = {.size = sizeof gpu, .op = WEFT_ALL_REDUCE, .dst = x, .src = x, .count = 4, .type = WEFT_FLOAT32, .reduce = WEFT_SUM, .device = 12};
	IS(weft_run(c, &gpu, NULL, &e), WEFT_NO_DEVICE);
	gpu.device = 2; /* without a GPU all ranks are told which one has none; with one, that x is not on it */
	int code = weft_run(c, &gpu, NULL, &e);
	IS((code == WEFT_NO_DEVICE && strstr(e.text, "rank 0 has no GPU")) || (code == WEFT_INVALID && strstr(e.text, "0x")), 1);
	weft_request started;
	code = weft_start(c, &gpu, &started, &e);
	if (code == WEFT_OK) {
		code = weft_wait(started, -1, NULL, &e);
	}
	IS(code == WEFT_NO_DEVICE || code == WEFT_INVALID, 1);
	gpu.op = WEFT_SCAN;
	IS(weft_run(c, &gpu, NULL, &e), WEFT_NO_DEVICE);
	struct { weft_call call; char more[16]; } longer = {.call = {.size = sizeof longer, .op = WEFT_BARRIER}};
	OK(weft_run(c, &longer.call, NULL, &e)); /* a header of a later version that asks for nothing new */
	longer.more[3] = 1;
	IS(weft_run(c, &longer.call, NULL, &e), WEFT_INVALID);
	IS(weft_all_reduce(c, &x, &x, INT64_MAX, WEFT_FLOAT64, WEFT_SUM, &e), WEFT_INVALID);
	IS(weft_all_gather(c, &x, &x, INT64_C(1) << 61, WEFT_COMPLEX128, &e), WEFT_INVALID);
	int n;
	IS(weft_notices(c, NULL, NULL, -1, &n, &e), WEFT_INVALID);
	weft_config cfg = {.size = sizeof cfg, .rank = 3, .ranks = 2, .address = "127.0.0.1:1"};
	weft_comm none;
	IS(weft_join(&cfg, &none, &e), WEFT_INVALID);
	cfg.rank = 0, cfg.address = "here";
	IS(weft_join(&cfg, &none, &e), WEFT_INVALID);
	cfg.settings = "TRANSPORT=shm";
	IS(weft_join(&cfg, &none, &e), WEFT_INVALID);
	OK(weft_barrier(c, &e)); /* all of this was noticed by nobody else */
}

static void children(void)
{
	/* a child made by fork must not use the library, and can be told so */
	pid_t child = fork();
	if (child == 0) {
		float x = 1;
		weft_error ce;
		int code = weft_all_reduce(c, &x, &x, 1, WEFT_FLOAT32, WEFT_SUM, &ce);
		int good = code == WEFT_FORKED && strstr(ce.text, "fork") && weft_rank(c) == -1 && weft_close(c, NULL) == WEFT_FORKED && weft_test(1, NULL, NULL) == WEFT_FORKED;
		_exit(good ? 0 : 1);
	}
	int status;
	waitpid(child, &status, 0);
	IS(status, 0);
	OK(weft_barrier(c, &e));
}

static int asked;
static int give_up(void *arg)
{
	(void)arg;
	return ++asked >= 3;
}

/* The last part: a call that waits for a rank which does not come can be given up, and the others learn of it. */
static void impatience(void)
{
	weft_comm d;
	OK(weft_dup(c, &d, &e));
	float x = 1;
	if (rank == 0) {
		OK(weft_on_wait(give_up, NULL));
		IS(weft_all_reduce(d, &x, &x, 1, WEFT_FLOAT32, WEFT_SUM, &e), WEFT_INTERRUPTED);
		IS(asked, 3);
		OK(weft_on_wait(NULL, NULL));
		IS(weft_check(d, &e), WEFT_ABORTED);
	} else {
		usleep(100000);
		int code;
		while ((code = weft_check(d, &e)) == WEFT_OK) {
			weft_call k = {.size = sizeof k, .op = WEFT_RECV, .dst = &x, .count = 1, .type = WEFT_FLOAT32, .peer = 0, .tag = 1, .timeout_ms = 30000};
			code = weft_run(d, &k, NULL, &e);
		}
		IS(code, WEFT_ABORTED), IS(e.culprits[0], 0);
	}
	OK(weft_close(d, &e));
	/* per-call deadline */
	OK(weft_dup(c, &d, &e));
	if (rank == 0) {
		weft_call k = {.size = sizeof k, .op = WEFT_BARRIER, .timeout_ms = 150};
		IS(weft_run(d, &k, NULL, &e), WEFT_TIMEOUT);
		IS(e.culprit_count, ranks - 1);
	}
	OK(weft_barrier(c, &e));
	OK(weft_close(d, &e));
}

int main(void)
{
	setenv("WEFT_TRANSPORT", getenv("TRANSPORT") ? getenv("TRANSPORT") : "", 1); /* seen although it was set after the start */
	OK(weft_threads(2, &e));
	OK(weft_join(NULL, &c, &e));
	rank = weft_rank(c), ranks = weft_size(c);
	IS(weft_abi(), WEFT_ABI);
	collectives();
	functions();
	started();
	messages();
	memory();
	groups();
	mistakes();
	children();
	impatience();
	OK(weft_barrier(c, &e));
	OK(weft_close(c, &e));
	IS(weft_close(c, &e), WEFT_INVALID);
	printf("rank %d of %d: all is well\n", rank, ranks);
	return 0;
}
