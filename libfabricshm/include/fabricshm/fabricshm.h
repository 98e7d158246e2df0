/* fabricshm.h: the C ABI of libfabricshm.
 *
 * A process opens a session with the daemon of its host (fabricd), opens the arena of its job (one
 * contiguous piece of the pool, mapped into every process of the job), and joins groups.
 * Collectives of a group are loads and stores between the ranks' buffers: the daemon is not on the
 * data path.
 *
 * Errors. Every function returns 0 or a negative FABRICSHM_E* code, unless it says otherwise. After
 * a failure the outputs are untouched and nothing is held. fabricshm_error_text() of the calling
 * thread has one line that names what failed. docs/errors.md says what to do about each code.
 *
 * Buffers. A buffer that lies inside the arena is read by the other ranks in place (zero copy); any
 * other buffer is copied through staging memory in the arena. Both always work, on every rank.
 *
 * Threads. Sessions and arenas may be used by any thread. A group serves one collective call at a
 * time: calls of one group from several threads have to be ordered by the caller, in the same order
 * on all ranks. Nothing here is async-signal-safe. After fork() the child must open its own
 * session: every call on the parent's handles and requests is ECLOSED there.
 */
#ifndef FABRICSHM_FABRICSHM_H
#define FABRICSHM_FABRICSHM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FABRICSHM_API __attribute__((visibility("default")))

#define FABRICSHM_VERSION_MAJOR 0
#define FABRICSHM_VERSION_MINOR 1
#define FABRICSHM_VERSION_PATCH 0

/* ---- Errors ---------------------------------------------------------------------------------- */

enum {
    FABRICSHM_OK = 0,
    FABRICSHM_EINVAL = -1,        /* an argument is out of its range */
    FABRICSHM_ENOENT = -2,        /* there is no such object */
    FABRICSHM_EEXIST = -3,        /* the name or the rank is taken */
    FABRICSHM_EBUSY = -4,         /* a live process holds it */
    FABRICSHM_ETIMEOUT = -5,      /* the deadline passed */
    FABRICSHM_EPEER = -6,         /* a peer died or left; fabricshm_error_rank() names it */
    FABRICSHM_EDAEMON = -7,       /* fabricd is gone or does not answer */
    FABRICSHM_ENOMEM = -8,        /* pool, quota or arena is full */
    FABRICSHM_EDENIED = -9,       /* this user may not */
    FABRICSHM_EMISMATCH = -10,    /* ranks called different operations; fabricshm_error_rank() */
    FABRICSHM_EUNSUPPORTED = -11, /* valid, but not for this type, algorithm or build */
    FABRICSHM_ECORRUPT = -12,     /* shared state failed its validation */
    FABRICSHM_EVERSION = -13,     /* library and daemon speak different protocols */
    FABRICSHM_ECLOSED = -14,      /* closed, or belongs to the parent of a fork */
    FABRICSHM_EBROKEN = -15,      /* the group failed earlier: shrink it or leave it */
    FABRICSHM_ESYSTEM = -16,      /* a system call failed; the text has the errno */
    FABRICSHM_EINTERNAL = -17,    /* a bug; please report it */
    FABRICSHM_EPOISONED = -18,    /* the hardware lost a page; fabricshm_error_region() */
    FABRICSHM_ECHANGED = -19      /* the file has another version by now: list it again */
};

/* The identifier of a code, "FABRICSHM_EPEER". Never NULL; static storage. */
FABRICSHM_API const char* fabricshm_error_name(int code);

/* One line on the last failure of the calling thread. Never NULL; valid until its next failure. */
FABRICSHM_API const char* fabricshm_error_text(void);

/* The rank named by the last FABRICSHM_EPEER or FABRICSHM_EMISMATCH of this thread, else -1. */
FABRICSHM_API int fabricshm_error_rank(void);

/* The region that lost a page, after a FABRICSHM_EPOISONED of this thread, else 0. Also 0 when the
 * page belongs to no region (to a group, for example) or the daemon could not be asked. */
FABRICSHM_API uint64_t fabricshm_error_region(void);

/* "0.2.0". Static storage. */
FABRICSHM_API const char* fabricshm_version(void);

/* ---- Types ----------------------------------------------------------------------------------- */

typedef enum fabricshm_dtype {
    FABRICSHM_F64 = 0,
    FABRICSHM_F32 = 1,
    FABRICSHM_F16 = 2,
    FABRICSHM_BF16 = 3,
    FABRICSHM_I8 = 4,
    FABRICSHM_U8 = 5,
    FABRICSHM_I32 = 6,
    FABRICSHM_U32 = 7,
    FABRICSHM_I64 = 8,
    FABRICSHM_U64 = 9,
    FABRICSHM_F64_INT = 10, /* a value and an index, for MINLOC and MAXLOC: fabricshm_f64_int */
    FABRICSHM_F32_INT = 11, /* fabricshm_f32_int */
    FABRICSHM_I32_INT = 12, /* fabricshm_i32_int */
    FABRICSHM_I64_INT = 13, /* fabricshm_i64_int */
    FABRICSHM_F8_E4M3 = 14, /* float8_e4m3fn: to 448; no infinity, too much becomes NaN */
    FABRICSHM_F8_E5M2 = 15  /* float8_e5m2: to 57344; with infinity */
} fabricshm_dtype;

/* A value and where it is, laid out as MPI_DOUBLE_INT, MPI_FLOAT_INT, MPI_2INT and MPI_LONG_INT
 * are: of 16, 8, 8 and 16 bytes, those of 16 with 4 bytes of padding at the end. All kinds move
 * them; operations on them are MINLOC and MAXLOC. Not for tensors and shards. */
