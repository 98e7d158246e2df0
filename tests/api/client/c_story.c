#include "tests/api/client/c_story.h"

#include <fabricshm/fabricshm.h>
#include <string.h>

#define EXPECT(condition)                    \
    do {                                     \
        if (!(condition)) return #condition; \
    } while (0)

static const char* use_regions(fabricshm_arena* arena) {
    fabricshm_region made;
    fabricshm_region found;
    EXPECT(fabricshm_region_create(arena, 10000, &made) == FABRICSHM_OK);
    EXPECT(made.bytes >= 10000 && made.offset % 4096 == 0);
    EXPECT((char*)made.base == (char*)fabricshm_arena_base(arena) + made.offset);
    EXPECT(fabricshm_region_open(arena, made.id, &found) == FABRICSHM_OK);
    EXPECT(found.base == made.base && found.generation == made.generation);
    EXPECT(fabricshm_region_free(arena, made.id) == FABRICSHM_OK);
    EXPECT(fabricshm_region_free(arena, made.id) == FABRICSHM_ENOENT);
    return NULL;
}

static const char* use_memory(fabricshm_arena* arena) {
    char* block = fabricshm_alloc(arena, 1000);
    EXPECT(block != NULL);
    EXPECT((size_t)block % 64 == 0);
    memset(block, 1, 1000);
    fabricshm_free(arena, block);
    fabricshm_free(arena, NULL);
    return NULL;
}

static const char* use_tensors(fabricshm_arena* arena) {
    const int64_t shape[2] = {4, 8};
    fabricshm_tensor made;
    fabricshm_tensor found;
    uint64_t version = 99;
    EXPECT(fabricshm_tensor_create(arena, "weights", FABRICSHM_F32, 2, shape, &made) == 0);
    EXPECT(made.bytes == 128 && (size_t)made.data % 128 == 0);
    EXPECT(fabricshm_tensor_open(arena, "weights", 0, &found) == 0);
    EXPECT(found.data == made.data && found.ndim == 2 && found.shape[1] == 8);
    EXPECT(strcmp(found.name, "weights") == 0 && found.dtype == FABRICSHM_F32);
    EXPECT(fabricshm_tensor_publish(arena, &made, &version) == 0 && version == 1);
    EXPECT(fabricshm_tensor_publish(arena, &made, NULL) == 0);
    EXPECT(fabricshm_tensor_wait(arena, &found, 2, 0, &version) == 0 && version == 2);
    EXPECT(fabricshm_tensor_wait(arena, &found, 3, 1, NULL) == FABRICSHM_ETIMEOUT);
    EXPECT(fabricshm_tensor_free(arena, &made) == 0);
    EXPECT(fabricshm_tensor_open(arena, "weights", 0, &found) == FABRICSHM_ETIMEOUT);
    return NULL;
}

const char* c_story(const char* socket) {
    fabricshm_session_options options;
    fabricshm_session* session = NULL;
    fabricshm_arena* arena = NULL;
    const char* wrong = NULL;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.socket = socket;
    options.label = "a C program";
    EXPECT(fabricshm_session_open(&options, &session) == FABRICSHM_OK);
    EXPECT(fabricshm_arena_open(session, "job", 1 << 20, 0, &arena) == FABRICSHM_OK);
    EXPECT(fabricshm_arena_base(arena) != NULL && fabricshm_arena_bytes(arena) >= 1 << 20);
    wrong = use_regions(arena);
    if (wrong == NULL) wrong = use_memory(arena);
    if (wrong == NULL) wrong = use_tensors(arena);
    fabricshm_arena_close(arena);
    fabricshm_session_close(session);
    fabricshm_session_close(NULL);
    return wrong;
}
