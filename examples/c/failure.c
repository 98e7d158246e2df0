/* What a job does when a rank dies: the last rank ends in the middle, the others learn which one it
 * was, and go on in a group of those that are left.
 *
 *   cc -o failure failure.c $(pkg-config --cflags --libs fabricshm)
 *   ./failure 0 3 & ./failure 1 3 & ./failure 2 3; wait
 */
#include <fabricshm/fabricshm.h>
#include <stdio.h>
#include <stdlib.h>

static int sum_ones(fabricshm_group* group, float* sum) {
    const float one = 1;
    return fabricshm_allreduce(group, &one, sum, 1, FABRICSHM_F32, FABRICSHM_SUM);
}

/* After these the group is broken, and can be shrunk. All other codes leave it as it was, or are
 * about something else: docs/errors.md has a row for each. */
static int can_be_shrunk(int code) {
    return code == FABRICSHM_EPEER || code == FABRICSHM_ETIMEOUT || code == FABRICSHM_EBROKEN;
}

static int train(fabricshm_group** group) {
    const int rank = fabricshm_group_rank(*group);
    float sum = 0;
    int code = sum_ones(*group, &sum);
    if (code == 0) printf("rank %d: %g ranks\n", rank, sum);
    if (code == 0 && rank == fabricshm_group_world(*group) - 1) {
        fflush(stdout);
        _Exit(3); /* as if it had been killed */
    }
    if (code == 0) code = sum_ones(*group, &sum);
    if (!can_be_shrunk(code)) return code;
    printf("rank %d: %s, rank %d\n", rank, fabricshm_error_name(code), fabricshm_error_rank());

    /* Another rank may die meanwhile: then the call is repeated, on the same group. */
    fabricshm_group* survivors;
    do {
        code = fabricshm_group_shrink(*group, 30000, &survivors);
    } while (can_be_shrunk(code));
    if (code != 0) return code;
    fabricshm_group_leave(*group);
    *group = survivors;
    code = sum_ones(*group, &sum);
    if (code == 0) printf("rank %d: %g ranks\n", rank, sum);
    return code;
}

int main(int argc, char** argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: failure RANK RANKS\n");
        return 2;
    }
    fabricshm_session* session = NULL;
    fabricshm_arena* arena;
    fabricshm_group* group;
    int code = fabricshm_session_open(NULL, &session);
    if (code == 0) code = fabricshm_arena_open(session, "c-failure", 64u << 20, 0, &arena);
    if (code == 0)
        code = fabricshm_group_join(arena, "world", atoi(argv[1]), atoi(argv[2]), 30000, &group);
    if (code == 0) code = train(&group);
    if (code != 0) fprintf(stderr, "failure: %s\n", fabricshm_error_text());
    fabricshm_session_close(session);
    return code != 0;
}
