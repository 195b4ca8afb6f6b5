/* Communicators are made and closed CYCLES times: descriptors, threads and memory must not grow. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weft.h"

#define MUST(call)                                                     \
	do {                                                               \
		weft_error e;                                                  \
		if (call) {                                                    \
			fprintf(stderr, "line %d: %s\n", __LINE__, e.text);        \
			exit(1);                                                   \
		}                                                              \
	} while (0)

typedef struct { long files, threads, resident; } state;

static state now(void)
{
	state s = {0, 0, 0};
	DIR *d = opendir("/proc/self/fd");
	while (readdir(d))
		s.files++;
	closedir(d);
	char line[256];
	FILE *f = fopen("/proc/self/status", "r");
	while (fgets(line, sizeof line, f)) {
		sscanf(line, "Threads: %ld", &s.threads);
		if (sscanf(line, "VmRSS: %ld", &s.resident) == 1)
			s.resident >>= 10;
	}
	fclose(f);
	return s;
}

static void use(weft_comm c)
{
	int x[100];
	for (int i = 0; i < 100; i++)
		x[i] = 1;
	MUST(weft_all_reduce(c, x, x, 100, WEFT_INT32, WEFT_SUM, &e));
	if (x[99] != weft_size(c)) {
		fprintf(stderr, "the sum is %d\n", x[99]);
		exit(1);
	}
}

static void split(weft_comm world)
{
	weft_comm c;
	MUST(weft_split(world, 0, weft_rank(world), &c, &e));
	use(c);
	MUST(weft_close(c, &e));
}

static void join(weft_comm world)
{
	/* Rank 0 listens and tells where: every join is one of all ranks. */
	char at[64] = "";
	weft_listener l = 0;
	if (weft_rank(world) == 0)
		MUST(weft_listen("127.0.0.1:0", at, sizeof at, &l, &e));
	MUST(weft_broadcast(world, at, sizeof at, WEFT_UINT8, 0, &e));
	weft_config cfg = {.size = sizeof cfg, .rank = weft_rank(world), .ranks = weft_size(world), .address = at, .listener = l};
	weft_comm c;
	MUST(weft_join(&cfg, &c, &e));
	if (l)
		MUST(weft_unlisten(l, &e));
	use(c);
	MUST(weft_barrier(c, &e));
	MUST(weft_close(c, &e));
}

static int grew(const char *name, weft_comm world, void (*once)(weft_comm), int times)
{
	for (int i = 0; i < times / 4 + 5; i++)
		once(world);
	MUST(weft_barrier(world, &e));
	state a = now();
	for (int i = 0; i < times; i++)
		once(world);
	MUST(weft_barrier(world, &e));
	state b = now();
	printf("%s %d times: files %ld %ld, threads %ld %ld, MiB resident %ld %ld\n", name, times, a.files, b.files, a.threads, b.threads, a.resident, b.resident);
	return b.files > a.files + 4 || b.threads > a.threads + 6 || b.resident > a.resident + 24;
}

int main(void)
{
	weft_comm world;
	int n = getenv("CYCLES") ? atoi(getenv("CYCLES")) : 100;
	MUST(weft_join(NULL, &world, &e));
	int bad = grew("split", world, split, n) + grew("join", world, join, n / 5);
	MUST(weft_close(world, &e));
	puts(bad ? "something grew" : "nothing grew");
	return bad != 0;
}