typedef struct fabricshm_f64_int {
    double value;
    int32_t index;
} fabricshm_f64_int;
typedef struct fabricshm_f32_int {
    float value;
    int32_t index;
} fabricshm_f32_int;
typedef struct fabricshm_i32_int {
    int32_t value;
    int32_t index;
} fabricshm_i32_int;
typedef struct fabricshm_i64_int {
    int64_t value;
    int32_t index;
} fabricshm_i64_int;

/* What goes with which type (EUNSUPPORTED otherwise):
 *
 *   SUM AVG MIN MAX PROD   numbers: all types but those with an index
 *   BAND BOR BXOR          integers, bit by bit
 *   LAND LOR LXOR          integers as truths: 0 is false, all else is true and is stored as 1
 *   MINLOC MAXLOC          values with an index: the least (largest) value and its index; of equal
 *                          values that with the lowest index. In the order of MIN and MAX: a NaN
 *                          comes before all else, and -0 is below +0. Padding is stored as zeros
 * Where the values of one rank are all there is (a group of one, SCAN at rank 0, EXSCAN at rank 1)
 * they are handed on bit by bit; only AVG may change the payload of a NaN. */
typedef enum fabricshm_op {
    FABRICSHM_SUM = 0,
    FABRICSHM_AVG = 1,
    FABRICSHM_MIN = 2,
    FABRICSHM_MAX = 3,
    FABRICSHM_PROD = 4,
    FABRICSHM_BAND = 5,
    FABRICSHM_BOR = 6,
    FABRICSHM_BXOR = 7,
    FABRICSHM_LAND = 8,
    FABRICSHM_LOR = 9,
    FABRICSHM_LXOR = 10,
    FABRICSHM_MINLOC = 11,
    FABRICSHM_MAXLOC = 12
} fabricshm_op;

/* Bytes of one element; 0 for an unknown type. */
FABRICSHM_API size_t fabricshm_dtype_size(fabricshm_dtype dtype);

#define FABRICSHM_NAME_MAX 64 /* bytes of a name, its terminating zero included */
#define FABRICSHM_DIMS_MAX 8
#define FABRICSHM_WORLD_MAX 256
#define FABRICSHM_TIMEOUT_DEFAULT (-1) /* milliseconds: what the session was opened with */

typedef struct fabricshm_session fabricshm_session;
typedef struct fabricshm_arena fabricshm_arena;
typedef struct fabricshm_group fabricshm_group;
typedef struct fabricshm_request fabricshm_request;

/* ---- Launcher -------------------------------------------------------------------------------- */

/* What the launcher of this process set in its environment. -1: it does not say. */
typedef struct fabricshm_launch {
    size_t struct_size; /* sizeof(fabricshm_launch) */
    int32_t rank;
    int32_t world;
    int32_t local_rank;   /* among the ranks of its host */
    int32_t local_world;  /* how many those are */
    int32_t node;         /* which host it is */
    int32_t nodes;        /* how many those are */
    const char* launcher; /* "torchrun" (also by hand, and by fabricrun), "openmpi", "mpich" or
                             "slurm"; static storage */
} fabricshm_launch;

/* Reads rank, world and places from the variables of torchrun, OpenMPI, MPICH and Slurm; the first
 * of these that has both rank and world counts, and others that agree with it fill in what it does
 * not say. docs/hosts.md of the project has the table. Set struct_size before the call.
 *
 * ENOENT: no launcher started this process. EINVAL: an argument is NULL, struct_size is too small,
 * a variable is no number or out of its range, rank or world is missing, or two launchers
 * contradict each other; the text names the variable. Reads the environment, so not while another
 * thread changes that. */
FABRICSHM_API int fabricshm_launcher(fabricshm_launch* launch);

/* ---- Session --------------------------------------------------------------------------------- */

typedef struct fabricshm_session_options {
    size_t struct_size; /* sizeof(fabricshm_session_options) */
    const char* socket; /* NULL: $FABRIC_SOCKET, $XDG_RUNTIME_DIR/fabricd/attach.sock, then
                           /run/fabricd/attach.sock, /tmp/fabricd-UID/attach.sock */
    int64_t timeout_ms; /* of every later call that waits; 0 or -1: 30000 */
    const char* label;  /* NULL: the program's name. Shown by fabricctl sessions */
    const char* device; /* What this process computes on: its regions count against the quota of
                           that device of fabricd's device file. NULL: $FABRIC_DEVICE, else none */
} fabricshm_session_options;

/* Attaches this process to fabricd. `options` may be NULL. Starts one thread that sleeps on the
 * socket and attaches again when the daemon was restarted. EDAEMON: no daemon listens (the text
 * names the socket), and none did within 5 s or the timeout, the shorter of them, if the socket's
 * folder is there: a daemon that is just restarted is waited for. EDENIED: this user is not
 * admitted. ENOENT: fabricd has no device of that name. EVERSION. Close with
 * fabricshm_session_close(). */
FABRICSHM_API int fabricshm_session_open(const fabricshm_session_options* options,
                                         fabricshm_session** session);

/* Closes the session with all its arenas and groups. NULL is allowed. Pointers into its arenas are
 * invalid afterwards. Waits for no daemon: where several hosts share the pool, a thread of the
 * process says goodbye until it is answered, and ends then. */
FABRICSHM_API void fabricshm_session_close(fabricshm_session* session);

