// What the memory of hosts and the wire between them allow: ranks of a host see one
// another's buffers, ranks of one number on all hosts have TCP connections. No frames,
// no checks, no failures: a bound to compare with. Hosts are network namespaces of this
// machine. Variants of all-reduce and broadcast: spread (every rank of a host works on
// its slice and sends it), leader (the first rank of a host does all of it).
//
//   hosts LOCAL BYTES INTERFACE-ADDRESSES...   each NAME=ADDRESS; ranks host by host
#include "peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { RANKS = 64, HOSTS = 16, PIECE = 256 << 10, LONG = 2 << 20 };

struct flag {
  _Alignas(64) uint64_t at;
};
static struct shared {
  struct flag arrived[RANKS], middle[RANKS], left[RANKS];
} *sync_page;
static struct flag *setup;
static float *ins[RANKS], *outs[RANKS], *mine; // mine: as long as the largest buffer
static int local, hosts, home, seat, apart;
static int fds[HOSTS]; // by host: to the rank of this number there
static uint64_t turn;

typedef float vec __attribute__((vector_size(64), aligned(4), may_alias));
enum { LANES = 16 };

static void die(const char *what) {
  perror(what);
  exit(1);
}
static void wait_for(struct flag *f, uint64_t v) {
  for (unsigned i = 0; __atomic_load_n(&f->at, __ATOMIC_ACQUIRE) < v; i++)
    if (i > 2) sched_yield();
}
// meet returns once the ranks of this host, or all, have come to v.
static void meet(struct flag *flags, int rank, uint64_t v, int from, int to) {
  __atomic_store_n(&flags[rank].at, v, __ATOMIC_RELEASE);
  for (int r = from; r < to; r++) wait_for(&flags[r], v);
}
static void inside(const struct peer *p, struct flag *flags) { meet(flags, p->rank, turn, home * local, (home + 1) * local); }

