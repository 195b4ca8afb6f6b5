/* weft.h: collectives, messages and one-sided memory between processes.
 *
 *     weft_comm c;
 *     weft_error e;
 *     if (weft_join(NULL, &c, &e)) { fprintf(stderr, "%s\n", e.text); return 1; }
 *     weft_all_reduce(c, x, x, n, WEFT_FLOAT32, WEFT_SUM, &e);
 *     weft_close(c, &e);
 *
 * Start it with `weft run -n 4 -- ./program`, torchrun, srun or mpirun.
 *
 * Every function that can fail returns a code: WEFT_OK (0), or why not. Where it takes a weft_error, which may be NULL, that has the
 * ranks at fault and a sentence. Handles are numbers; 0 is none. All functions may be called from any thread; calls on one
 * communicator are carried out in the order in which they are made, and all its ranks must make the same ones in the same order.
 *
 * The library holds a Go runtime. Load it once, never unload it, and do not load a second library made with Go into the process:
 * weft_join refuses with its name. A
 * child made by fork must not use it: every function returns WEFT_FORKED there. exec, and loading the library after the fork, are
 * fine. */
#ifndef WEFT_H
#define WEFT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_ABI 1 /* grows when something here changes its meaning; new fields and functions do not change it */

typedef int64_t weft_comm;     /* a communicator: this rank's place in a group of ranks */
typedef int64_t weft_request;  /* a call under way */
typedef int64_t weft_queue;    /* where calls under way tell their end */
typedef int64_t weft_prepared; /* a call that is made often */
typedef int64_t weft_listener; /* where rank 0 waits for the others */
typedef int64_t weft_follower; /* a process that follows epochs */
typedef uint64_t weft_key;     /* memory of a rank, as others name it: the key of what lies k bytes behind is larger by k */

/* The type of an element: DLPack's code, and its bits behind it. */
typedef uint32_t weft_type;
#define WEFT_TYPE(code, bits) ((weft_type)(code) | (weft_type)(bits) << 8)
#define WEFT_INT8 0x0800
#define WEFT_INT16 0x1000
#define WEFT_INT32 0x2000
#define WEFT_INT64 0x4000
#define WEFT_UINT8 0x0801
#define WEFT_UINT16 0x1001
#define WEFT_UINT32 0x2001
#define WEFT_UINT64 0x4001
#define WEFT_FLOAT16 0x1002
#define WEFT_FLOAT32 0x2002
#define WEFT_FLOAT64 0x4002
#define WEFT_BFLOAT16 0x1004
#define WEFT_COMPLEX64 0x4005   /* sum, avg and premulsum */
#define WEFT_COMPLEX128 0x8005 /* sum, avg and premulsum */
#define WEFT_BOOL 0x0806         /* 0 or 1; sum and max are or, prod and min are and */
#define WEFT_FLOAT8_E4M3 0x080a
#define WEFT_FLOAT8_E5M2 0x080c

/* Reductions. */
#define WEFT_SUM 1
#define WEFT_PROD 2
#define WEFT_MIN 3
#define WEFT_MAX 4
#define WEFT_AVG 5
#define WEFT_PREMULSUM 6 /* the sum of inputs that are multiplied by weft_call.factor first */
#define WEFT_BAND 7
#define WEFT_BOR 8
#define WEFT_BXOR 9

/* Codes. */
#define WEFT_OK 0
#define WEFT_DEAD 1     /* a rank's process ended or cannot be reached */
#define WEFT_MISMATCH 2 /* ranks call different things */
#define WEFT_TIMEOUT 3  /* the time limit passed */
#define WEFT_ABORTED 4  /* a rank called weft_abort or weft_cancel, or was interrupted */
#define WEFT_CLOSED 5   /* the communicator was closed here */
#define WEFT_BROKEN 6   /* the transport failed */
#define WEFT_LEFT 7     /* a rank closed the communicator */
#define WEFT_EXCLUDED 8 /* weft_shrink: the others went on without this rank */
#define WEFT_NO_QUORUM 9
#define WEFT_INVALID 10     /* the call is wrong in itself: nothing was sent */
#define WEFT_FORKED 11      /* this process is a fork of the one that loaded the library */
#define WEFT_INTERNAL 12    /* a bug of weft: please report its text */
#define WEFT_INTERRUPTED 13 /* the function of weft_on_wait asked for it: the communicator of a call that had begun has failed */
#define WEFT_NO_DEVICE 14   /* the memory belongs to a device that weft cannot reach */
#define WEFT_PENDING 100    /* no error: the call is still under way */

