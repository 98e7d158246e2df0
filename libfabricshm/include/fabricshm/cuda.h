/* cuda.h: arenas in the address space of a GPU, and collectives in the order of its streams, with
 * no host thread at work while they run. docs/cuda.md of the project.
 *
 *   once        fabricshm_cuda_attach(arena)   fabricshm_cuda_join(group), by all ranks
 *   each step   fabricshm_allreduce_on_stream(...)   the stream's end, or fabricshm_cuda_wait()
 *   at the end  fabricshm_cuda_leave(group), by all ranks   fabricshm_cuda_detach(arena)
 *
 * The driver is found when it is first asked for ($FABRIC_CUDA names another library, or `off`);
 * no header of CUDA is needed. Functions return 0 or a negative FABRICSHM_E* code; after a failure
 * nothing has changed unless it says so. Not async-signal-safe; not in a child of fork(). Streams
 * are CUstream or cudaStream_t of the device's primary context, the one that the CUDA runtime and
 * PyTorch use; NULL is the legacy default stream.
 */
#ifndef FABRICSHM_CUDA_H
#define FABRICSHM_CUDA_H

#include <fabricshm/fabricshm.h>
#include <fabricshm/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FABRICSHM_CUDA_RANKS_MAX 32
#define FABRICSHM_CUDA_FACTORS_BYTES 64

/* Whether there is a driver with a device, and kernels in this library. 0, or with words:
 * EUNSUPPORTED: no driver, no device, or built without kernels. EVERSION: the driver is older than
 * CUDA 12.0. The first call loads the driver, which is not unloaded. Thread-safe. */
FABRICSHM_API int fabricshm_cuda_available(void);

/* Puts the arena into the address space of device `device` (the driver's number, 0 is the first):
 * its pages are committed, all of them, and pinned. So the whole size counts against pool and
 * quota. What these do not allow is pinned all the same, after a warning, and no quota hears of it:
 * make the arena no larger. Other sessions are granted memory of the arena meanwhile. One device
 * for each arena in a process. Some 0.3 s/GiB, for all processes together.
 *
 * EINVAL: arena is NULL, or there is no such device. EEXIST: this process has attached it.
 * EUNSUPPORTED: as of fabricshm_cuda_available(); no kernels for this device; its driver refuses
 * to register this memory; the arena's memory is not coherent. EVERSION: the driver is older than
 * CUDA 12.0, or fabricd than this library. EDAEMON. ENOMEM: the device or its quota is full.
 * EBROKEN: the device's context fails; the text has CUDA's name for it. Thread-safe. */
FABRICSHM_API int fabricshm_cuda_attach(fabricshm_arena* arena, int device);

/* Takes it out again. The arena's last handle does it, too, when it goes. EBUSY: a group of this
 * arena is joined, or a kernel of one that was left does not end. ENOENT: it is not attached.
 * Kernels of the caller that use the arena have to have ended; the library's own are waited for
 * when their group is left. Thread-safe. */
FABRICSHM_API int fabricshm_cuda_detach(fabricshm_arena* arena);

/* Where the device sees [offset, offset + bytes) of the arena, for kernels of the caller. Valid
 * until the arena is detached; a range never has two parts. On 64-bit Linux it is the address that
 * this process has. EINVAL: not inside the arena. ENOENT: the arena is not attached. */
FABRICSHM_API int fabricshm_cuda_pointer(fabricshm_arena* arena, uint64_t offset, uint64_t bytes,
                                         void** pointer);

/* The same on all ranks. */
typedef struct fabricshm_cuda_options {
    size_t struct_size; /* sizeof(fabricshm_cuda_options) */
    /* Memory in the arena of each rank, through which buffers in device memory travel, half for
     * what it gives and half for what it receives. Operations whose buffers are larger than half
     * are cut, on all ranks. 0: 64 MiB. At least 4096. */
    uint64_t stage_bytes;
    int64_t timeout_ms; /* of one operation's waits, and of the join; FABRICSHM_TIMEOUT_DEFAULT */
} fabricshm_cuda_options;

/* By all ranks of a group in one pool, up to FABRICSHM_CUDA_RANKS_MAX, each of which has attached
 * the group's arena: from here on the group also has operations on streams. It goes on as a group
 * of the host; the two kinds of operations are not ordered with each other. `options` may be NULL.
 *
 * All fail when one does. EINVAL, ENOENT (the arena is not attached), EEXIST (it is joined),
 * EUNSUPPORTED: too many ranks. ENOMEM: in the arena or on the device. EMISMATCH: the ranks have
 * other options. EPEER, ETIMEOUT as of fabricshm_run(); also EBROKEN names the rank that did not
 * come, when another rank's wait for it ended first. EINVAL also while a stream is captured,
 * whose capture is then broken. */
FABRICSHM_API int fabricshm_cuda_join(fabricshm_group* group,
                                      const fabricshm_cuda_options* options);

