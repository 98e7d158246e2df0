/* optim.h: parameters that exist once for all ranks of a group, and the optimiser step that adds up
 * the ranks' gradients and moves them in one pass. docs/optimisers.md of the project.
 *
 *   all ranks   fabricshm_parameters_open()   fabricshm_parameter_view()
 *   each step   write the own gradients       fabricshm_parameters_step()   read the parameters
 *
 * Functions return 0 or a negative FABRICSHM_E* code; after a failure the outputs are untouched. A
 * set serves one call at a time, and so does its group. Not async-signal-safe.
 */
#ifndef FABRICSHM_OPTIM_H
#define FABRICSHM_OPTIM_H

#include <fabricshm/fabricshm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fabricshm_parameters fabricshm_parameters;

typedef enum fabricshm_optimiser {
    FABRICSHM_SGD = 0,
    FABRICSHM_ADAM = 1,
    FABRICSHM_ADAMW = 2,
    FABRICSHM_ADABELIEF = 3,
    FABRICSHM_MAX_ADABELIEF = 4
} fabricshm_optimiser;

/* One tensor of the model. */
typedef struct fabricshm_parameter {
    const char* name; /* no two alike */
    const int64_t* shape;
    int32_t ndim;     /* 0: one element; no dimension is 0 */
    uint32_t options; /* which of the step's fabricshm_hyper it is moved by, below 1024 */
} fabricshm_parameter;

/* What a set is made of; the same on all ranks. */
typedef struct fabricshm_parameters_spec {
    size_t struct_size; /* sizeof(fabricshm_parameters_spec) */
    const fabricshm_parameter* parameters;
    uint64_t count;
    fabricshm_optimiser optimiser;
    fabricshm_dtype gradients; /* F32, F16 or BF16 */
    fabricshm_dtype copy;      /* F16 or BF16: also keep the parameters so; F32: no copy */
    int32_t slots;             /* ranks that it will ever have at once; 0: the group's */
    /* Where the set lies: NULL, the group's arena; or another one of the same session, on all ranks
     * the same, that stays open longer than the set. One that was opened with FABRICSHM_ARENA_LOCAL
     * is near where the pool is far: docs/optimisers.md, "Where it lies". */
    fabricshm_arena* arena;
} fabricshm_parameters_spec;

/* Bytes of the arena that a set of `world` ranks takes: parameters and state once, and a gradient
 * for each slot. 0: the spec is not valid. */
FABRICSHM_API uint64_t fabricshm_parameters_bytes(const fabricshm_parameters_spec* spec, int world);

/* By all ranks of the group: makes the set `name` in the group's arena, all zeros, or goes on with
 * the one that is there (of the same spec, EMISMATCH; closed by all or at rest, EBUSY; not open in
 * this process, EBUSY). It belongs to no session: it stays until fabricshm_parameters_free(), or
 * until the last session closes the arena. ENOMEM, EDENIED as for tensors. EUNSUPPORTED: the ranks'
 * memory is not coherent. EPEER, ETIMEOUT as in a barrier. Clears the memory: about 0.3 s/GiB. */
FABRICSHM_API int fabricshm_parameters_open(fabricshm_group* group, const char* name,
                                            const fabricshm_parameters_spec* spec,
                                            int64_t timeout_ms, fabricshm_parameters** set);
/* By all ranks, with one answer for all: how many nanoseconds a step of such a set would take in
 * spec->arena, from steps of a small one that is made and freed there. To choose between arenas.
 * Some 10 ms, and 2^21 elements' memory. */
FABRICSHM_API int fabricshm_parameters_estimate(fabricshm_group* group,
                                                const fabricshm_parameters_spec* spec,
                                                int64_t timeout_ms, uint64_t* step_ns);
/* This rank's part in it ends, the set stays. Before its group is left. NULL is allowed. */
FABRICSHM_API void fabricshm_parameters_close(fabricshm_parameters* set);
/* The set `name` ends for all ranks. EBUSY: a living process has not closed it; the text names it.
 * ENOENT: there is none. EEXIST: the name is another tensor's. */
FABRICSHM_API int fabricshm_parameters_free(fabricshm_arena* arena, const char* name);

/* Where a parameter is, in this process, until the set is closed. Elements row-major, no gaps. All
 * of it may be read between steps; values and state may be written by one rank at a time, followed
 * by a barrier, and gradients by the rank whose they are. */
typedef struct fabricshm_parameter_memory {
    float* values;   /* of all ranks */
    void* copy;      /* of all ranks; NULL: none */
    void* gradient;  /* this rank's own */
    float* state[3]; /* momentum or m, v or s, running maximum; NULL: the optimiser has none */
    uint64_t count;  /* elements */
} fabricshm_parameter_memory;

FABRICSHM_API int fabricshm_parameter_view(const fabricshm_parameters* set, uint64_t index,
                                           fabricshm_parameter_memory* memory);

/* Steps that were applied so far, by all groups that had the set. */
FABRICSHM_API uint64_t fabricshm_parameters_steps(const fabricshm_parameters* set);