/* The daemon that the session was opened with, in words: its socket and its process, as
 * "/run/fabricd/attach.sock (pid 4711)". For messages that distinguish two daemons. Valid until the
 * session is closed; "" for NULL. */
FABRICSHM_API const char* fabricshm_session_daemon(const fabricshm_session* session);

/* Where the session is attached, as one line of printable characters without a newline, at most
 * 1024 bytes: host, daemon and pool. For programs whose ranks come together by themselves, and
 * compare it by fabricshm_identity_difference(). The process number of the daemon is in it for
 * people, and is no difference: the daemon may have been started again in between. Valid until the
 * session is closed; "" for NULL. */
FABRICSHM_API const char* fabricshm_session_identity(const fabricshm_session* session);

/* Why two ranks cannot join one group of one arena, in one sentence: `mine` and `theirs` are lines
 * of fabricshm_session_identity(), the two names, as "rank 3", what the sentence calls the ranks.
 * Writes at most `size` bytes into `text`, with the terminating zero; what is longer is cut. OK
 * with an empty text: they can, as far as is known. EMISMATCH: they are on two hosts, or attached
 * to two daemons or pools. EINVAL: a line is none of this version, or an argument is NULL. */
FABRICSHM_API int fabricshm_identity_difference(const char* mine, const char* mine_name,
                                                const char* theirs, const char* theirs_name,
                                                char* text, size_t size);

/* What became of one incarnation of a host: docs/hosts.md of the project. */
typedef enum fabricshm_host_state {
    FABRICSHM_HOST_LISTED = 0, /* by a list of hosts; nothing is known of it */
    FABRICSHM_HOST_UP = 1,
    FABRICSHM_HOST_BACK = 2,    /* up, with an incarnation before it that is not fenced */
    FABRICSHM_HOST_SUSPECT = 3, /* its lease is gone; may be up */
    FABRICSHM_HOST_LOST = 4,    /* its ranks are given up, its memory is kept from all */
    FABRICSHM_HOST_FENCED = 5   /* and proved not to write to it any more */
} fabricshm_host_state;

/* What a lost incarnation waits for until it is fenced, or how a fenced one was. */
typedef enum fabricshm_fence {
    FABRICSHM_FENCE_NONE = 0,        /* it is neither lost nor fenced */
    FABRICSHM_FENCE_PERSON = 1,      /* lost: fabricctl hosts fence HOST --confirmed */
    FABRICSHM_FENCE_COMMAND = 2,     /* lost: the fence command runs, or will */
    FABRICSHM_FENCE_FAILED = 3,      /* lost: the command failed, and will be tried again */
    FABRICSHM_FENCE_BY_COMMAND = 4,  /* fenced: the command ended well */
    FABRICSHM_FENCE_BY_BOOT = 5,     /* fenced: another boot of its machine has the name */
    FABRICSHM_FENCE_BY_SELF = 6,     /* fenced: by its own word */
    FABRICSHM_FENCE_BY_LEAVING = 7,  /* fenced: its daemon ended with no session left */
    FABRICSHM_FENCE_BY_OPERATOR = 8, /* fenced: by a person's word */
    FABRICSHM_FENCE_BY_OTHER = 9     /* fenced: in a way that this version has no number for */
} fabricshm_fence;

enum {
    FABRICSHM_HOST_SELF = 1u,  /* the place of the daemon of this session */
    FABRICSHM_HOST_NEWEST = 2u /* no newer incarnation of that host is known */
};

typedef struct fabricshm_host {
    char name[FABRICSHM_NAME_MAX];
    uint64_t incarnation; /* rises for ever; 0: of a listed host */
    int64_t state_ms;     /* how long it has been in this state; of a listed host 0 */
    int32_t state;        /* fabricshm_host_state */
    int32_t fence;        /* fabricshm_fence */
    uint32_t flags;       /* FABRICSHM_HOST_* */
    uint32_t reserved[9]; /* 0 */
} fabricshm_host;

typedef struct fabricshm_cluster {
    size_t struct_size; /* sizeof(fabricshm_cluster) */
    int32_t total;      /* incarnations that the daemon knows; 0: it is in no cluster */
    int32_t admits;     /* 1: groups over several hosts may be made now; 0: joining one is EBUSY, or
                           the daemon is in no cluster, where it is not asked */
} fabricshm_cluster;

/* The hosts of the daemon's cluster, as `fabricctl hosts` shows them: by name, the newest
 * incarnation of each first. Writes the first `capacity` of them to `hosts`, which may be NULL when
 * `capacity` is 0, and their number to cluster->total: when that is larger, ask again with room for
 * it. Set cluster->struct_size before the call; untouched on failure, as `hosts` is.
 *
 * EINVAL: an argument is NULL, `capacity` is negative, struct_size is too small. EDAEMON: the
 * daemon is gone. ETIMEOUT: it does not answer, or the hosts changed faster than they could be
 * read. One round trip to the daemon, and one more for each five hosts; waits at most the timeout
 * of the session. Thread-safe. */
FABRICSHM_API int fabricshm_session_hosts(fabricshm_session* session, fabricshm_host* hosts,
                                          int32_t capacity, fabricshm_cluster* cluster);

/* ---- Arena and regions ----------------------------------------------------------------------- */

enum {
    FABRICSHM_ARENA_EXCLUSIVE = 1u, /* EEXIST when the arena already exists */
    /* In the host's ordinary memory, next to its processors, however far the pool is; only the
     * processes of this host reach it. EUNSUPPORTED: the daemon's pool is a device and it has no
     * other memory. EEXIST: the arena is there, and in an emulated machine's memory. */
    FABRICSHM_ARENA_LOCAL = 2u
};

