/* symmetric.h: the sum of the ranks' symmetric matrices, for half the bytes of an allreduce.
 * docs/symmetric.md of the project.
 */
#ifndef FABRICSHM_SYMMETRIC_H
#define FABRICSHM_SYMMETRIC_H

#include <fabricshm/fabricshm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fabricshm_symmetric_method {
    FABRICSHM_PACKED = 0,  /* lower triangles are added up: exact */
    FABRICSHM_CHOLESKY = 1 /* factors L travel, and L L^T are added up; positive definite */
} fabricshm_symmetric_method;

/* Why FABRICSHM_CHOLESKY went as FABRICSHM_PACKED. Of several ranks' the highest. */
typedef enum fabricshm_symmetric_obstacle {
    FABRICSHM_OBSTACLE_NONE = 0,
    FABRICSHM_OBSTACLE_NOT_DEFINITE = 1, /* not even with the largest jitter */
    FABRICSHM_OBSTACLE_INACCURATE = 2,   /* the error was above max_error */
    FABRICSHM_OBSTACLE_NOT_FINITE = 3,   /* the matrix, or L L^T, has an infinity or a NaN */
    FABRICSHM_OBSTACLE_NO_MEMORY = 4,    /* of the process, for two copies of the matrix */
    FABRICSHM_OBSTACLE_NO_LIBRARY = 5    /* no LAPACK: see FABRIC_LAPACK in docs/symmetric.md */
} fabricshm_symmetric_obstacle;

/* Every rank of the group gives the same method, dtype, algorithm and n, and its own buffers. Of
 * `input` the lower triangle (column <= row) is read; that the upper one mirrors it is not checked.
 * `output` gets both triangles. The same address (in place), or no overlap. Make it with
 * fabricshm_symmetric_make(). */
typedef struct fabricshm_symmetric_call {
    size_t struct_size; /* sizeof(fabricshm_symmetric_call) */
    fabricshm_symmetric_method method;
    fabricshm_dtype dtype;         /* F32 or F64 */
    fabricshm_algorithm algorithm; /* of PACKED, also where CHOLESKY goes as it */
    int32_t reserved;              /* 0 */
    uint64_t n;                    /* rows, up to 2^20; 0 is allowed */
    const void* input;             /* n * n elements, row by row, no gaps */
    void* output;                  /* likewise */
    double max_error;              /* a factor with a larger error is not sent; 0: any is */
    int64_t timeout_ms;            /* of all of it, with the factorisation of the slowest rank */
} fabricshm_symmetric_call;

/* The same on all ranks. */
typedef struct fabricshm_symmetric_report {
    size_t struct_size;                    /* sizeof(fabricshm_symmetric_report) */
    fabricshm_symmetric_method method;     /* that was used */
    fabricshm_symmetric_obstacle obstacle; /* why that is not the one asked for */
    double jitter;       /* the largest that a rank added to its diagonal, as a fraction of its
                            mean: 0, or 1e-6 to 0.1 */
    double error;        /* the largest ||L L^T - A|| / ||A|| (Frobenius) of a rank; 0: PACKED */
    uint64_t sent_bytes; /* of one packed matrix: n (n + 1) / 2 elements */
    uint64_t fallbacks;  /* how often CHOLESKY went as PACKED in this group */
} fabricshm_symmetric_report;

static inline fabricshm_symmetric_call fabricshm_symmetric_make(fabricshm_symmetric_method method,
                                                                fabricshm_dtype dtype, uint64_t n,
                                                                const void* input, void* output) {
    const fabricshm_symmetric_call call = {
        sizeof(fabricshm_symmetric_call), method, dtype, FABRICSHM_AUTO, 0, n, input, output, 0.0,
        FABRICSHM_TIMEOUT_DEFAULT};
    return call;
}

/* By all ranks, a collective as those of fabricshm_run() and in one order with them. `report` (its
 * struct_size set) may be NULL; it is untouched after a failure.
 *
 * PACKED has the bits that the lower triangle of fabricshm_allreduce() would have, but for RING,
 * whose order depends on where an element lies. CHOLESKY has the same bits on all ranks if their
 * LAPACK is the same and runs as many threads.
 *
 * The first call keeps memory for one packed matrix, two with CHOLESKY, in the arena if there is
 * room, until the group is left. With CHOLESKY the process also has two more n x n matrices during
 * the call.
 *
 * EINVAL, EUNSUPPORTED, ENOMEM: this rank alone; the others wait. EMISMATCH: ranks have other
 * values; of n and dtype with CHOLESKY all get it and the group stays whole. EPEER, ETIMEOUT,
 * EBROKEN, EPOISONED as of fabricshm_run(), after which the output is undefined; peers do not store
 * into it. ECORRUPT: another process wrote what no rank writes. */
FABRICSHM_API int fabricshm_allreduce_symmetric(fabricshm_group* group,
                                                const fabricshm_symmetric_call* call,
                                                fabricshm_symmetric_report* report);

#ifdef __cplusplus
}
#endif

#endif
