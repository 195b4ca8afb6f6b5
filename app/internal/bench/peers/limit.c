// What the memory of a host allows: ranks that see one another's buffers and
// touch every byte once. No library, no types, no failures: a bound to compare
// with. Variants of all-reduce: fused (each rank adds a slice of all buffers and
// stores it into all of them), slot (every rank publishes its data and adds up
// everybody's), flat (the last to arrive adds up for all).
//
//   limit RANKS BYTES    BYTES of the largest buffer that will be asked for
#include "peer.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { RANKS = 64, SLOT = 512 << 10 };

struct flag {
  _Alignas(64) uint64_t at;
};
static struct shared {
  struct flag arrived[RANKS], left[RANKS], published[RANKS], count, done;
} *sync_page;
static struct flag *setup;
static char *slots; // two generations of one slot a rank
static float *ins[RANKS], *outs[RANKS];
static uint64_t turn; // operations since the flags were cleared
static int crowded; // more ranks than processors: waiting gives way at once
static int apart;   // all-reduce does not overwrite its input

// A vector of what the processor has, at any address of a float.
typedef float vec __attribute__((vector_size(64), aligned(4), may_alias));
enum { LANES = 16 };

static void wait_for(struct flag *f, uint64_t v) {
  for (unsigned spins = 0; __atomic_load_n(&f->at, __ATOMIC_ACQUIRE) < v; spins++) {
    if (crowded || spins % 1024 == 1023) sched_yield();
    else
#if defined(__x86_64__)
      __builtin_ia32_pause();
#else
      ;
#endif
  }
}
static void post(struct flag *f, uint64_t v) { __atomic_store_n(&f->at, v, __ATOMIC_RELEASE); }

// meet returns once every rank has come to v.
static void meet(const struct peer *p, struct flag *flags, uint64_t v) {
  post(&flags[p->rank], v);
  for (int k = 1; k < p->n; k++) wait_for(&flags[(p->rank + k) % p->n], v);
}

// add stores the sum of from[..][at..at+count] in every buffer of to.
static void add(float **to, int tos, size_t to_at, float **from, int froms, size_t at, size_t count) {
  size_t i = 0;
  for (; i + LANES <= count; i += LANES) {
    vec s = *(vec *)(from[0] + at + i);
    for (int r = 1; r < froms; r++) s += *(vec *)(from[r] + at + i);
    for (int r = 0; r < tos; r++) *(vec *)(to[r] + to_at + i) = s;
  }
  for (; i < count; i++) {
    float s = from[0][at + i];
    for (int r = 1; r < froms; r++) s += from[r][at + i];
    for (int r = 0; r < tos; r++) to[r][to_at + i] = s;
  }
}

static void fused(struct peer *p) {
  uint64_t v = ++turn;
  size_t part = ((p->count + (size_t)p->n - 1) / (size_t)p->n + LANES - 1) / LANES * LANES;
  size_t from = part * (size_t)p->rank, to = from + part;
  if (from > p->count) from = p->count;
  if (to > p->count) to = p->count;
  meet(p, sync_page->arrived, v);
  add(outs, p->n, from, apart ? ins : outs, p->n, from, to - from);
  meet(p, sync_page->left, v);
}

static float *slot(uint64_t v, int rank) { return (float *)(slots + ((v & 1) * RANKS + (size_t)rank) * SLOT); }

// A rank is at most one turn ahead, so two generations are enough.
static void published(struct peer *p) {
  uint64_t v = ++turn;
  float *from[RANKS];
  for (int r = 0; r < p->n; r++) from[r] = slot(v, r);
  memcpy(from[p->rank], apart ? p->in : p->out, p->count * sizeof(float));
  meet(p, sync_page->published, v);
  add(&p->out, 1, 0, from, p->n, 0, p->count);
}

static void flat(struct peer *p) {
  uint64_t v = ++turn;
  float *from[RANKS];
  for (int r = 0; r < p->n; r++) from[r] = slot(v, r);
  memcpy(from[p->rank], apart ? p->in : p->out, p->count * sizeof(float));
  if (__atomic_add_fetch(&sync_page->count.at, 1, __ATOMIC_ACQ_REL) == v * (uint64_t)p->n) {
    add(from, 1, 0, from, p->n, 0, p->count);
    post(&sync_page->done, v);
  } else {
    wait_for(&sync_page->done, v);
  }
  memcpy(p->out, from[0], p->count * sizeof(float));
}