/* Opens the arena `name` of this user, making it with `bytes` (0: the daemon's default) if it is
 * not there. It lives until the last session that opened it ends. `bytes` is how far it may grow:
 * pages are committed before anything is granted in them, so a full pool or quota is ENOMEM of the
 * call that asks for the bytes, never a SIGBUS later. ENOMEM here: it could never be filled.
 * EDENIED: the arena belongs to another user. Blocks for a round trip, plus the time to clear the
 * first 16 MiB when it is made (pools that commit whole, as DAX devices do: about 0.3 s/GiB). */
FABRICSHM_API int fabricshm_arena_open(fabricshm_session* session, const char* name, uint64_t bytes,
                                       uint32_t flags, fabricshm_arena** arena);
FABRICSHM_API void fabricshm_arena_close(fabricshm_arena* arena);

/* Where this process sees the arena, and its length in bytes. */
FABRICSHM_API void* fabricshm_arena_base(const fabricshm_arena* arena);
FABRICSHM_API uint64_t fabricshm_arena_bytes(const fabricshm_arena* arena);

typedef struct fabricshm_region {
    uint64_t id;         /* the same in every process */
    uint64_t generation; /* rises when the id is used again, after 256 others were given back */
    uint64_t offset;     /* bytes from the arena's base: what to pass to peers, not a pointer */
    uint64_t bytes;
    void* base; /* in this process */
} fabricshm_region;

/* Makes a region of at least `bytes`, aligned to 4096. It belongs to this session and goes with it.
 * The memory is not cleared. One round trip, and about 0.3 s/GiB when the arena has to grow for it.
 * ENOMEM: the arena has no such hole, or pool or quota do not suffice to grow it. */
FABRICSHM_API int fabricshm_region_create(fabricshm_arena* arena, uint64_t bytes,
                                          fabricshm_region* region);
/* Finds a region of a peer by id. ENOENT when it is gone. */
FABRICSHM_API int fabricshm_region_open(fabricshm_arena* arena, uint64_t id,
                                        fabricshm_region* region);
/* Gives it back. Only its owner may (EDENIED); ENOENT when it is gone. */
FABRICSHM_API int fabricshm_region_free(fabricshm_arena* arena, uint64_t id);

/* Memory inside the arena without a round trip: blocks are cut from regions that this session
 * fetches in large pieces. 64-byte aligned. NULL when the arena is full. What is no block, or no
 * block any more, is logged when it is freed, and nothing happens. Thread-safe. */
FABRICSHM_API void* fabricshm_alloc(fabricshm_arena* arena, uint64_t bytes);
FABRICSHM_API void fabricshm_free(fabricshm_arena* arena, void* block);

/* ---- Named tensors --------------------------------------------------------------------------- */

typedef struct fabricshm_tensor {
    void* data; /* in this process; 128-byte aligned */
    uint64_t bytes;
    uint64_t region_id;
    fabricshm_dtype dtype;
    int32_t ndim;
    int64_t shape[FABRICSHM_DIMS_MAX]; /* elements, row-major, no gaps */
    char name[FABRICSHM_NAME_MAX];
} fabricshm_tensor;

/* Makes the tensor `name` (EEXIST when it is there). Its version is 0 until it is published. */
FABRICSHM_API int fabricshm_tensor_create(fabricshm_arena* arena, const char* name,
                                          fabricshm_dtype dtype, int ndim, const int64_t* shape,
                                          fabricshm_tensor* tensor);
/* Opens it, waiting up to `timeout_ms` for it to be made (ETIMEOUT). */
FABRICSHM_API int fabricshm_tensor_open(fabricshm_arena* arena, const char* name,
                                        int64_t timeout_ms, fabricshm_tensor* tensor);
/* Makes all earlier writes to the tensor visible and raises its version by one; wakes waiters.
 * `version` (may be NULL) receives the new one. */
FABRICSHM_API int fabricshm_tensor_publish(fabricshm_arena* arena, const fabricshm_tensor* tensor,
                                           uint64_t* version);
/* Waits until the version is at least `version`; `seen` (may be NULL) receives the one found.
 * ETIMEOUT. EPEER when the owner died first (fabricshm_error_rank() is -1). */
FABRICSHM_API int fabricshm_tensor_wait(fabricshm_arena* arena, const fabricshm_tensor* tensor,
                                        uint64_t version, int64_t timeout_ms, uint64_t* seen);
FABRICSHM_API int fabricshm_tensor_free(fabricshm_arena* arena, const fabricshm_tensor* tensor);

/* ---- Groups ---------------------------------------------------------------------------------- */

#define FABRICSHM_ANY_RANK (-1)

/* Joins group `name` of `world` ranks as `rank` (or FABRICSHM_ANY_RANK: the daemon assigns one) and
 * waits until all are there: ETIMEOUT otherwise, whose text has the ranks that are not. EEXIST: the
 * rank is taken or the group is complete. EINVAL: another rank gave another world size. */
FABRICSHM_API int fabricshm_group_join(fabricshm_arena* arena, const char* name, int rank,
                                       int world, int64_t timeout_ms, fabricshm_group** group);
/* Gathers `bytes` bytes of each rank into `all`, which has world times as many, in rank order: 0,
 * or anything else when that failed. As MPI_Allgather of bytes does it, or a store of keys. */
typedef int (*fabricshm_exchange)(void* context, const void* mine, size_t bytes, void* all);

