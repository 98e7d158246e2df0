/* data.h: files of silos, read where they lie in the pool. docs/data.md of the project.
 *
 * The data service of the host (`fabric-data serve`) keeps chunks of files in one arena, once for
 * all processes. A reader maps that arena read-only and reads there:
 *
 *   fabricshm_data_open()   fabricshm_data_list()                a listing: names and sizes
 *   fabricshm_data_acquire()   load from view.bytes              fabricshm_data_release()
 *   fabricshm_data_read()   the same as a copy
 *
 * A view of what is in the pool is some loads and stores in shared memory: no system call, no
 * message. What is not there is asked for from the service, which fetches it; that takes what the
 * silo takes. A view *pins* its chunk: its bytes stay as they are until the release, whatever the
 * service does, also when it has ended. A reader that dies holds nothing.
 *
 * Versions. A listing names files as they were when it was made, and what is read is of exactly
 * that version: a file that was replaced since is FABRICSHM_ECHANGED, never a mixture. List again
 * to get the new one. What servers without ETags and folders on tmpfs can promise of this, where a
 * file is changed in place, says docs/data.md.
 *
 * When the service is gone, views of what is in the pool go on, and what is not waits for its
 * return up to the deadline (FABRICSHM_EDAEMON). It may come back with tables of its own; listings
 * that are open are then taken again behind the program's back.
 *
 * Errors. Functions return 0 or a negative FABRICSHM_E* code; after a failure the outputs are
 * untouched and nothing is pinned. fabricshm_error_text() has one line with the file and, where the
 * silo failed, its own words.
 *
 * Timeouts are in milliseconds, FABRICSHM_TIMEOUT_DEFAULT is the session's; 0 asks nothing of the
 * service, and what is not in the pool is FABRICSHM_ETIMEOUT at once.
 *
 * Threads. Every function may be called by any thread, several at a time, also with one handle; but
 * a handle is closed when no other thread is inside a call with it. Several threads may wait for
 * the service at once. Not async-signal-safe.
 *
 * fork(). Unlike other handles these go on working in a child: it attaches to fabricd and to the
 * service by itself when it first uses them. Views that the parent took stay the parent's: in the
 * child releasing them does nothing, and their bytes are good for as long as the parent pins them.
 */
#ifndef FABRICSHM_DATA_H
#define FABRICSHM_DATA_H

#include <fabricshm/fabricshm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* This process's way to the data of its host. */
typedef struct fabricshm_data fabricshm_data;
/* A listing: files with their names, sizes and versions of one moment, by the bytes of the names.
 * It does not change while it is open. */
typedef struct fabricshm_data_set fabricshm_data_set;

/* A file lies in the pool in chunks of so many bytes; its last chunk is shorter. */
#define FABRICSHM_DATA_CHUNK (UINT64_C(4) << 20)

/* Flags of fabricshm_data_list(). */
#define FABRICSHM_DATA_RECURSIVE 1u /* files of all folders below, as "folder/file"; no folders */
#define FABRICSHM_DATA_FILE 2u      /* alone: the path is one file's, and the set has it alone */

/* Flags of an entry. */
#define FABRICSHM_DATA_FOLDER 1u

typedef struct fabricshm_data_entry {
    size_t struct_size;  /* sizeof(fabricshm_data_entry), set by the caller */
    const char* name;    /* relative to the listed path; NOT terminated; as long as the set */
    uint64_t name_bytes; /* any bytes but zero may be in it */
    uint64_t bytes;      /* of the file */
    uint32_t flags;      /* FABRICSHM_DATA_FOLDER */
    uint32_t reserved;
    uint64_t file;       /* of (path, version); for one run of the service's tables */
    int64_t mtime_ns;    /* since 1970; 0: not known */
    uint64_t version[4]; /* compare them; what they are differs between silos */
} fabricshm_data_entry;

/* Bytes in the pool. They may be read and never written: the memory is mapped read-only. */
typedef struct fabricshm_data_view {
    const void* bytes; /* aligned to 64 bytes where `offset` is a multiple of the chunk */
    uint64_t length;
    uint64_t handle; /* for fabricshm_data_release() */
} fabricshm_data_view;

/* Connects. The handle has a session of its own with fabricd, opened as `session` was (socket,
 * timeout); that is not needed afterwards. NULL: default options. `socket` is the service's; NULL:
 * FABRIC_DATA_SOCKET, else $XDG_RUNTIME_DIR/fabricd/data.sock, else /run/fabricd/data.sock.
 *   EDAEMON   no service (or no fabricd) listens there
 *   EDENIED   this user may not read the data
 *   EVERSION  the service is of another version
 *   ENOMEM    no room for this process's pins; EBUSY: too many readers
 *   ETIMEOUT  not within the session's timeout
 * A few round trips, and a mapping of the size of the cache (address space, not memory). */