#define WEFT_CULPRITS 64

/* Why a call failed. */
typedef struct weft_error {
	int32_t code;
	int32_t rank;          /* the rank that reports; -1 if the call was wrong in itself */
	uint64_t operation;    /* its number on the communicator; 0 if it was none */
	int32_t culprit_count; /* ranks of the communicator at fault; the first WEFT_CULPRITS of them are in culprits */
	int32_t culprits[WEFT_CULPRITS];
	int32_t reserved[11];
	char text[3776]; /* a sentence, and behind it a line for each rank that says what it waits for; ends with 0 */
} weft_error;

/* How to join. Set size to sizeof(weft_config) and the rest to 0: what is 0 or NULL comes from the environment, as `weft run`,
 * torchrun, srun and mpirun set it (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, WEFT_*). */
typedef struct weft_config {
	uint64_t size;
	int32_t rank;  /* used if ranks is set */
	int32_t ranks; /* how many; then address is needed, too, unless it is 1 */
	int32_t local_rank;
	int32_t reserved;
	const char *address;   /* host:port where rank 0 listens */
	const char *token;     /* the secret of the job; may be missing on loopback addresses alone */
	const char *transport; /* shm, tcp or mixed; NULL for the fastest that reaches all ranks */
	int64_t timeout_ms;    /* of operations and of joining; 0 for two minutes */
	const char *settings;  /* further settings, one a line, as WEFT_STREAMS=4; they come before the environment */
	weft_listener listener; /* on rank 0, where it listens instead of at address; 0 for none */
} weft_config;

/* What a communicator is. Set size to sizeof(weft_info). */
typedef struct weft_info {
	uint64_t size;
	int32_t rank;
	int32_t ranks;
	int32_t epoch; /* failures that the group outlived */
	int32_t reserved;
	char transport[16]; /* mem, shm, tcp or mixed */
} weft_info;

/* What is known of a message with a tag. */
typedef struct weft_status {
	int32_t from;
	int32_t tag;
	int64_t count; /* elements */
} weft_status;

/* What weft_call.op may be. */
#define WEFT_ALL_REDUCE 1
#define WEFT_REDUCE_SCATTER 2
#define WEFT_ALL_GATHER 3
#define WEFT_BROADCAST 4
#define WEFT_REDUCE 5
#define WEFT_ALL_TO_ALL 6
#define WEFT_GATHER 7
#define WEFT_SCATTER 8
#define WEFT_BARRIER 9
#define WEFT_SCAN 10
#define WEFT_EXSCAN 11
#define WEFT_SEND 20      /* to peer; with tag WEFT_NO_TAG it meets receives without tag only */
#define WEFT_RECV 21      /* from peer */
#define WEFT_SEND_RECV 22 /* src to peer, dst from from; without tags */
#define WEFT_PROBE 23     /* waits for a message from peer with a tag and leaves it where it is */
#define WEFT_PUT 30       /* src to key at peer */
#define WEFT_GET 31       /* dst from key at peer */
#define WEFT_COMPARE_SWAP 32
#define WEFT_FETCH_ADD 33
#define WEFT_NOTIFY 34
#define WEFT_PUT_NOTIFY 35

#define WEFT_NO_TAG (-2)
#define WEFT_ANY (-1) /* peer and tag of a receive or probe with tags */

/* A call as a value. Set size to sizeof(weft_call) and what does not apply to 0.
 *
 *   op                src                       dst                          count is
 *   ALL_REDUCE        count                     count                        elements of src
 *   REDUCE_SCATTER    count for each rank       count                        elements of dst      counts: elements of each rank
 *   ALL_GATHER        count                     count for each rank          elements of src      counts: elements of each rank
 *   BROADCAST         (not used)                count                        elements
 *   REDUCE            count                     count, at the root           elements
 *   ALL_TO_ALL        count for each rank       count for each rank          elements of a block  counts: received, send_counts: sent
 *   GATHER            count                     count for each, at the root  elements of src      counts: elements of each rank
 *   SCATTER           count for each, at root   count                        elements of dst      counts: elements of each rank
 *   SCAN, EXSCAN      (not used)                count                        elements
 *   SEND / RECV       count / (not used)        (not used) / count           elements
 *   SEND_RECV         send_count                count                        elements of dst
 *   PUT, GET          count / (not used)        (not used) / count           elements
 *
 * dst may be src, or the own block of it, and must not overlap it otherwise. With counts, of as many numbers as there are ranks,
 * blocks may differ in length; count is not used then, and the counts must stay until the call is over. */