/* Says how many steps led to what is in the set now, after values and state were written into it (a
 * checkpoint, say). The same on all ranks, between two steps. */
FABRICSHM_API int fabricshm_parameters_set_steps(fabricshm_parameters* set, uint64_t steps);

/* How much of the set each rank steps from now on, by rank: any numbers from 0 on that are not all
 * 0. The same on all ranks, between two steps; until then all are equal. */
FABRICSHM_API int fabricshm_parameters_share(fabricshm_parameters* set, const double* shares,
                                             int count);

/* What moves a parameter; the meaning of each is in docs/optimisers.md. */
typedef struct fabricshm_hyper {
    double learning_rate;
    double beta1;
    double beta2;
    double epsilon;
    double weight_decay; /* decoupled, but for SGD and ADAM, where it is added to the gradient */
    double momentum;     /* SGD, as the two below */
    double dampening;
    int32_t nesterov;
    int32_t maximize;
} fabricshm_hyper;

/* A step; the same on all ranks, but for the weight. Make it with fabricshm_step_make(). */
typedef struct fabricshm_step_call {
    size_t struct_size; /* sizeof(fabricshm_step_call) */
    const fabricshm_hyper* hyper;
    uint64_t hyper_count;   /* more than the highest `options` of a parameter */
    double weight;          /* of this rank's gradient in the sum; NaN: one of the mean */
    double scale;           /* of the sum: 1 / loss scale, say */
    double clip_norm;       /* above 0: the gradient of the whole set is scaled down to it */
    int32_t skip_nonfinite; /* 1: an infinity or a NaN in the merged, scaled gradient skips it */
    int32_t reserved;       /* 0 */
    int64_t timeout_ms;
} fabricshm_step_call;

typedef struct fabricshm_step_report {
    size_t struct_size; /* sizeof(fabricshm_step_report) */
    uint64_t step;      /* as fabricshm_parameters_steps() */
    double norm;        /* of the merged, scaled gradient, before clipping; NaN: not asked for */
    int64_t waited_ns;  /* for other ranks */
    int64_t computed_ns;
    int32_t skipped; /* 1: nothing was changed, since the gradient was not finite */
    int32_t reserved;
} fabricshm_step_report;

/* PyTorch's defaults. */
static inline fabricshm_hyper fabricshm_hyper_make(double learning_rate) {
    const fabricshm_hyper hyper = {learning_rate, 0.9, 0.999, 1e-8, 0.0, 0.0, 0.0, 0, 0};
    return hyper;
}

static inline fabricshm_step_call fabricshm_step_make(const fabricshm_hyper* hyper,
                                                      uint64_t hyper_count) {
    const fabricshm_step_call call = {
        sizeof(fabricshm_step_call), hyper, hyper_count, __builtin_nan(""), 1.0, 0.0, 0, 0,
        FABRICSHM_TIMEOUT_DEFAULT};
    return call;
}

/* By all ranks: adds up the gradients in the order of the slots, which are the ranks of the group
 * that opened the set, and moves the parameters. On return all are moved, and gradients may be
 * written again. `report` (its struct_size set) may be NULL.
 *
 * EMISMATCH: a rank called it with other values; nothing has changed on any rank. EINVAL: this rank
 * alone; the others wait. EPEER, ETIMEOUT, EBROKEN, EPOISONED end the group: leave gradients and
 * parameters alone, fabricshm_group_shrink(), then fabricshm_parameters_recover().
 * Reads all gradients once, moves parameters and state once: docs/optimisers.md has the bytes. */
FABRICSHM_API int fabricshm_parameters_step(fabricshm_parameters* set,
                                            const fabricshm_step_call* call,
                                            fabricshm_step_report* report);

/* By all ranks of `group`, which a shrink has made of the set's: settles the step that failed, as
 * a whole. `applied` (may be NULL) receives 1 when it has happened, with the gradients of all
 * ranks, 0 when it has not. From then on the set belongs to `group`, in equal shares; the old one
 * can be left. ETIMEOUT: a process that is not in `group` is alive and inside of the step; the text
 * names it. EPEER: one more died; shrink `group` and call again with the result. */
FABRICSHM_API int fabricshm_parameters_recover(fabricshm_parameters* set, fabricshm_group* group,
                                               int64_t timeout_ms, int* applied);

/* Ranks that step each for itself: docs/parameter_server.md of the project.
 *
 *   each rank    parameters_pull()   compute   parameters_push()   parameters_advance()
 *   at the end   parameters_finish(), by all ranks
 *
 * In between no rank calls anything else of the set that is by all ranks. */

/* By this rank alone: its own gradient moves the parameters, times call->weight if there is one,
 * in the order in which ranks come to each range of the set. On return it is applied, and the
 * gradient may be written again. `report` (its struct_size set) may be NULL. EINVAL: as of a step;
 * clip_norm or skip_nonfinite is set. EPEER: the named rank died while it moved a range, which is
 * half moved. ETIMEOUT names a rank that holds one. EBUSY: a snapshot was not waited for. EBROKEN:
 * the set has gone over to others. */