/* A group whose ranks may be on several hosts. */
typedef struct fabricshm_hosts_spec {
    size_t struct_size; /* sizeof(fabricshm_hosts_spec) */
    const char* name;
    int32_t rank;
    int32_t world;
    fabricshm_exchange exchange; /* called twice, on this thread, by all ranks */
    void* context;               /* of exchange */
    /* Networks between the hosts that may be used, as "10.0.0.0/8,fd00::/8": of the first one in
     * which this host has an address that address is taken. NULL: $FABRIC_NET_TRUSTED. What crosses
     * it is neither encrypted nor authenticated. */
    const char* trusted;
    int64_t timeout_ms;
} fabricshm_hosts_spec;

/* Joins a group whose ranks are in the arenas of several daemons, on one host or on several: ranks
 * whose arena is the same memory are one host of the group. Where all of them are, this is
 * fabricshm_group_join(). Else libfabricshm_net.so is loaded, and the ranks are connected by
 * libfabric. Such a group has all kinds of fabricshm_call, with AUTO, ASYNC and no flags;
 * docs/hosts.md of the project says what else it has not (EUNSUPPORTED). All ranks wait until all
 * are connected.
 *
 * EDENIED: no trusted network was named, or this host has no address in it. EUNSUPPORTED: there is
 * no libfabricshm_net.so, no provider of libfabric suits, or the arena's memory is not coherent.
 * EPEER: a rank failed; the text has its host and its reason. ETIMEOUT. EINVAL: also when the
 * exchange failed, or gave what is no rank's record; the text has the rank. */
FABRICSHM_API int fabricshm_group_join_hosts(fabricshm_arena* arena,
                                             const fabricshm_hosts_spec* spec,
                                             fabricshm_group** group);

/* How many hosts the group's ranks are on, and on which of them, 0 to hosts - 1, `rank` is. */
FABRICSHM_API int fabricshm_group_hosts(const fabricshm_group* group);
FABRICSHM_API int fabricshm_group_host_of(const fabricshm_group* group, int rank);

/* Says that host `host` of the group is dead, as a membership service knows it: from the return of
 * this call on nothing that its ranks have sent lands in this process, waits for them end with
 * EPEER soon, and fabricshm_group_shrink() goes on without them. Thread-safe: also while an
 * operation runs. EINVAL: it is no other host of the group. */
FABRICSHM_API int fabricshm_group_host_lost(fabricshm_group* group, int host);

/* Leaves and frees it, after what was started has ended. Not a collective: others may still be in
 * their last operation, and complete it; one that needs this rank for more gets EPEER with its
 * number at once. */
FABRICSHM_API void fabricshm_group_leave(fabricshm_group* group);

/* This rank gives the group up: its operations, those that run, those that were started and later
 * ones, end with EPEER or EBROKEN, but for what was about to end well; on all other ranks those
 * that wait, whatever for, with EPEER and its number. The group is still to be left. Thread-safe,
 * also while an operation runs; waits for nothing. Operations on streams: fabricshm_cuda_abort().
 */
FABRICSHM_API int fabricshm_group_abort(fabricshm_group* group);

FABRICSHM_API int fabricshm_group_rank(const fabricshm_group* group);
FABRICSHM_API int fabricshm_group_world(const fabricshm_group* group);

/* After EPEER, ETIMEOUT or EBROKEN: makes a new group of the members that are alive, ranks in the
 * old order without gaps, once all of them have called this. The old group stays broken; leave it.
 * ETIMEOUT: a member lives and has not called it (one that is stopped, say: end it). EPEER,
 * EBROKEN: another one died or gave up meanwhile. The call may be repeated, on the same group. Of a
 * group over several hosts, the others go on without a host of which a rank is stopped: its living
 * ranks get ETIMEOUT. */
FABRICSHM_API int fabricshm_group_shrink(fabricshm_group* group, int64_t timeout_ms,
                                         fabricshm_group** survivors);

/* After EPEER, ETIMEOUT, EMISMATCH or EBROKEN, by a rank that goes on without shrinking: waits
 * until no peer stores into the buffers that this rank gave to the group any more. Ends this rank's
 * part in the group, as fabricshm_group_shrink() does. ETIMEOUT: fabricshm_error_rank() may still
 * do so (a process that is stopped, say); call again. Needs no daemon. */
FABRICSHM_API int fabricshm_group_quiesce(fabricshm_group* group, int64_t timeout_ms);

/* ---- Collectives ----------------------------------------------------------------------------- */

typedef enum fabricshm_kind {
    FABRICSHM_ALLREDUCE = 0,
    FABRICSHM_REDUCE_SCATTER = 1,
    FABRICSHM_ALL_GATHER = 2,
    FABRICSHM_BROADCAST = 3,
    FABRICSHM_REDUCE = 4,
    FABRICSHM_GATHER = 5,
    FABRICSHM_SCATTER = 6,
    FABRICSHM_ALL_TO_ALL = 7,
    FABRICSHM_BARRIER = 8,
    FABRICSHM_SEND = 9,
    FABRICSHM_RECV = 10,
    FABRICSHM_SCAN = 11,
    FABRICSHM_EXSCAN = 12
} fabricshm_kind;