typedef struct weft_call {
	uint64_t size;
	int32_t op;
	weft_type type;
	int32_t reduce;
	int32_t root;
	int32_t peer;
	int32_t from;
	int32_t tag;
	uint32_t value; /* NOTIFY, PUT_NOTIFY */
	void *dst;
	const void *src;
	int64_t count;
	int64_t send_count;
	const int64_t *counts;
	const int64_t *send_counts;
	double factor;      /* PREMULSUM */
	int64_t timeout_ms; /* 0 for that of the communicator */
	weft_key key;       /* one-sided calls */
	uint64_t compare;   /* COMPARE_SWAP */
	uint64_t operand;   /* COMPARE_SWAP: what is stored; FETCH_ADD: what is added */
	uint64_t *was;      /* COMPARE_SWAP, FETCH_ADD: what was there */
	weft_queue queue;   /* where a started call tells its end; 0 for weft_wait and weft_test */
	int32_t device;     /* DLPack's kind of dst and src: 0 and 1 are the host's memory, 2 CUDA */
	int32_t device_id;
	void *stream; /* of the device: the call begins behind what it holds */
	uint64_t cause; /* of collectives on host memory: what led to the call, as the caller counts; a call in which ranks differ fails */
} weft_call;

/* ---- the library ---- */

const char *weft_version(void);
int weft_abi(void); /* WEFT_ABI of the library */

/* How many processors the library uses at once; 0 for all. */
int weft_threads(int n, weft_error *e);

/* Blocking calls ask a function whether to give up, on the thread that waits, about every 100 ms; it says so by a number that is
 * not 0. One function for the process; NULL for none. */
int weft_on_wait(int (*give_up)(void *arg), void *arg);

/* ---- communicators ---- */

int weft_join(const weft_config *cfg, weft_comm *c, weft_error *e); /* cfg may be NULL: all from the environment */
int weft_close(weft_comm c, weft_error *e);                         /* have a barrier before; started calls end with WEFT_CLOSED */
int weft_abort(weft_comm c, const char *why, weft_error *e);        /* ends what the group is doing, on every rank */
int weft_split(weft_comm c, int color, int key, weft_comm *sub, weft_error *e); /* a negative color gets none: *sub is 0 */
int weft_dup(weft_comm c, weft_comm *same, weft_error *e);

/* A communicator of some ranks of c, which get new numbers in the order in which they are named. These ranks alone call it, all with
 * the same list. What they must know of one another goes through gather, which is called twice on this thread: it leaves in all what
 * every member gave, bytes of each, in the order of the list, and says by a number that is not 0 that it could not. */
typedef int (*weft_exchange)(void *arg, const void *mine, int64_t bytes, void *all);
int weft_group(weft_comm c, const int32_t *ranks, int n, weft_exchange gather, void *arg, weft_comm *sub, weft_error *e);

/* Rank 0 may listen before it joins, so that the system chooses the port ("host:0") and the others can be told: got is the address
 * with that port, and weft_config.listener takes the listener. weft_unlisten is for afterwards, whether the join worked or not. */
int weft_listen(const char *address, char *got, int cap, weft_listener *l, weft_error *e);
int weft_unlisten(weft_listener l, weft_error *e);
int weft_shrink(weft_comm c, weft_comm *left, weft_error *e); /* of the ranks that are left after a failure; c is closed */
int weft_rank(weft_comm c);                                   /* -1 if c is none */
int weft_size(weft_comm c);                                   /* -1 if c is none */
int weft_get_info(weft_comm c, weft_info *info, weft_error *e);
int weft_check(weft_comm c, weft_error *e); /* WEFT_OK, or why the communicator can no longer be used */
int weft_ended(weft_comm c, weft_error *e); /* WEFT_OK, or WEFT_DEAD or WEFT_LEFT and which rank is known to have ended, without a call */