FABRICSHM_API int fabricshm_parameters_push(fabricshm_parameters* set,
                                            const fabricshm_step_call* call,
                                            fabricshm_step_report* report);

/* Copies the parameters, each range as some pushes have left it: of parameter i to values[i].
 * `count`: of the parameters. Fails as a push. */
FABRICSHM_API int fabricshm_parameters_pull(fabricshm_parameters* set, float* const* values,
                                            uint64_t count, int64_t timeout_ms);

/* After a push: this rank begins its next version, as soon as no rank is more than `staleness`
 * versions behind that. `version` (may be NULL) receives it: one more than before, or where the
 * others are, if this rank was behind. EPEER, ETIMEOUT name the rank that is behind, and end the
 * group. */
FABRICSHM_API int fabricshm_parameters_advance(fabricshm_parameters* set, uint64_t staleness,
                                               int64_t timeout_ms, uint64_t* version);

/* By all ranks: ends it. No rank waits for one that has come here; when all have the set counts as
 * many steps as there were pushes, and may be stepped together. EPEER, ETIMEOUT as in a barrier. */
FABRICSHM_API int fabricshm_parameters_finish(fabricshm_parameters* set, int64_t timeout_ms);

/* Snapshots: docs/snapshots.md of the project has the files. */

typedef struct fabricshm_snapshot_call {
    size_t struct_size;    /* sizeof(fabricshm_snapshot_call) */
    const char* directory; /* of this set's snapshots alone; made if its parent is there */
    uint64_t file_bytes;   /* a file is not longer, unless one tensor alone is; 0: 4 GiB */
    uint32_t keep;         /* the newest that are left; 0: all */
    uint32_t plain_writes; /* 1: as if the kernel had no io_uring */
    int64_t timeout_ms;
} fabricshm_snapshot_call;

static inline fabricshm_snapshot_call fabricshm_snapshot_make(const char* directory) {
    const fabricshm_snapshot_call call = {sizeof(fabricshm_snapshot_call), directory, 0, 3, 0,
                                          FABRICSHM_TIMEOUT_DEFAULT};
    return call;
}

/* What this rank did. Bits of `path`: how its bytes went to the disk. */
#define FABRICSHM_SNAPSHOT_URING 1u      /* by io_uring; else by write calls, one at a time */
#define FABRICSHM_SNAPSHOT_REGISTERED 2u /* from memory that stays pinned */
#define FABRICSHM_SNAPSHOT_DIRECT 4u     /* past the page cache */
typedef struct fabricshm_snapshot_report {
    size_t struct_size;
    uint64_t step;     /* steps that had been applied */
    uint64_t bytes;    /* written by this rank */
    int64_t staged_ns; /* until the shard was copied: until then a step may have to copy, too */
    int64_t total_ns;
    uint32_t path;
    uint32_t reserved;
} fabricshm_snapshot_report;

/* By all ranks, between two steps: parameters and state as they are now are written to
 * `directory`/step-NNNNNN, by a thread of each rank, while steps go on. Until the snapshot was
 * waited for, values and states are changed by steps alone. Takes memory of its own, once: what a
 * rank's shard takes. EBUSY: the one before was not waited for. EMISMATCH: ranks called it with
 * other values. EINVAL: a parameter is named `__metadata__` or `optimizer.`... EBROKEN: a step
 * failed. */
FABRICSHM_API int fabricshm_parameters_snapshot_begin(fabricshm_parameters* set,
                                                      const fabricshm_snapshot_call* call);

/* By all ranks: 0 once the snapshot is on the disk, whole and under its name. When any rank failed
 * all do, nothing of it is left, and snapshots of before are as they were: ESYSTEM with the file in
 * the text (a full disk, say), EPEER: a rank died before its part was written. ETIMEOUT: it is
 * still being written, call again. ENOENT: none was begun. `report` (its struct_size set) may be
 * NULL. */
FABRICSHM_API int fabricshm_parameters_snapshot_wait(fabricshm_parameters* set, int64_t timeout_ms,
                                                     fabricshm_snapshot_report* report);

/* 1 once this rank's part is over, or when there is none; 0 before. Waits for nothing. */
FABRICSHM_API int fabricshm_parameters_snapshot_over(fabricshm_parameters* set);

/* By all ranks, as many as there are now: fills the set from the snapshot in the directory `path`;
 * `step` (may be NULL) receives its number of steps, which the set has from here on. All ranks fail
 * alike. EMISMATCH (the text names the tensor), ENOENT, EVERSION, and ECORRUPT of a header leave
 * the set as it was. ECORRUPT of a tensor (the text names it, and the file) and ESYSTEM may leave
 * it half filled: steps are EBROKEN then, until another restore succeeds. EBUSY: a snapshot is
 * under way. */
FABRICSHM_API int fabricshm_parameters_restore(fabricshm_parameters* set, const char* path,
                                               int64_t timeout_ms, uint64_t* step);

/* The path of the newest whole snapshot in `directory`, into `path` of `bytes` bytes. ENOENT: there
 * is none. EINVAL: `path` is too short. */
FABRICSHM_API int fabricshm_snapshot_latest(const char* directory, char* path, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
