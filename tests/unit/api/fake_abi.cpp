#include "tests/unit/api/fake_abi.hpp"

#include <cstdlib>

namespace {

struct State {
    std::vector<std::string> calls;
    int code = 0;
    int rank = -1;
    std::string text;
    fabricshm_call last_call{};
};

State g_state;

// Handles are only ever compared with null and passed back, so any address will do.
int g_somewhere = 0;

template <typename T>
int note(const char* what, T** handle) {
    g_state.calls.emplace_back(what);
    if (g_state.code == 0) *handle = reinterpret_cast<T*>(&g_somewhere);
    return g_state.code;
}

int note(const char* what) {
    g_state.calls.emplace_back(what);
    return g_state.code;
}

}  // namespace

namespace fake_abi {

std::vector<std::string>& calls() {
    return g_state.calls;
}

void fail_with(int code, int rank, const char* text) {
    g_state.code = code;
    g_state.rank = rank;
    g_state.text = text;
}

void reset() {
    g_state = State{};
}

const fabricshm_call& last_call() {
    return g_state.last_call;
}

}  // namespace fake_abi

extern "C" {

const char* fabricshm_error_text(void) {
    return g_state.text.c_str();
}
int fabricshm_error_rank(void) {
    return g_state.rank;
}

int fabricshm_launcher(fabricshm_launch* launch) {
    launch->rank = fake_abi::kRank;
    launch->world = fake_abi::kWorld;
    return note("launcher");
}

int fabricshm_session_open(const fabricshm_session_options*, fabricshm_session** session) {
    return note("open session", session);
}
void fabricshm_session_close(fabricshm_session*) {
    note("close session");
}

// A host comes between the first two calls.
int fabricshm_session_hosts(fabricshm_session*, fabricshm_host* hosts, int32_t capacity,
                            fabricshm_cluster* cluster) {
    cluster->total = capacity == 0 ? 1 : fake_abi::kHosts;
    cluster->admits = 1;
    for (int i = 0; i < capacity && i < cluster->total; ++i)
        hosts[i].incarnation = static_cast<uint64_t>(7 + i);
    return note("hosts");
}

int fabricshm_arena_open(fabricshm_session*, const char*, uint64_t, uint32_t,
                         fabricshm_arena** arena) {
    return note("open arena", arena);
}
void fabricshm_arena_close(fabricshm_arena*) {
    note("close arena");
}
void* fabricshm_arena_base(const fabricshm_arena*) {
    return &g_somewhere;
}
uint64_t fabricshm_arena_bytes(const fabricshm_arena*) {
    return sizeof g_somewhere;
}
void* fabricshm_alloc(fabricshm_arena*, uint64_t bytes) {
    note("alloc");
    return g_state.code == 0 ? std::malloc(bytes) : nullptr;
}
void fabricshm_free(fabricshm_arena*, void* block) {
    note("free");
    std::free(block);
}

int fabricshm_tensor_create(fabricshm_arena*, const char*, fabricshm_dtype dtype, int,
                            const int64_t*, fabricshm_tensor* tensor) {
    tensor->dtype = dtype;
    tensor->data = &g_somewhere;
    tensor->bytes = sizeof g_somewhere;
    return note("create tensor");
}
int fabricshm_tensor_open(fabricshm_arena*, const char*, int64_t, fabricshm_tensor*) {
    return note("open tensor");
}
int fabricshm_tensor_publish(fabricshm_arena*, const fabricshm_tensor*, uint64_t* version) {
    *version = 7;
    return note("publish");
}
int fabricshm_tensor_wait(fabricshm_arena*, const fabricshm_tensor*, uint64_t version, int64_t,
                          uint64_t* seen) {
    *seen = version + 1;
    return note("wait tensor");
}
int fabricshm_tensor_free(fabricshm_arena*, const fabricshm_tensor*) {
    return note("free tensor");
}

int fabricshm_group_join(fabricshm_arena*, const char*, int, int, int64_t,
                         fabricshm_group** group) {
    return note("join", group);
}
void fabricshm_group_leave(fabricshm_group*) {
    note("leave");
}
int fabricshm_group_rank(const fabricshm_group*) {
    return fake_abi::kRank;
}
int fabricshm_group_world(const fabricshm_group*) {
    return fake_abi::kWorld;
}
int fabricshm_group_quiesce(fabricshm_group*, int64_t) {
    return FABRICSHM_OK;
}
int fabricshm_group_shrink(fabricshm_group*, int64_t, fabricshm_group** survivors) {
    return note("shrink", survivors);
}

int fabricshm_run(fabricshm_group*, const fabricshm_call* call) {
    g_state.last_call = *call;
    return note("run");
}
int fabricshm_start(fabricshm_group*, const fabricshm_call* call, fabricshm_request** request) {
    g_state.last_call = *call;
    return note("start", request);
}
int fabricshm_test(fabricshm_request*) {
    return 0;
}
int fabricshm_wait(fabricshm_request*) {
    return note("wait");
}
int fabricshm_request_peer(const fabricshm_request*) {
    return 3;
}

}  // extern "C"