/* ---- calls ---- */

int weft_run(weft_comm c, const weft_call *call, weft_status *status, weft_error *e);                 /* returns when it is over */
int weft_run_all(weft_comm c, const weft_call *calls, int n, weft_error *e);                          /* at once: none waits for another's end */
int weft_start(weft_comm c, const weft_call *call, weft_request *r, weft_error *e);                   /* returns at once */
int weft_try(weft_comm c, const weft_call *call, weft_request *r, weft_error *e); /* weft_start; *r is 0 if the call is over already, without an error */
int weft_test(weft_request r, weft_status *status, weft_error *e);                                    /* WEFT_PENDING, or how it ended */
int weft_wait(weft_request r, int64_t timeout_ms, weft_status *status, weft_error *e);                /* the same after a while; < 0 for ever: a small call that has not begun is then carried out here */
int weft_wait_any(const weft_request *r, int n, int64_t timeout_ms, int *which, weft_status *status, weft_error *e); /* zeros are passed over */
int weft_cancel(weft_request r, weft_error *e); /* ends the call, which fails the communicator; wait for it all the same */
int weft_block(weft_request r, void *stream, weft_error *e); /* a stream of the device waits for a started call on its memory; the host waits until all ranks have made the call, not for the device */
int weft_enqueue(weft_comm c, const weft_call *call, weft_error *e); /* weft_start, and weft_block of call.stream, in one; an error that comes later is told by the next call */
int weft_prepare(weft_comm c, const weft_call *call, weft_prepared *p, weft_error *e);
int weft_begin(weft_prepared p, weft_request *r, weft_error *e); /* starts it once more */
int weft_forget(weft_prepared p, weft_error *e);

/* A request is over, and its number is free, when weft_test, weft_wait or weft_wait_any gives another code than WEFT_PENDING. One
 * thread may wait for many: started with a queue, calls tell their end there, and weft_next gives one after another. The request
 * must then be fetched by weft_test. */
int weft_queue_new(weft_queue *q, weft_error *e);
int weft_next(weft_queue q, int64_t timeout_ms, weft_request *r, weft_error *e); /* WEFT_PENDING if none ended; WEFT_CLOSED when freed */
int weft_queue_free(weft_queue q, weft_error *e);
int weft_tell(weft_request r, weft_queue q, weft_error *e); /* a call that was started without a queue tells its end there after all */

int weft_barrier(weft_comm c, weft_error *e);
int weft_all_reduce(weft_comm c, void *dst, const void *src, int64_t count, weft_type t, int op, weft_error *e);
int weft_reduce_scatter(weft_comm c, void *dst, const void *src, int64_t count, weft_type t, int op, weft_error *e);
int weft_all_gather(weft_comm c, void *dst, const void *src, int64_t count, weft_type t, weft_error *e);
int weft_broadcast(weft_comm c, void *buf, int64_t count, weft_type t, int root, weft_error *e);
int weft_reduce(weft_comm c, void *dst, const void *src, int64_t count, weft_type t, int op, int root, weft_error *e);
int weft_all_to_all(weft_comm c, void *dst, const void *src, int64_t count, weft_type t, weft_error *e);
int weft_gather(weft_comm c, void *dst, const void *src, int64_t count, weft_type t, int root, weft_error *e);
int weft_scatter(weft_comm c, void *dst, const void *src, int64_t count, weft_type t, int root, weft_error *e);
int weft_scan(weft_comm c, void *buf, int64_t count, weft_type t, int op, weft_error *e);
int weft_exscan(weft_comm c, void *buf, int64_t count, weft_type t, int op, weft_error *e);
/* Reductions by a function: f combines count elements of x, of size bytes each, into those of acc. It must be associative and need not
 * be commutative: ranks are combined in their order. All ranks give the same. Scan leaves on rank r what ranks 0 to r give. */
