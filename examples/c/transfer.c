/* Two processes: one has memory, the other reads it and says so.
 *
 *     cc -I capi -o transfer examples/c/transfer.c python/weft/libweft.so -Wl,-rpath,$PWD/python/weft
 *     ./transfer serve | ./transfer fetch
 *
 * The first line that serve prints describes it. On two machines give it an address and a token (weft_xfer_config.listen,
 * WEFT_TOKEN), and carry the line over by any way there is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weft.h"

enum { BLOCK = 65536, BLOCKS = 16 };

static weft_error e;

static void check(int code)
{
	if (code == WEFT_OK)
		return;
	fprintf(stderr, "%s\n", e.text);
	exit(1);
}

static weft_xfer_agent agent(const char *name, void **memory, weft_region *region)
{
	weft_xfer_config cfg = {.size = sizeof cfg, .name = name};
	weft_xfer_agent a;
	check(weft_xfer_open(&cfg, &a, &e));
	check(weft_xfer_alloc(a, BLOCK * BLOCKS, memory, &e));
	check(weft_xfer_register(a, "kv", *memory, BLOCK * BLOCKS, 0, region, &e));
	return a;
}

static int serve(void)
{
	void *memory;
	weft_region region;
	weft_xfer_agent a = agent("prefill", &memory, &region);
	for (int i = 0; i < BLOCKS; i++)
		memset((char *)memory + i * BLOCK, 'a' + i, BLOCK);

	char text[65536], from[208], word[64] = "";
	int64_t need;
	check(weft_xfer_describe(a, text, sizeof text, &need, &e));
	printf("%s\n", text);
	fflush(stdout);
	check(weft_xfer_notice(a, 30000, from, word, sizeof word - 1, &need, &e)); /* comes after the bytes have landed */
	fprintf(stderr, "%s says: %s\n", from, word);
	check(weft_xfer_release(region, 5000, &e)); /* waits for readers */
	check(weft_xfer_close(a, &e));
	return 0;
}

static int fetch(void)
{
	void *memory;
	weft_region mine, theirs;
	weft_xfer_agent a = agent("decode", &memory, &mine);

	char text[65536];
	if (!fgets(text, sizeof text, stdin))
		return 1;
	weft_xfer_peer peer;
	check(weft_xfer_peer_open(a, text, (int64_t)strlen(text), &peer, &e));
	check(weft_xfer_region(peer, "kv", &theirs, NULL, &e));

	/* Prepared once, used with any of its descriptors: here every other block, in reverse order. */
	weft_xfer_desc own[BLOCKS], far[BLOCKS];
	for (int i = 0; i < BLOCKS; i++) {
		own[i] = (weft_xfer_desc){mine, (int64_t)i * BLOCK, BLOCK};
		far[i] = (weft_xfer_desc){theirs, (int64_t)i * BLOCK, BLOCK};
	}
	weft_xfer_list local, remote;
	check(weft_xfer_prepare(a, 0, own, BLOCKS, &local, &e));
	check(weft_xfer_prepare(a, peer, far, BLOCKS, &remote, &e));
	int64_t to[BLOCKS / 2], blocks[BLOCKS / 2];
	for (int i = 0; i < BLOCKS / 2; i++) {
		to[i] = i;
		blocks[i] = BLOCKS - 2 - 2 * i;
	}
	weft_xfer_move move = {.size = sizeof move, .op = WEFT_XFER_READ, .urgency = WEFT_XFER_LATENCY, .local = local, .remote = remote,
			       .local_index = to, .remote_index = blocks, .count = BLOCKS / 2,
			       .notice = "fetched", .notice_bytes = 7, .timeout_ms = 10000};
	weft_xfer_request r;
	weft_xfer_status s = {.size = sizeof s};
	check(weft_xfer_post(a, &move, &r, &e));
	check(weft_xfer_wait(r, -1, &s, &e));
	check(weft_xfer_free(r, &e));
	printf("%lld bytes over %s: ", (long long)s.landed, s.path);
	for (int i = 0; i < BLOCKS / 2; i++)
		putchar(((char *)memory)[i * BLOCK]);
	putchar('\n');
	check(weft_xfer_unprepare(remote, &e)); /* the owner may use its memory again */
	check(weft_xfer_close(a, &e));
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "serve"))
		return serve();
	if (argc == 2 && !strcmp(argv[1], "fetch"))
		return fetch();
	fprintf(stderr, "usage: transfer serve | transfer fetch\n");
	return 2;
}