/* The same for a rank without a GPU, by a process that need not have a driver: each rank of the
 * group calls one or the other. From here on this rank takes part in the operations below with the
 * calling thread: they return when they have ended, with what became of them, and look after the
 * peers while they wait. Such a rank has no streams: `stream` is NULL, else EINVAL. Buffers are any
 * memory of this process; those outside of the arena are copied through the stage, too.
 * fabricshm_cuda_wait() does not wait there. Needs no fabricshm_cuda_attach(). Errors as above;
 * EUNSUPPORTED also when the arena's memory is not coherent. */
FABRICSHM_API int fabricshm_cuda_join_cpu(fabricshm_group* group,
                                          const fabricshm_cuda_options* options);

/* By all ranks: gives the memory back. fabricshm_group_leave() gives back this rank's alone. Both,
 * and fabricshm_session_close(), wait for what was put on streams, at most for the group's timeout;
 * then what waits for a peer ends, and what has not begun does nothing when it begins. A graph is
 * waited for once its kernel has begun; one that was launched and has not begun does nothing, as
 * one that is launched later: wait for its stream first. Streams may have been destroyed. ENOENT:
 * it is not joined. Then the ranks wait for each other, at most for the session's timeout.
 * ETIMEOUT: not all had ended. And what operations came to that were waited for, or had failed
 * before, where no call has returned that yet. After a failure it is left nevertheless; only where
 * a kernel does not end at all, which the text says, its memory stays until the process ends, with
 * the arena and the session. */
FABRICSHM_API int fabricshm_cuda_leave(fabricshm_group* group);

/* By all ranks of the group, when their streams have ended: this rank lets its peers reach
 * [pointer, pointer + bytes) of its device's memory, NULL and 0 for a rank that has nothing to
 * export. From here on buffers that lie in such a range are used where they are, without the stage.
 * One range for each rank: the next call replaces it. All of the allocation can be read and written
 * by the peers' processes, and what shares its 2 MiB with it.
 *
 * `ranks`, unless it is NULL, receives a bit for each rank whose range is used, the same on all. It
 * is used when all ranks reach it: not when a device can't reach the other's
 * (cuDeviceCanAccessPeer), nor between several devices of one process. Operations whose buffers are
 * not in a range that is used go through the stage as before.
 *
 * A range is exported until the next call, fabricshm_cuda_unexport() or the end of the join. Until
 * then its memory is not to be freed; what is allocated there again goes through the stage. A
 * process that opens memory is charged for it by a vGPU's quota. Graphs that were captured before
 * this call or the next have to be captured again: their kernels fail with EBROKEN.
 *
 * All ranks fail when one does, and then what was exported before still is. EINVAL: only one of
 * pointer and bytes is 0; memory of the arena, of the host or of another device; it ends outside of
 * its allocation. EUNSUPPORTED: memory without a handle for other processes: only that of
 * cuMemAlloc or cudaMalloc has one, not that of cuMemCreate (PyTorch's expandable segments), of
 * pools (cudaMallocAsync) and managed memory. Or a rank of the group is on a CPU; or a rank's
 * driver does not open another's memory. ENOMEM: the quota of a rank's vGPU is full. ECORRUPT:
 * another process wrote what no rank writes. EPEER, ETIMEOUT as of fabricshm_run(): then the
 * group's operations on streams have ended, too. ENOENT: it is not joined. And what earlier
 * operations came to. Not while a stream is captured. */
FABRICSHM_API int fabricshm_cuda_export(fabricshm_group* group, void* pointer, uint64_t bytes,
                                        uint32_t* ranks);

/* By all ranks, when their streams have ended: nothing is exported any more. When it returns 0 no
 * process has memory of this one open, which may be freed. EPEER, ETIMEOUT, EBROKEN (the group
 * failed earlier): this rank has closed what it had open nevertheless. ENOENT: it is not joined. */
FABRICSHM_API int fabricshm_cuda_unexport(fabricshm_group* group);

/* Operations. Each puts kernels on `stream` and returns, some microseconds later; buffers belong
 * to the operation until the stream has passed it. By all ranks in the same order, with the same
 * arguments but for buffers and stream; a rank's operations one after the other, on one stream or
 * on streams with events between them. One thread at a time for each group. No waiting, no
 * allocation: they can be captured into CUDA graphs, which replay as often as all ranks do.
 *
 * Buffers: anywhere in the arena, as this process or the device sees it, or memory that the device
 * reaches, its own or pinned, aligned to the element. Those in the arena are used where they are,
 * as are those in memory that the rank exports; others are copied through the stage. In place:
 * `output` may be `input` (all_gather: `input` the rank's part of `output`; reduce_scatter:
 * `output` the rank's part of `input`). Types, operations and results are those of fabricshm_run(),
 * with the same bits where it takes `flat` or `direct`.
 *
 * On a rank of fabricshm_cuda_join_cpu() they wait and return the operation's own outcome, as
 * fabricshm_cuda_status() lists them.
 *
 * EINVAL: an argument; a buffer that the device does not reach, or that ends outside of its
 * allocation of cuMemAlloc(); the legacy default stream while another is captured. ENOENT: the
 * group is not joined. EUNSUPPORTED: the type does not go with the operation. EBROKEN: CUDA
 * refused; what was put on the stream before fails on all ranks. And what earlier operations came
 * to: fabricshm_cuda_status().
 */