typedef void (*weft_combine)(void *acc, const void *x, int64_t count, void *arg);
int weft_all_reduce_by(weft_comm c, void *buf, int64_t count, int64_t size, weft_combine f, void *arg, weft_error *e);
int weft_scan_by(weft_comm c, void *buf, int64_t count, int64_t size, weft_combine f, void *arg, weft_error *e);
int weft_reduce_scatter_v(weft_comm c, void *dst, const void *src, const int64_t *counts, weft_type t, int op, weft_error *e);
int weft_all_gather_v(weft_comm c, void *dst, const void *src, const int64_t *counts, weft_type t, weft_error *e);
int weft_gather_v(weft_comm c, void *dst, const void *src, const int64_t *counts, weft_type t, int root, weft_error *e);
int weft_scatter_v(weft_comm c, void *dst, const void *src, const int64_t *counts, weft_type t, int root, weft_error *e);
int weft_all_to_all_v(weft_comm c, void *dst, const int64_t *recv_counts, const void *src, const int64_t *send_counts, weft_type t, weft_error *e);
int weft_send(weft_comm c, const void *buf, int64_t count, weft_type t, int to, int tag, weft_error *e);
int weft_recv(weft_comm c, void *buf, int64_t count, weft_type t, int from, int tag, weft_status *status, weft_error *e);
int weft_probe(weft_comm c, int from, int tag, weft_status *status, weft_error *e);
int weft_try_probe(weft_comm c, int from, int tag, weft_status *status, weft_error *e); /* WEFT_PENDING if there is none yet */

/* ---- memory that the other ranks see: no copy is needed, and they may reach it by its key ---- */

int weft_alloc(weft_comm c, int64_t bytes, void **p, weft_error *e); /* all zero; it goes with the last communicator of the join */
int weft_free(weft_comm c, void *p, weft_error *e);
int weft_key_of(weft_comm c, const void *p, int64_t bytes, weft_key *key, weft_error *e);
int weft_notices(weft_comm c, int32_t *from, uint32_t *values, int cap, int *n, weft_error *e); /* those that came; returns at once */

/* ---- ranks that outlive the failure of others: programs started by `weft run --follow` ----
 *
 * weft_follow_next says what to do, weft_follow_done what came of it:
 *
 *   WEFT_FORM   a communicator of the ranks that are there now: take up work on it, with the state of those that have it
 *   WEFT_STEP   one step of work on it; last says that it was the job's last one
 *   WEFT_HALT   too few are left to go on: save what there is
 *   0           the job is over here, with an error if it failed; weft_follow_close is what is left to do
 *
 * When a rank dies, calls on the communicator fail, and after WEFT_FAILED_ELSEWHERE a new WEFT_FORM comes without it. The communicator
 * of a task is the library's: it is good until the next WEFT_FORM and must not be closed. */
#define WEFT_FORM 1
#define WEFT_STEP 2
#define WEFT_HALT 3
#define WEFT_FAILED 1           /* an error of the job itself: it ends on all ranks */
#define WEFT_FAILED_ELSEWHERE 2 /* a call on the communicator failed: another epoch mends it */

typedef struct weft_task {
	uint64_t size;
	int32_t kind;
	int32_t final; /* when the job is over: 1 if this process took its last step with the others */
	weft_comm comm;
	uint64_t epoch;
	int32_t rank;
	int32_t ranks;
	char reason[256]; /* why there is a new epoch */
} weft_task;

int weft_follow(weft_follower *f, weft_error *e); /* takes up the connection with the agent that started this process */
int weft_follow_next(weft_follower f, int64_t timeout_ms, weft_task *t, weft_error *e); /* WEFT_PENDING if there is nothing yet; < 0 waits for ever */
int weft_follow_done(weft_follower f, int last, int failed, const char *why, weft_error *e);
int weft_follow_leave(weft_follower f, weft_error *e); /* asks to leave; the others go on without this rank */
int weft_follow_close(weft_follower f, weft_error *e);

/* ---- transfers between agents that come and go: docs/reference/transfers.md says what holds ----
 *
 *     weft_xfer_config cfg = {.size = sizeof cfg, .name = "decode"};
 *     weft_xfer_open(&cfg, &a, &e);
 *     weft_xfer_register(a, "mine", memory, bytes, 0, &mine, &e);
 *     weft_xfer_meet(a, "prefill", "10.0.0.1:7000", 5000, &peer, &e);      or weft_xfer_peer_open, with what weft_xfer_describe gave there
 *     weft_xfer_region(peer, "kv", &theirs, NULL, &e);
 *     weft_xfer_prepare(a, 0, own, n, &local, &e);
 *     weft_xfer_prepare(a, peer, far, n, &remote, &e);
 *     weft_xfer_post(a, &move, &t, &e);
 *     weft_xfer_wait(t, -1, NULL, &e);
 *     weft_xfer_free(t, &e);
 *
 * Codes of these functions are WEFT_XFER_*, or WEFT_INVALID, WEFT_TIMEOUT and the like. */
