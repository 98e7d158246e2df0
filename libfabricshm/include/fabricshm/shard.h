/* shard.h: shards, named tensors that fabricd moves between arenas, NUMA nodes and devices' quotas
 * while they are read. docs/migration.md of the project.
 *
 * A reader never waits for a move: it reads the copy that was valid when its read began, and the
 * daemon keeps that copy until the read has ended. The address of the elements is therefore good
 * for one read or one write, and no longer.
 *
 *   owner    fabricshm_shard_write()  store into view.data   fabricshm_shard_publish()
 *   reader   fabricshm_shard_read()   load from view.data    fabricshm_shard_release()
 *
 * Functions return 0 or a negative FABRICSHM_E* code; after a failure the outputs are untouched.
 * Thread-safe, but for writing: one thread at a time. Not async-signal-safe.
 */
#ifndef FABRICSHM_SHARD_H
#define FABRICSHM_SHARD_H

#include <fabricshm/fabricshm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fabricshm_shard fabricshm_shard;

/* One read or one write under way. */
typedef struct fabricshm_shard_view {
    void* data; /* in this process, 4096-byte aligned; readers must not store there */
    uint64_t bytes;
    uint64_t version; /* that is read, or that was there before the write; 0: never published */
    uint64_t ticket;  /* for fabricshm_shard_release() */
    fabricshm_dtype dtype;
    int32_t ndim;
    int64_t shape[FABRICSHM_DIMS_MAX];
} fabricshm_shard_view;

/* Makes the shard `name` (EEXIST when it is there), uninitialised, with version 0. It belongs to
 * this session, which alone may write it, and goes with it. ENOMEM: no room in the arena, or in the
 * quota of the session's device. One round trip to the daemon. */
FABRICSHM_API int fabricshm_shard_create(fabricshm_arena* arena, const char* name,
                                         fabricshm_dtype dtype, int ndim, const int64_t* shape,
                                         fabricshm_shard** shard);
/* Opens it, waiting up to `timeout_ms` for it to be made (ETIMEOUT). ENOMEM: 318 sessions
 * have it open. */
FABRICSHM_API int fabricshm_shard_open(fabricshm_arena* arena, const char* name, int64_t timeout_ms,
                                       fabricshm_shard** shard);

/* Begins to read `version` or a later one, waiting up to `timeout_ms` for it and for an owner that
 * is writing (ETIMEOUT); never for a move. No system call when the version is there, except for the
 * first read after a move to an arena that this session has not opened. Several reads may be under
 * way. ENOENT: the shard was freed, or its owner is gone. */
FABRICSHM_API int fabricshm_shard_read(fabricshm_shard* shard, uint64_t version, int64_t timeout_ms,
                                       fabricshm_shard_view* view);
/* Ends the read. EBUSY: the owner wrote meanwhile (or the daemon gave this session up), and what
 * was read may be of two versions: drop it and read again. In both cases the read has ended. */
FABRICSHM_API int fabricshm_shard_release(fabricshm_shard* shard, const fabricshm_shard_view* view);

/* Begins to write, in place: `view.data` holds the last version. Reads that begin now wait for the
 * publication, those under way end with EBUSY. EDENIED through a handle that did not make the
 * shard; EBUSY when it is being written. */
FABRICSHM_API int fabricshm_shard_write(fabricshm_shard* shard, fabricshm_shard_view* view);
/* Shows what was written; `version` (may be NULL) receives its number. EINVAL: nothing is being
 * written. */
FABRICSHM_API int fabricshm_shard_publish(fabricshm_shard* shard, uint64_t* version);

/* Asks the daemon to move the shard, and returns when it has begun to (see `fabricctl shards` for
 * how far it is). `target` is "here" (another place of its arena), "arena:NAME" (which the owner
 * has open), "device:NAME" or "node:N". At most `bytes_per_second`; 0: the daemon's own limit. By
 * the owner. EBUSY: it is moving; ENOMEM: no room or quota for a second copy; EUNSUPPORTED: its
 * memory is not coherent with the daemon's, or the device file says no numa_node of the device. */
FABRICSHM_API int fabricshm_shard_move(fabricshm_shard* shard, const char* target,
                                       uint64_t bytes_per_second);

/* Ends the shard for all: by the owner (EDENIED). Reads under way end well. The handle stays
 * to be closed. */
FABRICSHM_API int fabricshm_shard_free(fabricshm_shard* shard);
/* Gives the handle back, NULL is nothing. End its reads before; close it before its arena. */
FABRICSHM_API void fabricshm_shard_close(fabricshm_shard* shard);

#ifdef __cplusplus
}
#endif
#endif