FABRICSHM_API int fabricshm_data_open(fabricshm_session* session, const char* socket,
                                      fabricshm_data** data);
/* Gives the handle back. Sets that were listed with it stay as they are. NULL is nothing. */
FABRICSHM_API void fabricshm_data_close(fabricshm_data* data);

/* Lists the folder `path`; of a file that file alone, under its last name. Absolute in the
 * namespace of the data file ("/images/train"), without "." and "..". `flags` is 0,
 * FABRICSHM_DATA_RECURSIVE or FABRICSHM_DATA_FILE (a file, whose folder is not listed; EINVAL: it
 * is a folder); others are EINVAL. One round trip; in the service as long as the silo takes to
 * list. Maps the listing, which readers of the same one share.
 *   ENOENT    there is no such folder or file
 *   EDENIED, EBUSY, ESYSTEM, ECORRUPT, EUNSUPPORTED   the silo's error; the text has its words
 *   ETIMEOUT  the silo did not answer in time; EDAEMON: the service did not
 * A silo that does not answer is never an empty listing. */
FABRICSHM_API int fabricshm_data_list(fabricshm_data* data, const char* path, uint32_t flags,
                                      int64_t timeout_ms, fabricshm_data_set** set);
/* Gives it back. Views of it that were not released stay good, and the set's memory goes with the
 * last of them: releasing them is the only call that may still name the set. NULL is nothing. */
FABRICSHM_API void fabricshm_data_set_close(fabricshm_data_set* set);

/* How many entries; 0 for NULL. */
FABRICSHM_API uint64_t fabricshm_data_set_count(const fabricshm_data_set* set);
/* One entry; `entry->struct_size` has to be set. ENOENT: `index` is not below the count. ECORRUPT:
 * the listing does not make sense. Some nanoseconds. */
FABRICSHM_API int fabricshm_data_set_entry(const fabricshm_data_set* set, uint64_t index,
                                           fabricshm_data_entry* entry);
/* The entry of that name (ENOENT). A search in the sorted names: about 1 us among 10^6. */
FABRICSHM_API int fabricshm_data_set_find(const fabricshm_data_set* set, const char* name,
                                          uint64_t* index);

/* A view of file `index` from `offset` on, to the end of that chunk: the next multiple of
 * FABRICSHM_DATA_CHUNK, or the end of the file. At the end of the file, and of an empty one, a view
 * of 0 bytes that pins nothing. Does not check what the bytes are; the service did when it filled
 * the chunk. Less than 100 ns when the chunk is in the pool.
 *   EINVAL    `offset` is beyond the end, or the entry is a folder
 *   ENOENT    `index` is not below the count
 *   ECHANGED  this version is no more: list again
 *   EBUSY     this process holds as many views as it can (3,968): release some, or read
 *   ETIMEOUT  it did not come in time; what was asked for may still come later
 *   EDAEMON   it is not in the pool, and the service did not come back in time
 *   ENOMEM    all of the cache is pinned
 *   EDENIED, ESYSTEM, EUNSUPPORTED   the silo's error; the text has its words
 *   ECORRUPT  the service's tables do not make sense */
FABRICSHM_API int fabricshm_data_acquire(fabricshm_data_set* set, uint64_t index, uint64_t offset,
                                         int64_t timeout_ms, fabricshm_data_view* view);
/* Unpins. Its bytes must not be read any more: they may become another file's at once. A second
 * release of one view, and one in a child of fork(), does nothing. No system call. */
FABRICSHM_API void fabricshm_data_release(fabricshm_data_set* set, const fabricshm_data_view* view);

/* Copies up to `bytes` bytes from `offset` on into `into`, over as many chunks as it takes, and
 * says in `got` how many those were: fewer at the end of the file alone. All of one version. Errors
 * as of a view, but never EBUSY: with no slot left the copy goes through one that is kept for reads
 * (counted). After an error `into` may be partly written and `got` is untouched. */
FABRICSHM_API int fabricshm_data_read(fabricshm_data_set* set, uint64_t index, uint64_t offset,
                                      void* into, uint64_t bytes, int64_t timeout_ms,
                                      uint64_t* got);

/* ---- Fetching ahead -------------------------------------------------------------------------- */