typedef int64_t weft_xfer_agent;
typedef int64_t weft_xfer_peer;    /* another agent, in one of its lives */
typedef int64_t weft_region; /* a region of this agent or of a peer */
typedef int64_t weft_xfer_list;    /* checked descriptors, which serve many requests */
typedef int64_t weft_xfer_request;

#define WEFT_XFER_BOUNDS 201    /* outside of its region */
#define WEFT_XFER_OVERLAP 202   /* two destinations overlap */
#define WEFT_XFER_LENGTH 203    /* local and remote descriptors do not fit together */
#define WEFT_XFER_REGION 204    /* no such region */
#define WEFT_XFER_ACCESS 205    /* not allowed */
#define WEFT_XFER_KEY 206       /* wrong key of a region */
#define WEFT_XFER_STALE 207     /* of an earlier life */
#define WEFT_XFER_AGENT 208     /* unknown agent */
#define WEFT_XFER_TOKEN 209     /* the tokens differ */
#define WEFT_XFER_LEASE 210     /* the lease is over: the bytes may have changed and must not be used */
#define WEFT_XFER_WITHDRAWN 211 /* by its owner */
#define WEFT_XFER_DEADLINE 212
#define WEFT_XFER_CANCELLED 213
#define WEFT_XFER_GONE 214 /* the agent is gone */
#define WEFT_XFER_LOST 215 /* connection lost */
#define WEFT_XFER_SUM 216  /* wrong checksum */
#define WEFT_XFER_STORAGE 217
#define WEFT_XFER_SHORT 218 /* storage is shorter than its region */
#define WEFT_XFER_FULL 219  /* no space left */
#define WEFT_XFER_EXISTS 220
#define WEFT_XFER_PATH 221 /* the path that was demanded cannot be taken */
#define WEFT_XFER_KIND 222 /* not possible with this kind of region */
#define WEFT_XFER_LIMIT 223
#define WEFT_XFER_CLOSED 224

#define WEFT_XFER_READ 0  /* the peer's bytes come here */
#define WEFT_XFER_WRITE 1 /* own bytes go there */
#define WEFT_XFER_BULK 0
#define WEFT_XFER_LATENCY 1 /* somebody waits */
#define WEFT_XFER_BACKGROUND 2
#define WEFT_XFER_MAY_READ 1 /* what peers may do with a region; 0 is both */
#define WEFT_XFER_MAY_WRITE 2

/* Who an agent is. Set size to sizeof(weft_xfer_config) and the rest to 0 where the default will do. */
typedef struct weft_xfer_config {
	uint64_t size;
	const char *name;
	const char *listen; /* host:port, several with commas, one for each interface that carries data; NULL for 127.0.0.1 and any port */
	const char *token;  /* of the cluster; NULL for WEFT_TOKEN of the environment */
	const char *path;   /* process, shm, pull, unix, tcp: the path of every request, or it fails; NULL to choose */
	int64_t timeout_ms; /* of requests that do not say; 0 for 30 s */
	int64_t lease_ms;   /* 0 for 30 s */
	int32_t streams;    /* connections for each address of a peer; 0 for one */
	int32_t reserved;
} weft_xfer_config;

/* Bytes of a region. */
typedef struct weft_xfer_desc {
	weft_region region;
	int64_t offset;
	int64_t bytes;
} weft_xfer_desc;

/* What a request does. Set size to sizeof(weft_xfer_move). */
typedef struct weft_xfer_move {
	uint64_t size;
	int32_t op;       /* WEFT_XFER_READ, WEFT_XFER_WRITE */
	int32_t urgency;  /* WEFT_XFER_BULK, WEFT_XFER_LATENCY, WEFT_XFER_BACKGROUND */
	weft_xfer_list local;
	weft_xfer_list remote;
	const int64_t *local_index;  /* which descriptors of local, count of them; NULL for all */
	const int64_t *remote_index; /* the same of remote */
	int64_t count;
	const void *notice; /* delivered to the peer once, after the bytes; NULL for none */
	int64_t notice_bytes;
	int64_t timeout_ms; /* from post to the end; 0 for the agent's */
	const char *path;   /* NULL for the agent's choice */
} weft_xfer_move;

