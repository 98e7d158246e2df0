/* Where does each rank write its records? An exscan of their numbers says it. And which rank has
 * the best loss? An allreduce of pairs of a value and an index, with MINLOC.
 *
 *   cc -o scan scan.c $(pkg-config --cflags --libs fabricshm)
 *   ./scan 0 2 & ./scan 1 2; wait
 */
#include <fabricshm/fabricshm.h>
#include <stdio.h>
#include <stdlib.h>

static int place_records(fabricshm_group* group) {
    const int rank = fabricshm_group_rank(group);
    const uint64_t records = 10u * (uint64_t)(rank + 1);
    uint64_t first = 0; /* an exscan leaves the output of rank 0 as it is */
    int code = fabricshm_exscan(group, &records, &first, 1, FABRICSHM_U64, FABRICSHM_SUM);
    if (code == 0)
        printf("rank %d: records %llu to %llu\n", rank, (unsigned long long)first,
               (unsigned long long)(first + records - 1));

    const fabricshm_f64_int mine = {2.5 - rank, rank};
    fabricshm_f64_int best;
    if (code == 0)
        code = fabricshm_allreduce(group, &mine, &best, 1, FABRICSHM_F64_INT, FABRICSHM_MINLOC);
    if (code == 0) printf("rank %d: loss %g of rank %d\n", rank, best.value, best.index);
    return code;
}

int main(int argc, char** argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: scan RANK RANKS\n");
        return 2;
    }
    fabricshm_session* session = NULL;
    fabricshm_arena* arena;
    fabricshm_group* group;
    int code = fabricshm_session_open(NULL, &session);
    if (code == 0) code = fabricshm_arena_open(session, "c-scan", 64u << 20, 0, &arena);
    if (code == 0)
        code = fabricshm_group_join(arena, "world", atoi(argv[1]), atoi(argv[2]), 30000, &group);
    if (code == 0) code = place_records(group);
    if (code != 0) fprintf(stderr, "scan: %s\n", fabricshm_error_text());
    fabricshm_session_close(session);
    return code != 0;
}