FABRICSHM_API int fabricshm_allreduce_on_stream(fabricshm_group* group, const void* input,
                                                void* output, uint64_t count, fabricshm_dtype dtype,
                                                fabricshm_op op, void* stream);
/* `input` has world * count elements, `output` the sum of all ranks' part of this rank: count. */
FABRICSHM_API int fabricshm_reduce_scatter_on_stream(fabricshm_group* group, const void* input,
                                                     void* output, uint64_t count,
                                                     fabricshm_dtype dtype, fabricshm_op op,
                                                     void* stream);
/* `input` has count elements, `output` world * count, by rank. */
FABRICSHM_API int fabricshm_all_gather_on_stream(fabricshm_group* group, const void* input,
                                                 void* output, uint64_t count,
                                                 fabricshm_dtype dtype, void* stream);
/* `buffer` of the root to that of all others. */
FABRICSHM_API int fabricshm_broadcast_on_stream(fabricshm_group* group, void* buffer,
                                                uint64_t count, fabricshm_dtype dtype, int root,
                                                void* stream);
FABRICSHM_API int fabricshm_barrier_on_stream(fabricshm_group* group, void* stream);

/* A reduction and optimiser step in one kernel: the ranks' gradients are added up in the order of
 * ranks, each rank moves its own elements, and all ranks receive the new parameters. The formulas
 * are those of docs/optimisers.md, with the same bits. */
typedef struct fabricshm_cuda_step {
    size_t struct_size; /* sizeof(fabricshm_cuda_step) */
    fabricshm_optimiser optimiser;
    fabricshm_dtype gradient_dtype; /* F32, F16 or BF16 */
    fabricshm_dtype publish_dtype;  /* F32, F16 or BF16 */
    float scale;                    /* of the sum: 1 / ranks, 1 / loss scale */
    uint64_t total;                 /* elements of the whole, on all ranks the same */
    uint64_t begin; /* of this rank: elements [begin, begin + count). Together the */
    uint64_t count; /* ranks' ranges are the whole, and do not overlap */
    /* FABRICSHM_CUDA_FACTORS_BYTES that fabricshm_cuda_factors() has filled in, where the device
     * reaches them: in the arena, say. Read when the kernel runs, so that a graph that is replayed
     * takes the next step's, and not to be changed until it has run. */
    const void* factors;
    const float* weights; /* of each rank's gradient, by rank; NULL: all 1. As factors */
    float* parameters; /* this rank's count elements, as the state: on the device or in the pool */
    float* first;      /* momentum, or first moment; NULL: SGD without momentum */
    float* second;     /* NULL: SGD, as the next */
    float* maximum;    /* MAX_ADABELIEF alone */
    const void* gradient; /* this rank's whole gradient: total elements */
    void* publish;        /* receives all parameters: total elements; NULL: this rank needs none */
} fabricshm_cuda_step;

/* What step `step` (from 1 on) multiplies by, into FABRICSHM_CUDA_FACTORS_BYTES of the host.
 * EINVAL: the optimiser can't be run with these; the text names the field. */
FABRICSHM_API int fabricshm_cuda_factors(fabricshm_optimiser optimiser,
                                         const fabricshm_hyper* hyper, uint64_t step,
                                         void* factors);
/* As the operations; each buffer is aligned to its own element. EINVAL also when gradient or
 * publish are in device memory and larger than half of the stage: keep those in the arena, or
 * export them. */
FABRICSHM_API int fabricshm_step_on_stream(fabricshm_group* group, const fabricshm_cuda_step* step,
                                           void* stream);

/* What became of the operations so far, without waiting. OK: none has failed yet. Also looks, at
 * most every 50 ms, whether the peers' processes live: no thread of this library does, so that a
 * program that only waits for its stream learns of a death by the timeout. Once an operation has
 * failed, all later ones do, on all ranks: leave the group or fabricshm_group_shrink() it, and join
 * again.
 *
 * EPEER: a rank died, failed, left or has ended the group (fabricshm_error_rank() names it, as for
 * EMISMATCH; of the others the text does). EMISMATCH: it called something else. ETIMEOUT: it did
 * not come. EUNSUPPORTED: its buffer can't be reached from here. EBROKEN: this rank failed before.
 * ECORRUPT: another process wrote what no rank writes. EPOISONED: a rank on a CPU touched a page
 * that the hardware lost; fabricshm_error_region(). ENOENT: the group is not joined.
 * Thread-safe. */
FABRICSHM_API int fabricshm_cuda_status(fabricshm_group* group);

/* Waits until `stream` has nothing to do, looking after the peers meanwhile; then as
 * fabricshm_cuda_status(). ETIMEOUT also when the stream is still at work. EINVAL: it is captured,
 * and has nothing to do before its graph is launched. */
FABRICSHM_API int fabricshm_cuda_wait(fabricshm_group* group, void* stream, int64_t timeout_ms);

/* Ends the waits of all ranks on streams, now and from now on: theirs fail with EPEER, naming this
 * one. Thread-safe. */
FABRICSHM_API int fabricshm_cuda_abort(fabricshm_group* group);

#ifdef __cplusplus
}
#endif

#endif