/* How a request stands. Set size to sizeof(weft_xfer_status). */
typedef struct weft_xfer_status {
	uint64_t size;
	int32_t state; /* 0 posted, 1 moving, 2 landed, 3 told, 4 done, 5 failed, 6 cancelled */
	int32_t reserved;
	int64_t landed; /* bytes */
	int64_t total;
	char path[16];
	char culprit[208]; /* the agent at fault, once it failed */
} weft_xfer_status;

int weft_xfer_open(const weft_xfer_config *cfg, weft_xfer_agent *a, weft_error *e);
int weft_xfer_close(weft_xfer_agent a, weft_error *e); /* its requests fail, peers find it gone, memory of weft_xfer_alloc is gone */
int weft_xfer_alloc(weft_xfer_agent a, int64_t bytes, void **p, weft_error *e); /* memory that other processes of the host can map */
int weft_xfer_free_memory(weft_xfer_agent a, void *p, weft_error *e);

/* Regions: memory of the program (which must stay until the region is released), a file, an object in a folder or at s3://BUCKET/PREFIX,
 * and memory of a GPU by its number and address (WEFT_NO_DEVICE if it cannot be reached). */
int weft_xfer_register(weft_xfer_agent a, const char *name, void *p, int64_t bytes, int access, weft_region *r, weft_error *e);
int weft_xfer_register_file(weft_xfer_agent a, const char *name, const char *file, int64_t bytes, int access, weft_region *r, weft_error *e);
int weft_xfer_register_object(weft_xfer_agent a, const char *name, const char *place, const char *key, int64_t bytes, int access, weft_region *r, weft_error *e);
int weft_xfer_register_gpu(weft_xfer_agent a, const char *name, int gpu, uint64_t address, int64_t bytes, int access, weft_region *r, weft_error *e);
int weft_xfer_reclaim(weft_region r, int64_t offset, int64_t bytes, int64_t timeout_ms, weft_error *e); /* returns when the bytes may be used again; no peer reaches them until they are published */
int weft_xfer_publish(weft_region r, int64_t offset, int64_t bytes, weft_error *e);                     /* what was reclaimed is filled: peers reach it by descriptions made since */
int weft_xfer_release(weft_region r, int64_t timeout_ms, weft_error *e);                                /* the same for all of it, for good; again if it did not end in time */

/* Agents get to know one another by descriptions. need is the bytes of this one; the text is JSON. */
int weft_xfer_describe(weft_xfer_agent a, char *buf, int64_t cap, int64_t *need, weft_error *e);
int weft_xfer_peer_open(weft_xfer_agent a, const char *description, int64_t bytes, weft_xfer_peer *p, weft_error *e);
int weft_xfer_meet(weft_xfer_agent a, const char *name, const char *address, int64_t timeout_ms, weft_xfer_peer *p, weft_error *e);
int weft_xfer_forget(weft_xfer_peer p, weft_error *e);
int weft_xfer_region(weft_xfer_peer p, const char *name, weft_region *r, int64_t *bytes, weft_error *e); /* bytes may be NULL */

int weft_xfer_prepare(weft_xfer_agent a, weft_xfer_peer p, const weft_xfer_desc *d, int64_t n, weft_xfer_list *l, weft_error *e); /* p is 0 for own regions */
int weft_xfer_unprepare(weft_xfer_list l, weft_error *e);                                                                        /* gives the lease of its reads back */

int weft_xfer_post(weft_xfer_agent a, const weft_xfer_move *m, weft_xfer_request *t, weft_error *e);
int weft_xfer_poll(weft_xfer_request t, weft_xfer_status *s, weft_error *e);                     /* WEFT_PENDING, or how it ended; s may be NULL */
int weft_xfer_wait(weft_xfer_request t, int64_t timeout_ms, weft_xfer_status *s, weft_error *e); /* the same after a while; < 0 for ever, which its deadline bounds */
int weft_xfer_cancel(weft_xfer_request t, weft_error *e);                                        /* within a second; after WEFT_OK no byte lands, here or there */
int weft_xfer_free(weft_xfer_request t, weft_error *e);                                          /* its number is free; cancels what is under way */

