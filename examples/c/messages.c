/* Sends a message around the ranks, each to the next one.
 *
 *   cc -o messages messages.c $(pkg-config --cflags --libs fabricshm)
 *   ./messages 0 2 & ./messages 1 2; wait
 */
#include <fabricshm/fabricshm.h>
#include <stdio.h>
#include <stdlib.h>

enum { kCount = 4, kTag = 7 };

static int pass_on(fabricshm_group* group) {
    const int rank = fabricshm_group_rank(group);
    const int world = fabricshm_group_world(group);
    if (world < 2) return 0; /* there is no message to oneself: EINVAL */
    int32_t sent[kCount] = {rank, rank, rank, rank};
    int32_t received[kCount] = {-1, -1, -1, -1};

    /* The receive is started first. Large messages wait for their receiver, so ranks that all sent
     * first would wait for each other; a started receive takes what comes meanwhile. */
    fabricshm_call receive =
        fabricshm_call_make(FABRICSHM_RECV, FABRICSHM_I32, FABRICSHM_SUM, NULL, received, kCount);
    receive.peer = (rank + world - 1) % world; /* FABRICSHM_ANY_PEER: from the first that sends */
    receive.tag = kTag;
    fabricshm_call send =
        fabricshm_call_make(FABRICSHM_SEND, FABRICSHM_I32, FABRICSHM_SUM, sent, NULL, kCount);
    send.peer = (rank + 1) % world;
    send.tag = kTag;

    fabricshm_request* request;
    int code = fabricshm_start(group, &receive, &request);
    if (code != 0) return code;
    const int send_code = fabricshm_run(group, &send);
    code = fabricshm_wait(request); /* in any case: it frees the request */
    if (code == 0) printf("rank %d: from rank %d\n", rank, (int)received[0]);
    return send_code != 0 ? send_code : code;
}

int main(int argc, char** argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: messages RANK RANKS\n");
        return 2;
    }
    fabricshm_session* session = NULL;
    fabricshm_arena* arena;
    fabricshm_group* group;
    int code = fabricshm_session_open(NULL, &session);
    if (code == 0) code = fabricshm_arena_open(session, "c-messages", 64u << 20, 0, &arena);
    if (code == 0)
        code = fabricshm_group_join(arena, "world", atoi(argv[1]), atoi(argv[2]), 30000, &group);
    if (code == 0) code = pass_on(group);
    if (code != 0) fprintf(stderr, "messages: %s\n", fabricshm_error_text());
    fabricshm_session_close(session);
    return code != 0;
}
