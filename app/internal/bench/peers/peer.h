// What the peer programs have in common: a conversation with the benchmark over
// a stream socket, the same for every library, so that competitors take turns
// and those whose turn it is not sleep in read(2).
//
//   rank -> "rank R OF N"
//   "prep OP VARIANT BYTES" -> "ready WRONG" (elements that one call got wrong), or "cannot WHY"
//   "run ITERS"             -> "took NANOSECONDS CPU_NANOSECONDS", after a tenth as many calls that do not count
//   "each ITERS"            -> "each CPU_NANOSECONDS NANOSECONDS...", a time for each call
//   end of input            -> the rank ends
//
// BYTES is the larger of a rank's two buffers: what all ranks contribute
// together where blocks are gathered or dealt out. Elements are float32 sums.
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

struct peer {
  int rank, n, root;
  const char *op, *variant;
  size_t count; // elements of the larger buffer
  size_t block; // elements of one rank's part of it
  float *in, *out;
};

// What a peer program provides. select gives the call that carries out p->op by
// p->variant, or NULL with *why set.
typedef void (*peer_call)(struct peer *p);
struct peer_library {
  peer_call (*select)(struct peer *p, const char **why);
  void (*barrier)(struct peer *p);
  void (*buffers)(struct peer *p, size_t bytes); // sets p->in and p->out; NULL for private memory
};

static inline int peer_is(const struct peer *p, const char *op) { return strcmp(p->op, op) == 0; }
// peer_apart says that an all-reduce has an input of its own, which it leaves as it is.
static inline int peer_apart(const struct peer *p) { return peer_is(p, "all-reduce") && getenv("WEFT_BENCH_APART") != NULL; }
static inline int peer_in_place(const struct peer *p) { return (peer_is(p, "all-reduce") && !peer_apart(p)) || peer_is(p, "broadcast"); }
static inline int peer_blocks(const struct peer *p) {
  return peer_is(p, "reduce-scatter") || peer_is(p, "all-gather") || peer_is(p, "all-to-all") || peer_is(p, "gather") ||
         peer_is(p, "scatter");
}

// Small whole numbers, so that every order of additions gives the same sum. The
// period is a prime: a block that ends up in another's place does not match.
static inline float peer_value(int rank, size_t i) { return (float)((i * 7 + (size_t)rank * 31) % 97) - 48; }
static inline float peer_sum(const struct peer *p, size_t i) {
  float s = 0;
  for (int r = 0; r < p->n; r++) s += peer_value(r, i);
  return s;
}

static void peer_fill(struct peer *p) {
  for (size_t i = 0; i < p->count; i++) p->in[i] = peer_value(p->rank, i);
  for (size_t i = 0; i < p->count; i++) p->out[i] = peer_in_place(p) ? p->in[i] : 1e9f;
}

static size_t peer_wrong(struct peer *p) {
  size_t wrong = 0, me = (size_t)p->rank, b = p->block;
  if (peer_is(p, "barrier")) return 0;
  if (p->rank != p->root && (peer_is(p, "reduce") || peer_is(p, "gather"))) return 0;
  int one = peer_is(p, "reduce-scatter") || peer_is(p, "scatter");
  for (size_t i = 0; i < (one ? b : p->count); i++) {
    float want;
    if (peer_is(p, "all-reduce") || peer_is(p, "reduce")) want = peer_sum(p, i);
    else if (peer_is(p, "reduce-scatter")) want = peer_sum(p, me * b + i);
    else if (peer_is(p, "all-gather") || peer_is(p, "gather")) want = peer_value((int)(i / b), i % b);
    else if (peer_is(p, "all-to-all")) want = peer_value((int)(i / b), me * b + i % b);
    else if (peer_is(p, "scatter")) want = peer_value(p->root, me * b + i);
    else if (peer_is(p, "send-recv")) want = peer_value((p->rank + p->n - 1) % p->n, i);
    else want = peer_value(p->root, i); // broadcast
    wrong += p->out[i] != want;
  }
  return wrong;
}

