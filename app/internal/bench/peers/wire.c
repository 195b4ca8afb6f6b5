// What the sockets of a host allow: ranks with one TCP connection for each pair,
// no frames, no checks, no failures, inputs not kept: a bound to compare with.
// Variants of all-reduce: double (recursive doubling: everybody sends all it has
// to one partner after another), halve (halving and doubling), pair (each rank
// adds one slice and sends it back, one partner after another), ring.
//
//   wire RANKS
#include "peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum {
  RANKS = 16,
  PIECE = 256 << 10, // is in the second-level cache until it is added
  LONG = 2 << 20,    // is sent at a time: those who send much and then receive much are less in each other's way
};
static int fds[RANKS];
static int apart; // all-reduce does not overwrite its input

typedef float vec __attribute__((vector_size(64), aligned(4), may_alias));

static void die(const char *what) {
  perror(what);
  exit(1);
}

static void add(float *to, const float *from, size_t count) {
  size_t i = 0;
  for (; i + 16 <= count; i += 16) *(vec *)(to + i) += *(const vec *)(from + i);
  for (; i < count; i++) to[i] += from[i];
}

// swap sends bytes to one rank while it receives bytes from another, straight to
// where they belong or, in pieces, to be added there. If what is sent is where sums
// go, nothing is added that was not sent.
static void swap(int to, const char *out, size_t outs, int from, char *in, size_t ins, int adds) {
  static _Alignas(4096) char piece[PIECE];
  size_t sent = 0, got = 0, part = 0; // part: bytes in piece that are no whole float yet
  int same = in == out && outs == ins, idle = 0;
  while (sent < outs || got < ins) {
    int moved = 0;
    if (sent < outs) {
      size_t n = outs - sent < LONG ? outs - sent : LONG;
      ssize_t k = send(fds[to], out + sent, n, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (k > 0) sent += (size_t)k, moved = 1;
      else if (k < 0 && errno != EAGAIN) die("send");
    }
    size_t may = ins - got;
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
          add((float *)(in + got), (float *)piece, whole / 4);
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

static size_t edge(const struct peer *p, int k) { return p->count * (size_t)k / (size_t)p->n; }

// begin puts the input where the sums will be, if it is not there.
static void begin(struct peer *p) {
  if (apart) memcpy(p->out, p->in, p->count * sizeof(float));
}

static void doubling(struct peer *p) {
  begin(p);
  size_t b = p->count * sizeof(float);
  for (int d = 1; d < p->n; d *= 2) swap(p->rank ^ d, (char *)p->out, b, p->rank ^ d, (char *)p->out, b, 1);
}

static void halving(struct peer *p) {
  begin(p);
  int lo = 0, hi = p->n;
  for (int d = p->n / 2; d > 0; d /= 2) {
    int other = p->rank ^ d, mid = (lo + hi) / 2, up = (p->rank & d) != 0;
    size_t a = edge(p, up ? lo : mid), b = edge(p, up ? mid : hi), x = edge(p, up ? mid : lo), y = edge(p, up ? hi : mid);
    swap(other, (char *)(p->out + a), (b - a) * 4, other, (char *)(p->out + x), (y - x) * 4, 1);
    if (up) lo = mid;
    else hi = mid;
  }
  for (int d = 1; d < p->n; d *= 2) {
    int other = p->rank ^ d, base = p->rank / d * d, theirs = other / d * d;
    size_t a = edge(p, base), b = edge(p, base + d), x = edge(p, theirs), y = edge(p, theirs + d);
    swap(other, (char *)(p->out + a), (b - a) * 4, other, (char *)(p->out + x), (y - x) * 4, 0);
  }
}

static void pairs(struct peer *p) {
  begin(p);
  size_t mine = edge(p, p->rank), after = edge(p, p->rank + 1);
  for (int k = 1; k < p->n; k++) {
    int to = (p->rank + k) % p->n, from = (p->rank + p->n - k) % p->n;
    size_t a = edge(p, to), b = edge(p, to + 1);
    swap(to, (char *)(p->out + a), (b - a) * 4, from, (char *)(p->out + mine), (after - mine) * 4, 1);
  }
  for (int k = 1; k < p->n; k++) {
    int to = (p->rank + k) % p->n, from = (p->rank + p->n - k) % p->n;
    size_t a = edge(p, from), b = edge(p, from + 1);
    swap(to, (char *)(p->out + mine), (after - mine) * 4, from, (char *)(p->out + a), (b - a) * 4, 0);
  }
}

static void ring(struct peer *p) {
  begin(p);
  int to = (p->rank + 1) % p->n, from = (p->rank + p->n - 1) % p->n;
  for (int k = 0; k < 2 * (p->n - 1); k++) {
    int s = (p->rank + 2 * p->n - k) % p->n, r = (s + p->n - 1) % p->n;
    size_t a = edge(p, s), b = edge(p, s + 1), x = edge(p, r), y = edge(p, r + 1);
    swap(to, (char *)(p->out + a), (b - a) * 4, from, (char *)(p->out + x), (y - x) * 4, k < p->n - 1);
  }
}

static void barrier(struct peer *p) {
  char b = 0, c;
  for (int d = 1; d < p->n; d *= 2) swap((p->rank + d) % p->n, &b, 1, (p->rank + p->n - d) % p->n, &c, 1, 0);
}

static peer_call choose(struct peer *p, const char **why) {
  int power = (p->n & (p->n - 1)) == 0;
  apart = peer_apart(p);
  if (!peer_is(p, "all-reduce")) {
    *why = "written for all-reduce alone";
    return NULL;
  }
  if (!strcmp(p->variant, "double") && power) return doubling;
  if (!strcmp(p->variant, "halve") && power) return halving;
  if (!strcmp(p->variant, "pair")) return pairs;
  if (!strcmp(p->variant, "ring")) return ring;
  *why = "only for powers of two";
  return NULL;
}

int main(int argc, char **argv) {
  int n = argc > 1 ? atoi(argv[1]) : 0, on = 1;
  if (n < 2 || n > RANKS) {
    fprintf(stderr, "usage: wire RANKS, 2 to %d\n", RANKS);
    return 2;
  }
  static int ends[RANKS][RANKS];
  for (int a = 0; a < n; a++)
    for (int b = 0; b < a; b++) {
      struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
      socklen_t len = sizeof at;
      int l = socket(AF_INET, SOCK_STREAM, 0);
      if (bind(l, (struct sockaddr *)&at, len) || listen(l, 1) || getsockname(l, (struct sockaddr *)&at, &len)) die("listen");
      ends[a][b] = socket(AF_INET, SOCK_STREAM, 0);
      if (connect(ends[a][b], (struct sockaddr *)&at, len)) die("connect");
      ends[b][a] = accept(l, NULL, NULL);
      close(l);
      for (int k = 0; k < 2; k++) {
        int fd = k ? ends[b][a] : ends[a][b];
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4); // which does not pace, as some do; other than that no matter on one host
      }
    }
  for (int r = 0; r < n; r++) {
    pid_t pid = fork();
    if (pid < 0) die("fork");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) {
          if (a == b) continue;
          if (a == r) fds[b] = ends[a][b];
          else close(ends[a][b]);
        }
      struct peer_library lib = {choose, barrier, NULL};
      peer_serve(r, n, &lib);
      return 0;
    }
  }
  for (int a = 0; a < n; a++)
    for (int b = 0; b < n; b++)
      if (a != b) close(ends[a][b]);
  int failed = 0, status;
  while (wait(&status) > 0) failed |= status != 0;
  return failed;
}
