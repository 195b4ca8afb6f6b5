/* Every call of weft.h on transfers and KV caches, right and wrong. DIR is a folder for files and objects, KV the address of a cache
 * service with the token "secret". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weft.h"

static weft_error e;

static void code(int got, int want, const char *what, int line)
{
	if (got == want)
		return;
	fprintf(stderr, "line %d: %s gives %d, not %d: %s\n", line, what, got, want, e.text);
	exit(1);
}

#define OK(x) code(x, WEFT_OK, #x, __LINE__)
#define FAILS(x, want) code(x, want, #x, __LINE__)
#define TRUE(x) code(!(x), 0, #x, __LINE__)

enum { N = 1 << 20 };

static weft_xfer_agent a, b;
static weft_xfer_peer peer;
static weft_region mine, theirs;
static unsigned char *here, *there;

static weft_xfer_list list(weft_xfer_peer p, weft_region r, int64_t off, int64_t n)
{
	weft_xfer_desc d = {r, off, n};
	weft_xfer_list l;
	OK(weft_xfer_prepare(a, p, &d, 1, &l, &e));
	return l;
}

static int go(int op, weft_xfer_list local, weft_xfer_list remote, const char *notice, weft_xfer_status *s)
{
	weft_xfer_move m = {.size = sizeof m, .op = op, .local = local, .remote = remote, .notice = notice, .notice_bytes = notice ? (int64_t)strlen(notice) : 0, .timeout_ms = 20000};
	weft_xfer_request r;
	OK(weft_xfer_post(a, &m, &r, &e));
	int rc = weft_xfer_wait(r, -1, s, &e);
	weft_error ignored;
	code(weft_xfer_free(r, &ignored), WEFT_OK, "weft_xfer_free", __LINE__);
	FAILS(weft_xfer_poll(r, NULL, &ignored), WEFT_INVALID); /* its number is over */
	return rc;
}

