/* Joins a group, sums gradients over its ranks step by step, and leaves.
 *
 *   cc -o allreduce allreduce.c $(pkg-config --cflags --libs fabricshm)
 *   ./allreduce 0 2 & ./allreduce 1 2; wait
 */
#include <fabricshm/fabricshm.h>
#include <stdio.h>
#include <stdlib.h>

enum { kCount = 1000, kSteps = 3 };

static int train(fabricshm_arena* arena, fabricshm_group* group) {
    const int rank = fabricshm_group_rank(group);
    /* Memory of the arena is read by the other ranks in place; any other memory works, too, and is
     * copied through the arena. */
    float* gradient = fabricshm_alloc(arena, kCount * sizeof(float));
    if (gradient == NULL) return FABRICSHM_ENOMEM;

    /* One call for all steps, as MPI's persistent collectives (MPI_Allreduce_init, MPI_Start): the
     * group keeps what it worked out for a call and repeats it while nothing but buffers changes.
     */
    const fabricshm_call sum = fabricshm_call_make(FABRICSHM_ALLREDUCE, FABRICSHM_F32,
                                                   FABRICSHM_SUM, gradient, gradient, kCount);
    int code = 0;
    for (int step = 1; step <= kSteps && code == 0; ++step) {
        for (int i = 0; i < kCount; ++i) gradient[i] = (float)(step * (rank + 1));
        code = fabricshm_run(group, &sum);
        if (code == 0) printf("rank %d, step %d: %g\n", rank, step, gradient[0]);
    }

    /* The same without waiting: compute while the other ranks' bytes come in. */
    fabricshm_request* request;
    if (code == 0) code = fabricshm_start(group, &sum, &request);
    if (code == 0) code = fabricshm_wait(request);
    if (code == 0) code = fabricshm_barrier(group);
    fabricshm_free(arena, gradient);
    return code;
}

int main(int argc, char** argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: allreduce RANK RANKS\n");
        return 2;
    }
    fabricshm_session* session = NULL;
    fabricshm_arena* arena;
    fabricshm_group* group;
    int code = fabricshm_session_open(NULL, &session);
    if (code == 0) code = fabricshm_arena_open(session, "c-allreduce", 64u << 20, 0, &arena);
    if (code == 0)
        code = fabricshm_group_join(arena, "world", atoi(argv[1]), atoi(argv[2]), 30000, &group);
    if (code == 0) code = train(arena, group);
    if (code != 0) fprintf(stderr, "allreduce: %s\n", fabricshm_error_text());
    fabricshm_session_close(session); /* and with it the group and the arena */
    return code != 0;
}