typedef enum fabricshm_algorithm {
    FABRICSHM_AUTO = 0,   /* the tuner's table decides; FABRIC_ALGORITHM overrides it */
    FABRICSHM_FLAT = 1,   /* all ranks read everything through the group's slots: small */
    FABRICSHM_DIRECT = 2, /* each rank reduces a part from all peers in place: arena buffers */
    FABRICSHM_RING = 3,   /* neighbour by neighbour, for chains and switches */
    FABRICSHM_STAGED = 4, /* direct through staging memory, in pieces: buffers anywhere. For kinds
                             other than ALLREDUCE the same as FLAT */
    FABRICSHM_HOST = 5    /* gathered by rank 0, reduced there, read back by all */
} fabricshm_algorithm;

typedef enum fabricshm_trigger {
    FABRICSHM_ASYNC = 0, /* each rank starts when the data it needs is there */
    FABRICSHM_SYNC = 1   /* rank 0 sees all ready, then commands the start */
} fabricshm_trigger;

#define FABRICSHM_ANY_PEER (-1) /* receive from the first rank that sends */

/* Flags of a call. */
enum {
    /* One result for all ranks: every rank names the same output, in the arena, and it is written
     * once instead of once per rank. For ALLREDUCE, BROADCAST and ALL_GATHER, with AUTO or DIRECT;
     * all inputs lie in the arena, too. The rules for a rank's own two buffers stay: any rank may
     * be in place. When any rank's call has returned, all of the result is there and no rank stores
     * into it any more; other ranks may still be about to read it, so a rank that wants to write
     * there first waits until they have: by a barrier, or any later collective in which it needs
     * something of all. */
    FABRICSHM_SHARED_OUTPUT = 1u
};

/* One operation. Every rank of the group gives the same kind, count, dtype, op, root, algorithm,
 * trigger and flags (EMISMATCH otherwise), and its own buffers. The meaning of `count`, in
 * elements, by kind:
 *
 *   kind             input                        output
 *   ALLREDUCE        count                        count, the same bits on every rank
 *   REDUCE_SCATTER   world * count                count: part `rank` of the reduction
 *   ALL_GATHER       count                        world * count, in rank order
 *   BROADCAST        count at root                count
 *   REDUCE           count                        count at root
 *   GATHER           count                        world * count at root
 *   SCATTER          world * count at root        count
 *   ALL_TO_ALL       world * count                world * count
 *   SCAN             count                        count: the reduction of ranks 0 .. rank
 *   EXSCAN           count                        count: of ranks 0 .. rank - 1; at rank 0 none,
 *                                                 its output is ignored and left as it is
 *   BARRIER          none: `root`, `peer`, `tag` and both buffers are ignored
 *   SEND, RECV       count to / from `peer`
 *
 * `op` is for ALLREDUCE, REDUCE_SCATTER, REDUCE, SCAN and EXSCAN; the others ignore it, whatever
 * its value.
 *
 * With `counts` (world elements; every rank passes the same) parts may differ in size: part r has
 * counts[r] elements and starts at the sum of the counts before it; `count` is ignored. It is for
 * REDUCE_SCATTER, ALL_GATHER, GATHER and SCATTER. ALL_TO_ALL takes `counts` as what this rank sends
 * to each peer and `recv_counts` as what it receives from each (both or neither; own values).
 * Input and output may be the same address (in place), but for kinds whose one buffer is a part of
 * the other: of ALL_GATHER and GATHER the input may be the rank's own part of the output, of
 * REDUCE_SCATTER and SCATTER the output its own part of the input. Else they must not overlap. A
 * zero count is allowed everywhere.
 *
 * The output of one rank must not overlap a buffer of another, unless FABRICSHM_SHARED_OUTPUT says
 * that all have the same: which bytes come last would be left to chance. Where the ranks show each
 * other their buffers anyway (from about 1 KiB on, in the arena), all of them get EINVAL for it and
 * the group stays whole; below that it is not seen, unless rank 0 was started with
 * FABRIC_CHECK=buffers in its environment: the group then checks every operation, at the price of
 * one more barrier each. */
typedef struct fabricshm_call {
    size_t struct_size; /* sizeof(fabricshm_call) */
    fabricshm_kind kind;
    fabricshm_dtype dtype;
    fabricshm_op op;
    fabricshm_algorithm algorithm;
    fabricshm_trigger trigger;
    int32_t root;           /* BROADCAST, REDUCE, GATHER, SCATTER */
    int32_t peer;           /* SEND, RECV (or FABRICSHM_ANY_PEER); never the own rank: EINVAL */
    int32_t tag;            /* SEND, RECV: only equal tags match, in the order sent */
    const void* input;      /* borrowed until the call or its request completes */
    void* output;           /* likewise */
    uint64_t count;         /* elements */
    const uint64_t* counts; /* NULL, or world elements; copied by the call */
    const uint64_t* recv_counts; /* NULL, or world elements; copied by the call */
    int64_t timeout_ms;          /* FABRICSHM_TIMEOUT_DEFAULT: the session's. Of a collective that
                                    was started, from when it begins, not while it is queued */
    uint32_t flags;              /* FABRICSHM_SHARED_OUTPUT, or 0 */
    uint32_t reserved;           /* 0 */
} fabricshm_call;