static void transfers(const char *dir)
{
	weft_xfer_config cfg = {.size = sizeof cfg, .name = "a", .timeout_ms = 20000}, none = {.size = sizeof none};
	weft_xfer_config path = {.size = sizeof path, .name = "x", .path = "warp"};
	weft_xfer_agent x;
	FAILS(weft_xfer_open(&none, &x, &e), WEFT_INVALID);
	FAILS(weft_xfer_open(&path, &x, &e), WEFT_XFER_PATH);
	path.size = 3;
	FAILS(weft_xfer_open(&path, &x, &e), WEFT_INVALID);
	OK(weft_xfer_open(&cfg, &a, &e));
	cfg.name = "b";
	OK(weft_xfer_open(&cfg, &b, &e));
	OK(weft_xfer_alloc(a, N, (void **)&here, &e));
	there = malloc(N);
	for (int i = 0; i < N; i++)
		there[i] = (unsigned char)(i * 7);
	OK(weft_xfer_register(a, "mine", here, N, 0, &mine, &e));
	weft_region own;
	OK(weft_xfer_register(b, "kv", there, N, 0, &own, &e));
	FAILS(weft_xfer_register(b, "kv", there, N, 0, &theirs, &e), WEFT_INVALID);
	FAILS(weft_xfer_register(b, "null", NULL, N, 0, &theirs, &e), WEFT_XFER_BOUNDS);
	FAILS(weft_xfer_register(b, "none", there, 0, 0, &theirs, &e), WEFT_XFER_BOUNDS);
	FAILS(weft_xfer_register_gpu(b, "gpu", 63, 4096, N, 0, &theirs, &e), WEFT_NO_DEVICE);

	int64_t need, bytes;
	char *text = malloc(1 << 16);
	OK(weft_xfer_describe(b, NULL, 0, &need, &e));
	TRUE(need > 100 && need < 1 << 16);
	OK(weft_xfer_describe(b, text, 1 << 16, &need, &e));
	FAILS(weft_xfer_peer_open(a, "{}", 2, &peer, &e), WEFT_INVALID);
	OK(weft_xfer_peer_open(a, text, need, &peer, &e));
	FAILS(weft_xfer_region(peer, "nothing", &theirs, NULL, &e), WEFT_XFER_REGION);
	OK(weft_xfer_region(peer, "kv", &theirs, &bytes, &e));
	TRUE(bytes == N);

	/* Descriptors that are wrong. */
	weft_xfer_list l;
	weft_xfer_desc bad[] = {{mine, 0, N + 1}, {mine, -1, 4}, {mine, 0, 0}, {mine, 1, (int64_t)1 << 50}};
	for (int i = 0; i < 4; i++)
		FAILS(weft_xfer_prepare(a, 0, &bad[i], 1, &l, &e), WEFT_XFER_BOUNDS);
	weft_xfer_desc foreign = {theirs, 0, 4}, nobody = {12345678, 0, 4};
	FAILS(weft_xfer_prepare(a, 0, &foreign, 1, &l, &e), WEFT_XFER_REGION);
	FAILS(weft_xfer_prepare(a, 0, &nobody, 1, &l, &e), WEFT_XFER_REGION);
	FAILS(weft_xfer_prepare(a, 0, &nobody, 0, &l, &e), WEFT_XFER_LIMIT);

	/* A read and a write, with notices. */
	weft_xfer_list local = list(0, mine, 0, N), remote = list(peer, theirs, 0, N);
	weft_xfer_status s = {.size = sizeof s};
	OK(go(WEFT_XFER_READ, local, remote, NULL, &s));
	TRUE(s.state == 4 && s.landed == N && s.total == N && !strcmp(s.path, "process"));
	TRUE(!memcmp(here, there, N));
	memset(here, 3, N);
	OK(go(WEFT_XFER_WRITE, local, remote, "written", NULL));
	TRUE(there[0] == 3 && there[N - 1] == 3);
	char from[208], word[16];
	memset(word, 0, sizeof word);
	OK(weft_xfer_notice(b, 5000, from, word, sizeof word, &need, &e));
	TRUE(need == 7 && !strcmp(word, "written") && !strcmp(from, "a"));
	FAILS(weft_xfer_notice(b, 0, from, word, sizeof word, &need, &e), WEFT_PENDING);
	FAILS(weft_xfer_notice(b, 20, from, word, sizeof word, &need, &e), WEFT_PENDING);
	OK(weft_xfer_notify(a, peer, "alone", 5, &e));
	FAILS(weft_xfer_notice(b, -1, from, NULL, 0, &need, &e), WEFT_XFER_LIMIT); /* it stays */
	TRUE(need == 5);
	FAILS(weft_xfer_notice(b, 0, from, word, 4, &need, &e), WEFT_XFER_LIMIT);
	OK(weft_xfer_notice(b, -1, from, word, sizeof word, &need, &e));
	TRUE(need == 5 && !memcmp(word, "alone", 5));

	/* Requests that are wrong. */
	weft_xfer_list part = list(0, mine, 0, 8);
	weft_xfer_move m = {.size = sizeof m, .op = WEFT_XFER_READ, .local = part, .remote = remote};
	weft_xfer_request r;
	FAILS(weft_xfer_post(a, &m, &r, &e), WEFT_XFER_LENGTH);
	m.remote = m.local = local;
	m.op = 9;
	FAILS(weft_xfer_post(a, &m, &r, &e), WEFT_INVALID);
	weft_xfer_desc twice[] = {{mine, 0, 8}, {mine, 4, 8}}, far[] = {{theirs, 0, 8}, {theirs, 8, 8}};
	weft_xfer_list over, whole;
	OK(weft_xfer_prepare(a, 0, twice, 2, &over, &e));
	OK(weft_xfer_prepare(a, peer, far, 2, &whole, &e));
	m = (weft_xfer_move){.size = sizeof m, .op = WEFT_XFER_READ, .local = over, .remote = whole};
	FAILS(weft_xfer_post(a, &m, &r, &e), WEFT_XFER_OVERLAP);
	int64_t outside[] = {2};
	m.local_index = m.remote_index = outside, m.count = 1;
	FAILS(weft_xfer_post(a, &m, &r, &e), WEFT_XFER_BOUNDS);
	m = (weft_xfer_move){.size = sizeof m, .op = WEFT_XFER_READ, .local = local, .remote = remote, .path = "tcp"};
	OK(weft_xfer_post(a, &m, &r, &e));
	s.size = sizeof s;
	OK(weft_xfer_wait(r, -1, &s, &e));
	TRUE(!strcmp(s.path, "tcp"));
	OK(weft_xfer_cancel(r, &e)); /* what is done stays done */
	OK(weft_xfer_free(r, &e));
	m.path = "warp";
	OK(weft_xfer_post(a, &m, &r, &e));
	FAILS(weft_xfer_wait(r, -1, &s, &e), WEFT_XFER_PATH);
	OK(weft_xfer_free(r, &e));

	/* A file and an object: written, then read back. */
	char name[4096];
	snprintf(name, sizeof name, "%s/slab", dir);
	weft_region file, object;
	OK(weft_xfer_register_file(a, "file", name, N, 0, &file, &e));
	OK(weft_xfer_register_object(a, "object", dir, "block", N, 0, &object, &e));
	FAILS(weft_xfer_register_file(a, "absent", "/nonexistent/file", N, WEFT_XFER_MAY_READ, &l, &e), WEFT_XFER_STORAGE);
	weft_region kinds[] = {file, object};
	for (int i = 0; i < 2; i++) {
		weft_xfer_list store = list(0, kinds[i], 0, N);
		for (int k = 0; k < N; k++)
			here[k] = (unsigned char)(k * 11 + i);
		OK(go(WEFT_XFER_WRITE, local, store, NULL, NULL));
		memset(here, 0, N);
		OK(go(WEFT_XFER_READ, local, store, NULL, NULL));
		TRUE(here[1] == (unsigned char)(11 + i) && here[N - 1] == (unsigned char)((N - 1) * 11 + i));
		OK(weft_xfer_unprepare(store, &e));
	}

	/* What the owner took back is gone: an error that says whose it is, never other bytes. */
	OK(weft_xfer_reclaim(own, 0, N, 5000, &e));
	TRUE(go(WEFT_XFER_READ, local, remote, NULL, NULL) == WEFT_XFER_LEASE);
	OK(weft_xfer_publish(own, 0, N, &e));
	TRUE(go(WEFT_XFER_READ, local, remote, NULL, NULL) == WEFT_XFER_LEASE); /* the list is of a description from before */
	FAILS(weft_xfer_publish(own, N, 1, &e), WEFT_XFER_BOUNDS);
	OK(weft_xfer_release(own, 5000, &e));
	FAILS(weft_xfer_release(own, 5000, &e), WEFT_INVALID);
	s.size = sizeof s;
	int rc = go(WEFT_XFER_WRITE, local, remote, NULL, &s);
	TRUE(rc == WEFT_XFER_REGION && s.state == 5 && !strcmp(s.culprit, "b"));
	OK(weft_xfer_unprepare(remote, &e));
	OK(weft_xfer_close(b, &e));
	m = (weft_xfer_move){.size = sizeof m, .op = WEFT_XFER_READ, .local = part, .remote = list(peer, theirs, 0, 8), .timeout_ms = 20000};
	OK(weft_xfer_post(a, &m, &r, &e));
	TRUE(weft_xfer_wait(r, -1, &s, &e) == WEFT_XFER_GONE);
	OK(weft_xfer_free(r, &e));
	OK(weft_xfer_forget(peer, &e));
	OK(weft_xfer_release(mine, 5000, &e));
	OK(weft_xfer_free_memory(a, here, &e));
	FAILS(weft_xfer_free_memory(a, there, &e), WEFT_INVALID);
	OK(weft_xfer_close(a, &e));
	FAILS(weft_xfer_close(a, &e), WEFT_INVALID);
	free(there);
	free(text);
}