/* In which order a job reads a set, so that the service fetches each file before it is read. */
typedef enum fabricshm_data_sampler {
    FABRICSHM_DATA_FABRIC_SAMPLER = 0,     /* fabricshm.torch.FabricSampler */
    FABRICSHM_DATA_DISTRIBUTED_SAMPLER = 1 /* torch.utils.data.DistributedSampler */
} fabricshm_data_sampler;

#define FABRICSHM_DATA_IN_ORDER 1u  /* the sampler's shuffle=False: as the set has them */
#define FABRICSHM_DATA_DROP_LAST 2u /* the sampler's drop_last=True */

/* Numbers that stand for the order of one epoch; the service draws it as PyTorch does. */
typedef struct fabricshm_data_plan {
    size_t struct_size; /* sizeof(fabricshm_data_plan) */
    fabricshm_data_sampler sampler;
    uint32_t flags;
    uint32_t rank;     /* of this process in the sampler */
    uint32_t world;    /* how many ranks the sampler cuts for */
    uint64_t seed;     /* the sampler's */
    uint64_t epoch;    /* the sampler's; the order is drawn from seed + epoch */
    uint64_t samples;  /* the first of the set that are sampled; 0: all */
    uint64_t position; /* samples of the epoch that were read before, by all ranks */
} fabricshm_data_plan;

static inline fabricshm_data_plan fabricshm_data_plan_make(fabricshm_data_sampler sampler,
                                                           uint64_t seed, uint64_t epoch) {
    const fabricshm_data_plan plan = {
        sizeof(fabricshm_data_plan), sampler, 0, 0, 1, seed, epoch, 0, 0};
    return plan;
}

/* Announces how this process goes through the set from now on; replaces what it announced of the
 * set before. Advice: what is read otherwise is fetched when it is read. The plan ends with the
 * set, with the process, or when its epoch was read. One round trip, at most the session's timeout.
 *   EINVAL        rank, world, flags or sampler are none
 *   EUNSUPPORTED  more samples than PyTorch orders in this way (214,748,364)
 *   EDAEMON       the service does not answer */
FABRICSHM_API int fabricshm_data_announce(fabricshm_data_set* set, const fabricshm_data_plan* plan);

/* ---- Counters -------------------------------------------------------------------------------- */

/* Of this process since it opened the handle; a child of fork() begins at 0. */
typedef struct fabricshm_data_stats {
    size_t struct_size; /* sizeof(fabricshm_data_stats), set by the caller */
    uint64_t hits;      /* chunks that were in the pool */
    uint64_t misses;    /* chunks that had to be asked for */
    uint64_t stall_ns;  /* that calls waited for the service, over all threads */
    uint64_t bytes;     /* viewed and read */
    uint64_t copies;    /* reads for which no slot was left */
    uint64_t pinned;    /* views that are held now */
    uint64_t slots;     /* views that can be held */
} fabricshm_data_stats;

FABRICSHM_API int fabricshm_data_get_stats(const fabricshm_data* data, fabricshm_data_stats* stats);

/* ---- Writing --------------------------------------------------------------------------------- */

/* A file that is being written: it can be seen under its name when it was committed, and not
 * before. By one thread at a time; several threads may have one each, and a thread several. */
typedef struct fabricshm_data_writer fabricshm_data_writer;

/* Begins a new file. EEXIST: it is there, or is being written; EDENIED: its silo is not written to
 * (`write` in the data file); EBUSY: 64 files of the host are being written; otherwise as
 * fabricshm_data_list(). */
FABRICSHM_API int fabricshm_data_create(fabricshm_data* data, const char* path, int64_t timeout_ms,
                                        fabricshm_data_writer** writer);
/* Appends. Returns when the service has the bytes. After an error the file can only be aborted, and
 * its name is free again. */
FABRICSHM_API int fabricshm_data_write(fabricshm_data_writer* writer, const void* bytes,
                                       uint64_t length, int64_t timeout_ms);
/* Ends the file: when it returns 0 the silo has it, and listings that are made from now on name it.
 * Frees the writer whatever it returns; after an error the name is as before, except that behind
 * ETIMEOUT and EDAEMON the file may be there, or come, as a whole. */
FABRICSHM_API int fabricshm_data_commit(fabricshm_data_writer* writer, int64_t timeout_ms);
/* Drops what was written and frees the writer. NULL is nothing. */
FABRICSHM_API void fabricshm_data_abort(fabricshm_data_writer* writer);

#ifdef __cplusplus
}
#endif
#endif