/* Runs the operation and returns when this rank's buffers may be used again.
 * EPEER: a rank died, or left the group before it did its part. ETIMEOUT: in a collective
 * fabricshm_error_rank() did not come. EMISMATCH. EBROKEN: it failed before. EPOISONED: the
 * hardware lost a page of a buffer or of the group's own memory. After any of these five from a
 * collective the group is broken, the output is undefined, and so is the other ranks'; peers may
 * still store into this rank's output (never into anything else): do not use it before
 * fabricshm_group_quiesce() or fabricshm_group_shrink() returned OK. The input may be written at
 * once: no peer takes for a result what it reads of it now.
 *
 * SEND returns when the buffer may be used again. To each peer there is room for at least 16
 * messages of up to 4 KiB, or 64 KiB in larger ones, that the receiver has not asked for yet; when
 * it is full, and for a message of more than 64 KiB, SEND waits for the receiver, until its
 * deadline. RECV of a peer whose messages are not those that a sender writes ends with ECORRUPT.
 * What a rank of this host had sent before it left or died can be received; of another host's what
 * it had sent before it left, and what had come of it before it died.
 *
 * ETIMEOUT of a RECV leaves the group as it was: a message that had begun to come in, and is in
 * part in the output, is the next RECV's that asks for it. A sender that is just copying to the
 * output itself (both buffers in the arena, from 128 KiB on) is waited for up to 2 s longer; if it
 * is still not through, the group is as after a collective that failed. ETIMEOUT of a SEND leaves
 * the group as it was, too, unless the receiver may be reading the input itself, which is in the
 * arena and above 64 KiB. EMISMATCH of a RECV (the message has another size, and is dropped) and
 * EPEER of a RECV leave it, too. EINVAL and EUNSUPPORTED leave the group as it was, but are seen by
 * this rank alone, unless they are about where the ranks' buffers lie. */
FABRICSHM_API int fabricshm_run(fabricshm_group* group, const fabricshm_call* call);

/* Starts the operation; it proceeds on the session's progress thread. Collectives of a group run in
 * the order they were started, SEND and RECV concurrently. Always finish with fabricshm_wait(). */
FABRICSHM_API int fabricshm_start(fabricshm_group* group, const fabricshm_call* call,
                                  fabricshm_request** request);
/* 1: complete (fabricshm_wait() will not block), 0: not yet, negative: it failed. */
FABRICSHM_API int fabricshm_test(fabricshm_request* request);
/* Waits for it, returns its result and frees it. The deadline is the operation's own. */
FABRICSHM_API int fabricshm_wait(fabricshm_request* request);
/* For RECV after completion, before fabricshm_wait(): the rank that sent. */
FABRICSHM_API int fabricshm_request_peer(const fabricshm_request* request);
/* Calls `done` once, on the progress thread or at once when already complete; several are called in
 * the order given. It must not block and
 * must not call into this library but for fabricshm_wait() on this request. */
FABRICSHM_API int fabricshm_on_complete(fabricshm_request* request,
                                        void (*done)(void* context, int result), void* context);

/* A call of `kind` with the usual settings: algorithm by the tuner, each rank starts
 * when it is ready, the session's timeout. */
static inline fabricshm_call fabricshm_call_make(fabricshm_kind kind, fabricshm_dtype dtype,
                                                 fabricshm_op op, const void* input, void* output,
                                                 uint64_t count) {
    const fabricshm_call call = {sizeof(fabricshm_call),
                                 kind,
                                 dtype,
                                 op,
                                 FABRICSHM_AUTO,
                                 FABRICSHM_ASYNC,
                                 0,
                                 0,
                                 0,
                                 input,
                                 output,
                                 count,
                                 NULL,
                                 NULL,
                                 FABRICSHM_TIMEOUT_DEFAULT,
                                 0,
                                 0};
    return call;
}

/* The calls people make most, on top of fabricshm_run(). */
static inline int fabricshm_allreduce(fabricshm_group* group, const void* input, void* output,
                                      uint64_t count, fabricshm_dtype dtype, fabricshm_op op) {
    const fabricshm_call call =
        fabricshm_call_make(FABRICSHM_ALLREDUCE, dtype, op, input, output, count);
    return fabricshm_run(group, &call);
}

static inline int fabricshm_broadcast(fabricshm_group* group, void* buffer, uint64_t count,
                                      fabricshm_dtype dtype, int root) {
    fabricshm_call call =
        fabricshm_call_make(FABRICSHM_BROADCAST, dtype, FABRICSHM_SUM, buffer, buffer, count);
    call.root = root;
    return fabricshm_run(group, &call);
}

static inline int fabricshm_all_gather(fabricshm_group* group, const void* input, void* output,
                                       uint64_t count, fabricshm_dtype dtype) {
    const fabricshm_call call =
        fabricshm_call_make(FABRICSHM_ALL_GATHER, dtype, FABRICSHM_SUM, input, output, count);
    return fabricshm_run(group, &call);
}

static inline int fabricshm_reduce_scatter(fabricshm_group* group, const void* input, void* output,
                                           uint64_t count, fabricshm_dtype dtype, fabricshm_op op) {
    const fabricshm_call call =
        fabricshm_call_make(FABRICSHM_REDUCE_SCATTER, dtype, op, input, output, count);
    return fabricshm_run(group, &call);
}

static inline int fabricshm_scan(fabricshm_group* group, const void* input, void* output,
                                 uint64_t count, fabricshm_dtype dtype, fabricshm_op op) {
    const fabricshm_call call =
        fabricshm_call_make(FABRICSHM_SCAN, dtype, op, input, output, count);
    return fabricshm_run(group, &call);
}

static inline int fabricshm_exscan(fabricshm_group* group, const void* input, void* output,
                                   uint64_t count, fabricshm_dtype dtype, fabricshm_op op) {
    const fabricshm_call call =
        fabricshm_call_make(FABRICSHM_EXSCAN, dtype, op, input, output, count);
    return fabricshm_run(group, &call);
}