static void cache(const char *address)
{
	enum { TOKENS = 70, BLOCK = 16, BLOCKS = TOKENS / BLOCK, SIZE = 1000 };
	uint32_t tokens[TOKENS];
	for (int i = 0; i < TOKENS; i++)
		tokens[i] = (uint32_t)i * 3;
	uint8_t hashes[BLOCKS * WEFT_KV_HASH];
	int64_t n, got;
	char print[64], other[64];
	FAILS(weft_kv_hashes("vllm", NULL, BLOCK, tokens, TOKENS, NULL, hashes, &n, print, &e), WEFT_INVALID); /* no seed */
	OK(weft_kv_hashes("vllm", "1", BLOCK, tokens, TOKENS, NULL, hashes, &n, other, &e));
	OK(weft_kv_hashes("vllm", "0", BLOCK, tokens, TOKENS, NULL, hashes, &n, print, &e));
	TRUE(n == BLOCKS);
	weft_kv k;
	OK(weft_kv_open(address, "wrong", print, &k, &e));
	FAILS(weft_kv_match(k, hashes, n, &got, &e), WEFT_INVALID);
	TRUE(strstr(e.text, "token") != NULL);
	OK(weft_kv_close(k, &e));
	OK(weft_kv_open(address, "secret", print, &k, &e));
	OK(weft_kv_match(k, hashes, n, &got, &e));
	TRUE(got == 0);
	char blocks[BLOCKS][SIZE], back[BLOCKS][SIZE];
	int64_t sizes[BLOCKS];
	for (int i = 0; i < BLOCKS; i++)
		memset(blocks[i], 'a' + i, SIZE);
	OK(weft_kv_put(k, hashes, 2, 0, blocks, SIZE, NULL, &got, &e));
	TRUE(got == 2);
	OK(weft_kv_match(k, hashes, n, &got, &e));
	TRUE(got == 2);
	int64_t shorter[] = {10, 20};
	OK(weft_kv_put(k, hashes, n, 2, blocks[2], SIZE, shorter, &got, &e));
	TRUE(got == 2);
	memset(back, 0, sizeof back);
	OK(weft_kv_get(k, hashes, n, 0, back, SIZE, sizes, &got, &e));
	TRUE(got == BLOCKS && sizes[0] == SIZE && sizes[2] == 10 && sizes[3] == 20 && back[3][19] == 'd' && back[3][20] == 0 && back[1][SIZE - 1] == 'b');
	FAILS(weft_kv_get(k, hashes, n, 0, back, SIZE / 2, sizes, &got, &e), WEFT_INVALID); /* no room */
	FAILS(weft_kv_get(k, hashes, n, n, back, SIZE, sizes, &got, &e), WEFT_INVALID);
	shorter[0] = 0;
	FAILS(weft_kv_put(k, hashes, n, 2, blocks[2], SIZE, shorter, &got, &e), WEFT_INVALID);
	weft_kv seed;
	OK(weft_kv_open(address, "secret", other, &seed, &e));
	FAILS(weft_kv_match(seed, hashes, n, &got, &e), WEFT_INVALID); /* another seed */
	TRUE(strstr(e.text, "seed") != NULL);
	OK(weft_kv_close(seed, &e));
	OK(weft_kv_close(k, &e));
	FAILS(weft_kv_close(k, &e), WEFT_INVALID);
}

int main(void)
{
	transfers(getenv("DIR"));
	cache(getenv("KV"));
	printf("all is well\n");
	return 0;
}