static void reduce_scatter(struct peer *p) {
  uint64_t v = ++turn;
  meet(p, sync_page->arrived, v);
  add(&p->out, 1, 0, ins, p->n, p->block * (size_t)p->rank, p->block);
  meet(p, sync_page->left, v);
}
static void all_gather(struct peer *p) {
  uint64_t v = ++turn;
  meet(p, sync_page->arrived, v);
  for (int k = 0; k < p->n; k++) {
    size_t r = (size_t)((p->rank + k) % p->n);
    memcpy(p->out + r * p->block, ins[r], p->block * sizeof(float));
  }
  meet(p, sync_page->left, v);
}
static void all_to_all(struct peer *p) {
  uint64_t v = ++turn;
  meet(p, sync_page->arrived, v);
  for (int k = 0; k < p->n; k++) {
    size_t r = (size_t)((p->rank + k) % p->n);
    memcpy(p->out + r * p->block, ins[r] + (size_t)p->rank * p->block, p->block * sizeof(float));
  }
  meet(p, sync_page->left, v);
}
static void broadcast(struct peer *p) {
  uint64_t v = ++turn;
  if (p->rank == p->root) {
    post(&sync_page->arrived[p->root], v);
    for (int r = 0; r < p->n; r++)
      if (r != p->root) wait_for(&sync_page->left[r], v);
    return;
  }
  wait_for(&sync_page->arrived[p->root], v);
  memcpy(p->out, outs[p->root], p->count * sizeof(float));
  post(&sync_page->left[p->rank], v);
}
static void broadcast_slot(struct peer *p) {
  uint64_t v = ++turn;
  if (p->rank == p->root) {
    if (v > 2)
      for (int r = 0; r < p->n; r++)
        if (r != p->root) wait_for(&sync_page->left[r], v - 2);
    memcpy(slot(v, 0), p->out, p->count * sizeof(float));
    post(&sync_page->arrived[p->root], v);
    return;
  }
  wait_for(&sync_page->arrived[p->root], v);
  memcpy(p->out, slot(v, 0), p->count * sizeof(float));
  post(&sync_page->left[p->rank], v);
}
// Every rank adds a slice and stores it at the root.
static void reduce(struct peer *p) {
  uint64_t v = ++turn;
  size_t from = p->count * (size_t)p->rank / (size_t)p->n, to = p->count * (size_t)(p->rank + 1) / (size_t)p->n;
  meet(p, sync_page->arrived, v);
  add(&outs[p->root], 1, from, ins, p->n, from, to - from);
  meet(p, sync_page->left, v);
}
static void gather(struct peer *p) {
  uint64_t v = ++turn;
  meet(p, sync_page->arrived, v);
  memcpy(outs[p->root] + (size_t)p->rank * p->block, p->in, p->block * sizeof(float));
  meet(p, sync_page->left, v);
}
static void scatter(struct peer *p) {
  uint64_t v = ++turn;
  meet(p, sync_page->arrived, v);
  memcpy(p->out, ins[p->root] + (size_t)p->rank * p->block, p->block * sizeof(float));
  meet(p, sync_page->left, v);
}
static void send_recv(struct peer *p) {
  uint64_t v = ++turn;
  int before = (p->rank + p->n - 1) % p->n;
  post(&sync_page->arrived[p->rank], v);
  wait_for(&sync_page->arrived[before], v);
  memcpy(p->out, ins[before], p->count * sizeof(float));
  post(&sync_page->left[p->rank], v);
  wait_for(&sync_page->left[(p->rank + 1) % p->n], v);
}
static void barrier(struct peer *p) { meet(p, sync_page->arrived, ++turn); }

// together is a barrier of its own, so that it disturbs no operation's flags.
static void together(struct peer *p) {
  static uint64_t times;
  meet(p, setup, ++times);
}

static peer_call choose(struct peer *p, const char **why) {
  int fits = p->count * sizeof(float) <= SLOT;
  apart = peer_apart(p);
  together(p);
  if (p->rank == 0) memset(sync_page, 0, sizeof *sync_page);
  turn = 0;
  together(p);
  if (peer_is(p, "all-reduce") && !strcmp(p->variant, "fused")) return fused;
  if (peer_is(p, "all-reduce") && !strcmp(p->variant, "slot") && fits) return published;
  if (peer_is(p, "all-reduce") && !strcmp(p->variant, "flat") && fits) return flat;
  if (peer_is(p, "broadcast") && !strcmp(p->variant, "slot") && fits) return broadcast_slot;
  if (peer_is(p, "broadcast") && !strcmp(p->variant, "direct")) return broadcast;
  if (peer_is(p, "reduce-scatter")) return reduce_scatter;
  if (peer_is(p, "all-gather")) return all_gather;
  if (peer_is(p, "all-to-all")) return all_to_all;
  if (peer_is(p, "reduce")) return reduce;
  if (peer_is(p, "gather")) return gather;
  if (peer_is(p, "scatter")) return scatter;
  if (peer_is(p, "send-recv")) return send_recv;
  if (peer_is(p, "barrier")) return barrier;
  *why = "not written for this operation, or too large for a slot";
  return NULL;
}

static void buffers(struct peer *p, size_t bytes) {
  (void)bytes;
  p->in = ins[p->rank];
  p->out = outs[p->rank];
}

static void *share(size_t bytes) {
  void *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (m == MAP_FAILED) {
    perror("mmap");
    exit(1);
  }
  return m;
}

int main(int argc, char **argv) {
  int n = argc > 1 ? atoi(argv[1]) : 0;
  size_t bytes = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
  if (n < 1 || n > RANKS || bytes == 0) {
    fprintf(stderr, "usage: limit RANKS BYTES, at most %d ranks\n", RANKS);
    return 2;
  }
  crowded = n > sysconf(_SC_NPROCESSORS_ONLN);
  sync_page = share(sizeof *sync_page);
  setup = share(RANKS * sizeof *setup);
  slots = share(2 * RANKS * (size_t)SLOT);
  bytes += 4096 + sizeof(float) * (size_t)n;
  for (int r = 0; r < n; r++) ins[r] = share(bytes), outs[r] = share(bytes);
  for (int r = 0; r < n; r++) {
    pid_t pid = fork();
    if (pid < 0) {
      perror("fork");
      kill(0, SIGKILL);
    }
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      struct peer_library lib = {choose, together, buffers};
      peer_serve(r, n, &lib);
      return 0;
    }
  }
  int failed = 0, status;
  while (wait(&status) > 0) failed |= status != 0;
  return failed;
}
