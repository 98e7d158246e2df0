// One process's attachment to a job, through the C ABI; for children, which report by exit code.

#pragma once

#include <fabricshm/fabricshm.h>

#include <cstdio>
#include <string>

namespace test_support {

/// A session and its arena. `ok` is false, and the reason on stderr, when either failed.
struct Job {
    explicit Job(const std::string& socket, uint64_t bytes = 16 << 20, const char* name = "job") {
        fabricshm_session_options options{};
        options.struct_size = sizeof options;
        options.socket = socket.c_str();
        options.timeout_ms = 60'000;  // sanitizers on a busy machine
        ok = fabricshm_session_open(&options, &session) == FABRICSHM_OK &&
             fabricshm_arena_open(session, name, bytes, 0, &arena) == FABRICSHM_OK;
        if (!ok) std::fprintf(stderr, "job: %s\n", fabricshm_error_text());
    }
    ~Job() { fabricshm_session_close(session); }
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

    fabricshm_session* session = nullptr;
    fabricshm_arena* arena = nullptr;
    bool ok = false;
};

/// For children: the number of the step that went wrong, as the exit code, with the last error.
inline int failed(int step) {
    std::fprintf(stderr, "step %d: %s\n", step, fabricshm_error_text());
    return step;
}

}  // namespace test_support