static double peer_clock(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double peer_cpu(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return ((double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec) * 1e9 + ((double)u.ru_utime.tv_usec + (double)u.ru_stime.tv_usec) * 1e3;
}

static void peer_private(struct peer *p, size_t bytes) {
  void *a, *b;
  if (posix_memalign(&a, 4096, bytes) || posix_memalign(&b, 4096, bytes)) {
    fprintf(stderr, "no memory for two buffers of %zu bytes\n", bytes);
    exit(1);
  }
  p->in = (float *)a;
  p->out = (float *)b;
}

// peer_bind keeps the calling thread on one of the processors that the process
// may use, if WEFT_BENCH_BIND is set. Threads that a library started before go
// where they like, so that one with threads is not held to a single processor.
static void peer_bind(int rank) {
  cpu_set_t may, one;
  if (!getenv("WEFT_BENCH_BIND") || sched_getaffinity(0, sizeof may, &may)) return;
  int skip = rank % CPU_COUNT(&may);
  for (int c = 0; c < CPU_SETSIZE; c++) {
    if (!CPU_ISSET(c, &may) || skip-- > 0) continue;
    CPU_ZERO(&one);
    CPU_SET(c, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

// peer_serve is what a rank does: it answers until the benchmark hangs up.
static void peer_serve(int rank, int n, const struct peer_library *lib) {
  peer_bind(rank);
  const char *path = getenv("WEFT_BENCH_CONTROL");
  struct sockaddr_un to = {AF_UNIX, ""};
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (!path || strlen(path) >= sizeof to.sun_path) {
    fprintf(stderr, "WEFT_BENCH_CONTROL names no socket\n");
    exit(2);
  }
  strcpy(to.sun_path, path);
  if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to)) {
    perror(path);
    exit(1);
  }
  FILE *in = fdopen(fd, "r"), *out = fdopen(dup(fd), "w");
  fprintf(out, "rank %d of %d\n", rank, n);
  fflush(out);

  struct peer p = {rank, n, 0, "", "", 0, 0, NULL, NULL};
  peer_call call = NULL;
  char line[256], op[64], variant[64];
  size_t bytes;
  long iters;
  while (fgets(line, sizeof line, in)) {
    if (sscanf(line, "prep %63s %63s %zu", op, variant, &bytes) == 3) {
      const char *why = "unknown operation";
      if (!lib->buffers) {
        free(p.in);
        free(p.out);
      }
      p.op = op, p.variant = variant;
      p.block = bytes / sizeof(float) / (size_t)n;
      if (p.block == 0) p.block = 1;
      p.count = peer_blocks(&p) ? p.block * (size_t)n : bytes / sizeof(float);
      (lib->buffers ? lib->buffers : peer_private)(&p, p.count * sizeof(float) + 64);
      call = lib->select(&p, &why);
      if (!call) {
        fprintf(out, "cannot %s\n", why);
      } else {
        peer_fill(&p);
        lib->barrier(&p);
        call(&p);
        size_t wrong = peer_wrong(&p);
        lib->barrier(&p); // nobody's buffers change while another reads them
        memset(p.in, 0, p.count * sizeof(float));
        memset(p.out, 0, p.count * sizeof(float));
        fprintf(out, "ready %zu\n", wrong);
      }
    } else if (sscanf(line, "run %ld", &iters) == 1 && call) {
      lib->barrier(&p);
      for (long i = 0; i < iters; i += 10) call(&p); // ranks that slept come to themselves
      double cpu = peer_cpu(), t = peer_clock();
      for (long i = 0; i < iters; i++) call(&p);
      t = peer_clock() - t, cpu = peer_cpu() - cpu;
      fprintf(out, "took %.0f %.0f\n", t, cpu);
    } else if (sscanf(line, "each %ld", &iters) == 1 && call) {
      double *times = (double *)malloc(sizeof(double) * (size_t)iters);
      lib->barrier(&p);
      for (long i = 0; i < iters; i += 10) call(&p);
      double cpu = peer_cpu(), last = peer_clock();
      for (long i = 0; i < iters; i++) {
        call(&p);
        double now = peer_clock();
        times[i] = now - last, last = now;
      }
      fprintf(out, "each %.0f", peer_cpu() - cpu);
      for (long i = 0; i < iters; i++) fprintf(out, " %.0f", times[i]);
      fprintf(out, "\n");
      free(times);
    } else {
      fprintf(out, "cannot understand: %s", line);
    }
    fflush(out);
  }
}