static inline int fabricshm_barrier(fabricshm_group* group) {
    const fabricshm_call call =
        fabricshm_call_make(FABRICSHM_BARRIER, FABRICSHM_U8, FABRICSHM_SUM, NULL, NULL, 0);
    return fabricshm_run(group, &call);
}

/* ---- Steps, directives and quotas ------------------------------------------------------------ */

/* What a trainer reports to the daemon of its host about its steps, and what the daemon asks of it
 * in return. docs/telemetry.md of the project has the whole story.
 *
 * The calls work on memory that is shared with the daemon: after the first one no system call is
 * made and nothing waits, whether the daemon is there or not. Training never fails because of them.
 */

/* Ranks that a directive has a place for: all of the largest group. */
#define FABRICSHM_PEERS_MAX 256

/* What one step of training was like. Make it with fabricshm_step_info_make(), then set what is
 * known. */
typedef struct fabricshm_step_info {
    size_t struct_size;           /* sizeof(fabricshm_step_info) */
    const fabricshm_group* group; /* whose ranks train together; NULL: as in the last call */
    uint64_t samples;             /* that this step was made of, on this rank */
    double loss;                  /* NaN: not known, here and below */
    double gradient_norm;         /* of this rank's gradient, before it is merged */
    double mean_gradient_norm;    /* of the merged gradient */
    int64_t compute_ns; /* forward and backward; -1: what is left when the library takes its waiting
                           and its communication off the time since the last call */
    uint32_t queue;     /* units of work that wait on this rank; 0: no such thing */
    uint32_t reserved;  /* 0 */
} fabricshm_step_info;

/* What the daemon asks for. Every field may be "not set": then the trainer does as it likes. */
typedef struct fabricshm_directive {
    size_t struct_size; /* sizeof(fabricshm_directive); what a library does not know is zeros */
    uint64_t serial;    /* 0: there are none yet; rises with every change */
    uint64_t decision;  /* its number for `fabricctl why` */
    uint64_t group_id;  /* fabricshm_group_id() of the group it is about; 0: none in particular */
    int32_t world;      /* of that group */
    uint32_t sync_interval;                   /* steps between two averagings; 0: not set */
    double batch_share[FABRICSHM_PEERS_MAX];  /* by rank, adds up to 1; all 0: not set */
    uint32_t work_units[FABRICSHM_PEERS_MAX]; /* micro-batches by rank; all 0: not set */
} fabricshm_directive;

#define FABRICSHM_NO_LIMIT UINT64_MAX

/* What may be held of the pool. When the limit shrinks, this is announced first: from then on
 * nothing is granted beyond target_bytes, and processes have left_ms to give something back. Then
 * the limit is cut, never below what is in use. No process loses memory that it holds. */
typedef struct fabricshm_limit {
    uint64_t limit_bytes;  /* FABRICSHM_NO_LIMIT: none */
    uint64_t target_bytes; /* less than limit_bytes while it shrinks, otherwise the same */
    uint64_t used_bytes; /* by all that share the limit; when it last changed, or 0.1 s ago while it
                            shrinks */
    int64_t left_ms;     /* until it is cut; 0: it does not shrink, or is about to be cut */
} fabricshm_limit;

/* The limits of a session. */
typedef struct fabricshm_quota {
    size_t struct_size; /* sizeof(fabricshm_quota) */
    uint64_t serial;    /* 0: the daemon has not said yet; rises with every new limit or target */
    fabricshm_limit device; /* of all sessions of its device, for their regions */
    fabricshm_limit user;   /* of all sessions of its user, for their arenas */
} fabricshm_quota;

/* A step of `samples` samples of which nothing else is known. */
static inline fabricshm_step_info fabricshm_step_info_make(uint64_t samples) {
    const double unknown = __builtin_nan("");
    fabricshm_step_info info = {
        sizeof(fabricshm_step_info), NULL, samples, unknown, unknown, unknown, -1, 0, 0};
    return info;
}

/* Ends a step: call it once after each, from the thread that trains. The time of a step is that
 * since the call before; of the first one only the samples count. `info` may be NULL: a step of
 * which nothing is known. The first call asks the daemon for a page to write to, and what is said
 * before that is there is not lost.
 *
 * EINVAL: `session` is NULL, struct_size is not one that was ever valid, compute_ns is below -1 or
 * `group` is of another session. ECLOSED: in a child of fork(). Otherwise 0, also while the daemon
 * is away. Thread-safe; some 100 ns. */
FABRICSHM_API int fabricshm_step(fabricshm_session* session, const fabricshm_step_info* info);

/* Copies the directives in force to `directive`, whose struct_size is set. While the daemon is away
 * and until its successor has decided something, these are the last ones. Ranks of a group read at
 * different moments: let rank 0 read and broadcast where all have to act alike.
 *
 * EINVAL: an argument is NULL, or struct_size is too small. ECLOSED: in a child of fork().
 * Otherwise 0. Thread-safe; some 20 ns when nothing changed. */
FABRICSHM_API int fabricshm_directives(fabricshm_session* session, fabricshm_directive* directive);

/* Copies the session's limits to `quota`, whose struct_size is set: sample it now and then, and
 * give back what is not needed when one shrinks. While the daemon is away these are the last ones.
 * Results and cost as above. */
FABRICSHM_API int fabricshm_quotas(fabricshm_session* session, fabricshm_quota* quota);

/* The daemon's number of the group: what fabricshm_directive.group_id is compared with. 0 for NULL.
 */
FABRICSHM_API uint64_t fabricshm_group_id(const fabricshm_group* group);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* FABRICSHM_FABRICSHM_H */