int weft_xfer_notify(weft_xfer_agent a, weft_xfer_peer p, const void *data, int64_t bytes, weft_error *e); /* a notice without data moved; delivered once */

/* The next notice: from is the name of the agent that sent it, need is how many bytes it has, buf has room for cap. If that is too little
 * the code is WEFT_XFER_LIMIT and the notice stays: ask again with more room. WEFT_PENDING if none came in time; another code if the
 * request that it belongs to failed, so bytes may be missing. */
int weft_xfer_notice(weft_xfer_agent a, int64_t timeout_ms, char from[208], void *buf, int64_t cap, int64_t *need, weft_error *e);

/* An agent that lines of JSON tell what to do, for weft.nixl of the same version: the lines change without notice, so other programs use the
 * functions above. The answer to a line goes to buf; if it is longer than cap, the code is WEFT_XFER_LIMIT, need is its length, and a call with
 * 0 bytes gets it. */
int weft_xfer_told_open(int64_t *t, weft_error *e);
int weft_xfer_told(int64_t t, const char *line, int64_t bytes, char *buf, int64_t cap, int64_t *need, weft_error *e);
/* Posting a transfer and looking at it, which programs do for every few bytes, without lines. */
typedef struct weft_told_move {
	int64_t local, far, index; /* as lines number them */
	int64_t over;              /* a request to release first; 0 for none */
	int64_t limit_us;
	const void *notice; /* NULL for none */
	int64_t notice_bytes;
	int32_t write, reserved;
} weft_told_move;
typedef struct weft_told_state {
	int64_t request, bytes, took_us;
	int32_t state; /* 0 under way, 1 done, 2 failed */
	char path[12];
} weft_told_state;
int weft_xfer_told_post(int64_t t, const weft_told_move *m, weft_told_state *s, weft_error *e);
int weft_xfer_told_look(int64_t t, int64_t request, weft_told_state *s, weft_error *e);
int weft_xfer_told_close(int64_t t, weft_error *e);

/* ---- blocks of KV caches at a cache service (weft kv serve): docs/how-to/kv.md ----
 *
 * A path is the hashes of a prompt's blocks from its beginning on, WEFT_KV_HASH bytes each. */
typedef int64_t weft_kv;
#define WEFT_KV_HASH 32

int weft_kv_open(const char *address, const char *token, const char *chain, weft_kv *k, weft_error *e); /* token NULL for WEFT_TOKEN, chain NULL for none */
int weft_kv_close(weft_kv k, weft_error *e);
/* Hashes of the whole blocks of tokens, as serving engines compute them: convention vllm (seed as PYTHONHASHSEED) or sglang (seed NULL).
 * count is how many there are, print (which may be NULL) what weft_kv_open's chain takes. */
int weft_kv_hashes(const char *convention, const char *seed, int block_tokens, const uint32_t *tokens, int64_t n, const char *salt, uint8_t *hashes, int64_t *count, char print[64], weft_error *e);
int weft_kv_match(weft_kv k, const uint8_t *hashes, int64_t n, int64_t *blocks, weft_error *e); /* how many from the first on are there */
/* Blocks from the from-th on. The i-th of them lies stride bytes times i behind dst or src; sizes has the bytes of each, and may be NULL
 * if all have stride. got and stored say how many came or are there now. */
int weft_kv_get(weft_kv k, const uint8_t *hashes, int64_t n, int64_t from, void *dst, int64_t stride, int64_t *sizes, int64_t *got, weft_error *e);
int weft_kv_put(weft_kv k, const uint8_t *hashes, int64_t n, int64_t from, const void *src, int64_t stride, const int64_t *sizes, int64_t *stored, weft_error *e);

/* ---- texts: at most cap bytes, 0 at the end included; need is how many it takes ---- */

int weft_way(weft_comm c, char *buf, int64_t cap, int64_t *need, weft_error *e);           /* how memory of GPUs goes from rank to rank, and why */
int weft_explain(weft_comm c, char *buf, int64_t cap, int64_t *need, weft_error *e);       /* which program runs at which size, and why */
int weft_flight_json(weft_comm c, char *buf, int64_t cap, int64_t *need, weft_error *e);   /* the last operations */
int weft_counters_json(weft_comm c, char *buf, int64_t cap, int64_t *need, weft_error *e); /* what the transport counted */

#ifdef __cplusplus
}
#endif
#endif