static void add(float **to, int tos, float **from, int froms, size_t at, size_t count, size_t to_at) {
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
static void plus(float *to, const float *from, size_t count) {
  float *both[2] = {to, (float *)from};
  add(&to, 1, both, 2, 0, count, 0);
}

// swap sends to one host and receives from another, adding what comes if asked to.
static void swap(int to, const char *out, size_t outs_, int from, char *in, size_t ins_, int adds) {
  static _Alignas(4096) char piece[PIECE];
  size_t sent = 0, got = 0, part = 0;
  int same = in == out && outs_ == ins_, idle = 0;
  while (sent < outs_ || got < ins_) {
    int moved = 0;
    if (sent < outs_) {
      size_t n = outs_ - sent < LONG ? outs_ - sent : LONG;
      ssize_t k = send(fds[to], out + sent, n, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (k > 0) sent += (size_t)k, moved = 1;
      else if (k < 0 && errno != EAGAIN) die("send");
    }
    size_t may = ins_ - got;
    if (adds && may > PIECE) may = PIECE;
    if (same && may > sent - got) may = sent - got;
    if (may > part || (may && !adds)) {
      ssize_t k = recv(fds[from], adds ? piece + part : in + got, may - part, MSG_DONTWAIT);
      if (k == 0) exit(1);
      if (k < 0 && errno != EAGAIN) die("recv");
      if (k > 0) {
        moved = 1;
        if (adds) {
          size_t have = part + (size_t)k, whole = have / 4 * 4;
          plus((float *)(in + got), (float *)piece, whole / 4);
          part = have - whole;
          memmove(piece, piece + whole, part);
          got += whole;
        } else {
          got += (size_t)k;
        }
      }
    }
    if (moved) idle = 0;
    else if (++idle > 2) sched_yield();
  }
}
static int next(int k) { return (home + k) % hosts; }
static int prev(int k) { return (home + hosts - k) % hosts; }

// between sums a buffer over the hosts: each host adds a slice and sends it back.
static void between(float *b, size_t count) {
  if (count < (hosts == 2 ? 32768 : 1024)) { // small: everybody adds all
    if (hosts == 2) {
      swap(1 - home, (char *)b, count * 4, 1 - home, (char *)b, count * 4, 1);
      return;
    }
    float *own = mine + count;
    memcpy(own, b, count * 4);
    for (int k = 1; k < hosts; k++) swap(next(k), (char *)own, count * 4, prev(k), (char *)b, count * 4, 1);
    return;
  }
#define EDGE(h) (count * (size_t)(h) / (size_t)hosts)
  size_t a = EDGE(home), z = EDGE(home + 1);
  for (int k = 1; k < hosts; k++) swap(next(k), (char *)(b + EDGE(next(k))), (EDGE(next(k) + 1) - EDGE(next(k))) * 4, prev(k), (char *)(b + a), (z - a) * 4, 1);
  for (int k = 1; k < hosts; k++) swap(next(k), (char *)(b + a), (z - a) * 4, prev(k), (char *)(b + EDGE(prev(k))), (EDGE(prev(k) + 1) - EDGE(prev(k))) * 4, 0);
}

static float **mates(float **all) { return all + home * local; }

static void all_reduce(struct peer *p) {
  turn++;
  size_t part = ((p->count + (size_t)local - 1) / (size_t)local + LANES - 1) / LANES * LANES;
  size_t from = part * (size_t)seat, to = from + part;
  if (from > p->count) from = p->count;
  if (to > p->count) to = p->count;
  inside(p, sync_page->arrived);
  add(&mine, 1, mates(apart ? ins : outs), local, from, to - from, 0);
  between(mine, to - from);
  add(mates(outs), local, &mine, 1, 0, to - from, from);
  inside(p, sync_page->left);
}
static void all_reduce_leader(struct peer *p) {
  turn++;
  inside(p, sync_page->arrived);
  if (seat == 0) {
    add(&mine, 1, mates(apart ? ins : outs), local, 0, p->count, 0);
    between(mine, p->count);
    add(mates(outs), local, &mine, 1, 0, p->count, 0);
  }
  inside(p, sync_page->left);
}
static void reduce_scatter(struct peer *p) {
  turn++;
  size_t b = p->block;
  inside(p, sync_page->arrived);
  for (int h = 0; h < hosts; h++) add(&mine, 1, mates(ins), local, (size_t)(h * local + seat) * b, b, (size_t)h * b);
  for (int k = 1; k < hosts; k++) swap(next(k), (char *)(mine + (size_t)next(k) * b), b * 4, prev(k), (char *)(mine + (size_t)home * b), b * 4, 1);
  memcpy(p->out, mine + (size_t)home * b, b * 4);
  inside(p, sync_page->left);
}
static void all_gather(struct peer *p) {
  turn++;
  size_t b = p->block;
  memcpy(p->out + (size_t)p->rank * b, p->in, b * 4);
  for (int k = 1; k < hosts; k++) swap(next(k), (char *)p->in, b * 4, prev(k), (char *)(p->out + (size_t)(prev(k) * local + seat) * b), b * 4, 0);
  inside(p, sync_page->arrived);
  for (int m = 1; m < local; m++) {
    int s = (seat + m) % local;
    for (int h = 0; h < hosts; h++) memcpy(p->out + (size_t)(h * local + s) * b, outs[home * local + s] + (size_t)(h * local + s) * b, b * 4);
  }
  inside(p, sync_page->left);
}
static void all_to_all(struct peer *p) {
  turn++;
  size_t b = p->block;
  inside(p, sync_page->arrived);
  for (int m = 0; m < local; m++) {
    float *from = ins[home * local + m];
    memcpy(p->out + (size_t)(home * local + m) * b, from + (size_t)p->rank * b, b * 4);
    for (int k = 1; k < hosts; k++) memcpy(mine + (size_t)(next(k) * local + m) * b, from + (size_t)(next(k) * local + seat) * b, b * 4);
  }
  for (int k = 1; k < hosts; k++)
    swap(next(k), (char *)(mine + (size_t)(next(k) * local) * b), b * 4 * (size_t)local, prev(k), (char *)(p->out + (size_t)(prev(k) * local) * b), b * 4 * (size_t)local, 0);
  inside(p, sync_page->left);
}
static void broadcast_by(struct peer *p, int parts) {
  turn++;
  size_t from = p->count * (size_t)seat / (size_t)parts, to = p->count * (size_t)(seat + 1) / (size_t)parts;
  if (seat >= parts) from = to = 0;
  if (home == 0) {
    inside(p, sync_page->arrived);
    for (int k = 1; k < hosts && to > from; k++) swap(k, (char *)(outs[p->root] + from), (to - from) * 4, k, NULL, 0, 0);
    if (p->rank != p->root) memcpy(p->out, outs[p->root], p->count * 4);
  } else {
    if (to > from) swap(0, NULL, 0, 0, (char *)(p->out + from), (to - from) * 4, 0);
    inside(p, sync_page->arrived);
    for (int m = 0; m < parts; m++) {
      size_t a = p->count * (size_t)m / (size_t)parts, z = p->count * (size_t)(m + 1) / (size_t)parts;
      if (m != seat) memcpy(p->out + a, outs[home * local + m] + a, (z - a) * 4);
    }
  }
  inside(p, sync_page->left);
}
static void broadcast(struct peer *p) { broadcast_by(p, local); }
static void broadcast_leader(struct peer *p) { broadcast_by(p, 1); }

static void together(struct peer *p) {
  static uint64_t times;
  ++times;
  meet(setup, p->rank, times, 0, p->n);
}

static peer_call choose(struct peer *p, const char **why) {
  apart = peer_apart(p);
  together(p);
  if (p->rank == 0) memset(sync_page, 0, sizeof *sync_page);
  turn = 0;
  together(p);
  int leader = !strcmp(p->variant, "leader");
  if (peer_is(p, "all-reduce")) return leader ? all_reduce_leader : all_reduce;
  if (peer_is(p, "broadcast")) return leader ? broadcast_leader : broadcast;
  if (peer_is(p, "reduce-scatter")) return reduce_scatter;
  if (peer_is(p, "all-gather")) return all_gather;
  if (peer_is(p, "all-to-all")) return all_to_all;
  *why = "not written for this operation";
  return NULL;
}
static void buffers(struct peer *p, size_t bytes) {
  (void)bytes;
  p->in = ins[p->rank];
  p->out = outs[p->rank];
}
static void *share(size_t bytes) {
  void *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (m == MAP_FAILED) die("mmap");
  return m;
}

static int spaces[HOSTS];
static void enter(int host) {
  if (setns(spaces[host], CLONE_NEWNET)) die("setns");
}

int main(int argc, char **argv) {
  local = argc > 1 ? atoi(argv[1]) : 0;
  size_t bytes = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
  hosts = argc - 3;
  int n = local * hosts, on = 1;
  if (local < 1 || hosts < 2 || hosts > HOSTS || n > RANKS || !bytes) {
    fprintf(stderr, "usage: hosts LOCAL BYTES NAME=ADDRESS..., at most %d ranks on 2 to %d hosts\n", RANKS, HOSTS);
    return 2;
  }
  struct in_addr at[HOSTS];
  for (int h = 0; h < hosts; h++) {
    char path[300], *eq = strchr(argv[3 + h], '=');
    if (!eq || inet_pton(AF_INET, eq + 1, &at[h]) != 1) {
      fprintf(stderr, "%s is not NAME=ADDRESS\n", argv[3 + h]);
      return 2;
    }
    snprintf(path, sizeof path, "/var/run/netns/%.*s", (int)(eq - argv[3 + h]), argv[3 + h]);
    if ((spaces[h] = open(path, O_RDONLY | O_CLOEXEC)) < 0) die(path);
  }
  static int ends[RANKS][HOSTS];
  for (int s = 0; s < local; s++)
    for (int a = 0; a < hosts; a++)
      for (int b = 0; b < a; b++) {
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr = at[a]};
        socklen_t len = sizeof to;
        enter(a);
        int l = socket(AF_INET, SOCK_STREAM, 0);
        if (bind(l, (struct sockaddr *)&to, len) || listen(l, 1) || getsockname(l, (struct sockaddr *)&to, &len)) die("listen");
        enter(b);
        int c = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(c, (struct sockaddr *)&to, len)) die("connect");
        enter(a);
        int d = accept(l, NULL, NULL);
        close(l);
        setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(d, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        ends[b * local + s][a] = c;
        ends[a * local + s][b] = d;
      }
  sync_page = share(sizeof *sync_page);
  setup = share(RANKS * sizeof *setup);
  bytes += 4096 + sizeof(float) * (size_t)n;
  for (int r = 0; r < n; r++) ins[r] = share(bytes), outs[r] = share(bytes);
  for (int r = 0; r < n; r++) {
    pid_t pid = fork();
    if (pid < 0) die("fork");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      home = r / local, seat = r % local;
      for (int a = 0; a < n; a++)
        for (int h = 0; h < hosts; h++) {
          if (a / local == h) continue;
          if (a == r) fds[h] = ends[a][h];
          else close(ends[a][h]);
        }
      mine = share(bytes + (64 << 10));
      struct peer_library lib = {choose, together, buffers};
      peer_serve(r, n, &lib);
      return 0;
    }
  }
  for (int a = 0; a < n; a++)
    for (int h = 0; h < hosts; h++)
      if (a / local != h) close(ends[a][h]);
  int failed = 0, status;
  while (wait(&status) > 0) failed |= status != 0;
  return failed;
}
