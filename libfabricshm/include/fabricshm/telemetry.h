/* telemetry.h: what a trainer tells the daemon of its host about its steps, and what the daemon
 * asks of it in return. Included by fabricshm.h. docs/telemetry.md has the whole story.
 *
 * The calls work on memory that is shared with the daemon: after the first one no system call is
 * made and nothing waits, whether the daemon is there or not. Training never fails because of them.
 */
#ifndef FABRICSHM_TELEMETRY_H
#define FABRICSHM_TELEMETRY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct fabricshm_session;
struct fabricshm_group;

/* Ranks that a directive has a place for: all of the largest group. */
#define FABRICSHM_PEERS_MAX 256

/* What one step of training was like. Make it with fabricshm_step_info_make(), then set what is
 * known. */
typedef struct fabricshm_step_info {
    size_t struct_size;                  /* sizeof(fabricshm_step_info) */
    const struct fabricshm_group* group; /* whose ranks train together; NULL: as in the last call */
    uint64_t samples;                    /* that this step was made of, on this rank */
    double loss;                         /* NaN: not known, here and below */
    double gradient_norm;                /* of this rank's gradient, before it is merged */
    double mean_gradient_norm;           /* of the merged gradient */
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
 * nothing is granted beyond target_bytes, and who can give something back has left_ms to do so.
 * Then the limit is cut, never below what is in use. Nobody loses memory that it holds. */
typedef struct fabricshm_limit {
    uint64_t limit_bytes;  /* FABRICSHM_NO_LIMIT: none */
    uint64_t target_bytes; /* less than limit_bytes while it shrinks, otherwise the same */
    uint64_t used_bytes; /* by all who share the limit; when it last changed, or 0.1 s ago while it
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
__attribute__((visibility("default"))) int fabricshm_step(struct fabricshm_session* session,
                                                          const fabricshm_step_info* info);

/* Copies the directives in force to `directive`, whose struct_size is set. While the daemon is away
 * and until its successor has decided something, these are the last ones. Ranks of a group read at
 * different moments: let rank 0 read and broadcast where all have to act alike.
 *
 * EINVAL: an argument is NULL, or struct_size is too small. ECLOSED: in a child of fork().
 * Otherwise 0. Thread-safe; some 20 ns when nothing changed. */
__attribute__((visibility("default"))) int fabricshm_directives(struct fabricshm_session* session,
                                                                fabricshm_directive* directive);

/* Copies the session's limits to `quota`, whose struct_size is set: look now and then, and give
 * back what is not needed when one shrinks. While the daemon is away these are the last ones.
 * Results and cost as above. */
__attribute__((visibility("default"))) int fabricshm_quotas(struct fabricshm_session* session,
                                                            fabricshm_quota* quota);

/* The daemon's number of the group: what fabricshm_directive.group_id is compared with. 0 for NULL.
 */
__attribute__((visibility("default"))) uint64_t fabricshm_group_id(
    const struct fabricshm_group* group);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* FABRICSHM_TELEMETRY_H */
