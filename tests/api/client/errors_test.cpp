// Every code of the C ABI, produced from outside the library, and the text that goes with it.
// EMISMATCH and EBROKEN take several ranks: tests/multiproc/client/groups_test.cpp.

#include <doctest/doctest.h>
#include <fabricshm/fabricshm.h>
#include <sys/resource.h>

#include <cstring>
#include <set>
#include <string>

#include "libfabricshm/base/version.hpp"
#include "tests/api/client/c_story.h"
#include "tests/support/children.hpp"
#include "tests/support/fake_daemon.hpp"

using fabricshm::Errc;
using fabricshm::proto::Type;
using test_support::Child;
using test_support::FakeDaemon;

namespace {

fabricshm_session_options options_for(const std::string& socket) {
    fabricshm_session_options options{};
    options.struct_size = sizeof options;
    options.socket = socket.c_str();
    return options;
}

bool text_has(const std::string& part) {
    return std::string(fabricshm_error_text()).find(part) != std::string::npos;
}

// An attached session with an arena of 1 MiB.
struct Attached {
    explicit Attached(const FakeDaemon& daemon) {
        const auto options = options_for(daemon.path());
        REQUIRE(fabricshm_session_open(&options, &session) == FABRICSHM_OK);
        REQUIRE(fabricshm_arena_open(session, "job", 1 << 20, 0, &arena) == FABRICSHM_OK);
    }
    ~Attached() { fabricshm_session_close(session); }
    fabricshm_session* session = nullptr;
    fabricshm_arena* arena = nullptr;
};

const int64_t kShape[] = {4};

int create(fabricshm_arena* arena, const char* name, fabricshm_tensor* tensor) {
    return fabricshm_tensor_create(arena, name, FABRICSHM_F32, 1, kShape, tensor);
}

}  // namespace

TEST_SUITE("api.client.errors") {
    TEST_CASE("a C program uses sessions, arenas, regions, memory and tensors") {
        const FakeDaemon daemon;
        const char* wrong = c_story(daemon.path().c_str());
        CHECK_MESSAGE(wrong == nullptr, std::string(wrong != nullptr ? wrong : ""));
    }

    TEST_CASE("names of codes are those of the header") {
        CHECK(std::string(fabricshm_error_name(FABRICSHM_OK)) == "FABRICSHM_OK");
        CHECK(std::string(fabricshm_error_name(FABRICSHM_EPEER)) == "FABRICSHM_EPEER");
        CHECK(std::string(fabricshm_error_name(FABRICSHM_EINTERNAL)) == "FABRICSHM_EINTERNAL");
        CHECK(std::string(fabricshm_error_name(1)) == "FABRICSHM_E?");
        CHECK(std::string(fabricshm_error_name(-1000)) == "FABRICSHM_E?");
        std::set<std::string> names;
        for (int code = 0; code >= FABRICSHM_ECHANGED; --code) {
            names.insert(fabricshm_error_name(code));
        }
        CHECK(names.size() == 20);
        CHECK(std::string(fabricshm_version()) == FABRIC_VERSION);
        CHECK(fabricshm_dtype_size(FABRICSHM_BF16) == 2);
        CHECK(fabricshm_dtype_size(static_cast<fabricshm_dtype>(99)) == 0);
    }

    TEST_CASE("EDAEMON: no daemon listens, and the text names the socket") {
        const std::string socket = "/nonexistent/attach.sock";
        const auto options = options_for(socket);
        fabricshm_session* session = nullptr;
        CHECK(fabricshm_session_open(&options, &session) == FABRICSHM_EDAEMON);
        CHECK(session == nullptr);
        CHECK(text_has("/nonexistent/attach.sock"));
        CHECK(fabricshm_error_rank() == -1);
    }

    TEST_CASE("EVERSION, EBUSY, EDENIED and EINTERNAL are the daemon's word on a session") {
        FakeDaemon daemon;
        const auto options = options_for(daemon.path());
        const std::pair<Errc, int> cases[] = {{Errc::kVersion, FABRICSHM_EVERSION},
                                              {Errc::kBusy, FABRICSHM_EBUSY},
                                              {Errc::kDenied, FABRICSHM_EDENIED},
                                              {Errc::kInternal, FABRICSHM_EINTERNAL}};
        for (const auto& [sent, seen] : cases) {
            fabricshm_session* session = nullptr;
            daemon.refuse_next(Type::kHello, {sent, 0, ""});
            CHECK(fabricshm_session_open(&options, &session) == seen);
            CHECK(session == nullptr);
        }
    }

    TEST_CASE("EINVAL names the argument") {
        const FakeDaemon daemon;
        const Attached a(daemon);
        fabricshm_region region;
        fabricshm_tensor tensor;
        fabricshm_arena* arena = nullptr;
        fabricshm_group* group = nullptr;
        const auto refused = [](int code, const char* name) {
            CHECK(code == FABRICSHM_EINVAL);
            CHECK_MESSAGE(text_has(name), std::string(fabricshm_error_text()));
        };
        refused(fabricshm_session_open(nullptr, nullptr), "session");
        refused(fabricshm_arena_open(nullptr, "x", 0, 0, &arena), "session");
        refused(fabricshm_arena_open(a.session, nullptr, 0, 0, &arena), "name");
        refused(fabricshm_arena_open(a.session, "", 0, 0, &arena), "name");
        refused(fabricshm_arena_open(a.session, "new\nline", 0, 0, &arena), "name");
        refused(fabricshm_arena_open(a.session, std::string(64, 'x').c_str(), 0, 0, &arena),
                "name");
        refused(fabricshm_arena_open(a.session, "x", 0, 4, &arena), "flags");
        refused(fabricshm_arena_open(a.session, "x", 0, 0, nullptr), "arena");
        refused(fabricshm_region_create(a.arena, 0, &region), "bytes");
        refused(fabricshm_region_create(a.arena, 1, nullptr), "region");
        refused(fabricshm_region_open(a.arena, 0, &region), "id");
        refused(fabricshm_tensor_create(a.arena, "t", static_cast<fabricshm_dtype>(77), 1, kShape,
                                        &tensor),
                "dtype");
        refused(fabricshm_tensor_create(a.arena, "t", FABRICSHM_F32, 9, kShape, &tensor), "ndim");
        refused(fabricshm_tensor_create(a.arena, "t", FABRICSHM_F32, 1, nullptr, &tensor), "shape");
        const int64_t negative[] = {-4};
        refused(fabricshm_tensor_create(a.arena, "t", FABRICSHM_F32, 1, negative, &tensor),
                "shape");
        refused(fabricshm_tensor_open(a.arena, "t", -2, &tensor), "timeout_ms");
        fabricshm_tensor stranger{};
        refused(fabricshm_tensor_publish(a.arena, &stranger, nullptr), "data");
        refused(fabricshm_group_join(a.arena, "g", 0, 0, 0, &group), "world");
        refused(fabricshm_group_join(a.arena, "g", 0, 1000, 0, &group), "world");
        refused(fabricshm_group_join(a.arena, "g", 4, 4, 0, &group), "rank");
        refused(fabricshm_group_join(a.arena, "g", -2, 4, 0, &group), "rank");
        refused(fabricshm_run(nullptr, nullptr), "group");
        CHECK(arena == nullptr);
        CHECK(fabricshm_alloc(nullptr, 1) == nullptr);
    }

    TEST_CASE("options of a newer caller are taken when the new fields are zero") {
        const FakeDaemon daemon;
        struct {
            fabricshm_session_options known;
            std::uint64_t later;
        } options{options_for(daemon.path()), 0};
        fabricshm_session* session = nullptr;
        options.known.struct_size = sizeof options;
        CHECK(fabricshm_session_open(&options.known, &session) == FABRICSHM_OK);
        fabricshm_session_close(session);
        options.later = 1;
        CHECK(fabricshm_session_open(&options.known, &session) == FABRICSHM_EUNSUPPORTED);
        // A caller built before the last field was added: it is not read.
        options.known.device = "not to be read";
        options.known.struct_size = offsetof(fabricshm_session_options, device);
        CHECK(fabricshm_session_open(&options.known, &session) == FABRICSHM_OK);
        fabricshm_session_close(session);
        options.known.struct_size = 8;
        CHECK(fabricshm_session_open(&options.known, &session) == FABRICSHM_EINVAL);
        CHECK(text_has("struct_size"));
    }

    TEST_CASE("ENOENT, EEXIST, ENOMEM and EDENIED name the object") {
        FakeDaemon daemon;
        const Attached a(daemon);
        fabricshm_region region;
        fabricshm_tensor tensor;
        CHECK(fabricshm_region_open(a.arena, 4711, &region) == FABRICSHM_ENOENT);
        CHECK(text_has("region 4711 in arena 'job'"));
        CHECK(fabricshm_region_create(a.arena, 1 << 30, &region) == FABRICSHM_ENOMEM);
        CHECK(fabricshm_alloc(a.arena, 1 << 30) == nullptr);
        CHECK(text_has("no memory left"));
        REQUIRE(create(a.arena, "weights", &tensor) == FABRICSHM_OK);
        CHECK(create(a.arena, "weights", &tensor) == FABRICSHM_EEXIST);
        CHECK(text_has("tensor 'weights' in arena 'job'"));
        daemon.refuse_next(Type::kRegionFree, {Errc::kDenied, 0, ""});
        CHECK(fabricshm_region_free(a.arena, tensor.region_id) == FABRICSHM_EDENIED);
    }

    TEST_CASE("ETIMEOUT names what was waited for") {
        const FakeDaemon daemon;
        const Attached a(daemon);
        fabricshm_tensor tensor;
        CHECK(fabricshm_tensor_open(a.arena, "never", 10, &tensor) == FABRICSHM_ETIMEOUT);
        CHECK(text_has("tensor 'never'"));
        REQUIRE(create(a.arena, "quiet", &tensor) == FABRICSHM_OK);
        CHECK(fabricshm_tensor_wait(a.arena, &tensor, 3, 10, nullptr) == FABRICSHM_ETIMEOUT);
        CHECK(text_has("version 3 of tensor 'quiet'"));
    }

    TEST_CASE("ECORRUPT: an answer with fields out of range") {
        FakeDaemon daemon;
        const Attached a(daemon);
        fabricshm_region region;
        daemon.corrupt_next(Type::kRegionCreate);
        CHECK(fabricshm_region_create(a.arena, 4096, &region) == FABRICSHM_ECORRUPT);
        CHECK(fabricshm_region_create(a.arena, 4096, &region) == FABRICSHM_OK);
    }

    TEST_CASE("ESYSTEM has the reason of the kernel") {
        const FakeDaemon daemon;
        const auto options = options_for(daemon.path());
        Child child([&]() -> int {
            const rlimit none{0, 0};
            ::setrlimit(RLIMIT_NOFILE, &none);
            fabricshm_session* session = nullptr;
            const int code = fabricshm_session_open(&options, &session);
            return code == FABRICSHM_ESYSTEM && text_has("open files") ? 0 : 1;
        });
        CHECK(child.wait() == 0);
    }

    TEST_CASE("ECLOSED: the session of a forked parent") {
        const FakeDaemon daemon;
        const Attached a(daemon);
        fabricshm_tensor tensor;
        REQUIRE(create(a.arena, "mine", &tensor) == FABRICSHM_OK);
        Child child([&]() -> int {
            fabricshm_arena* arena = nullptr;
            fabricshm_region region;
            fabricshm_group* group = nullptr;
            if (fabricshm_arena_open(a.session, "x", 0, 0, &arena) != FABRICSHM_ECLOSED) return 1;
            if (fabricshm_region_create(a.arena, 1, &region) != FABRICSHM_ECLOSED) return 2;
            if (fabricshm_tensor_publish(a.arena, &tensor, nullptr) != FABRICSHM_ECLOSED) return 3;
            if (fabricshm_alloc(a.arena, 1) != nullptr) return 4;
            if (fabricshm_group_join(a.arena, "g", 0, 1, 0, &group) != FABRICSHM_ECLOSED) return 5;
            // Closing does nothing, above all not to the parent's session.
            fabricshm_arena_close(a.arena);
            fabricshm_session_close(a.session);
            // A session of its own works.
            fabricshm_session* own = nullptr;
            const auto options = options_for(daemon.path());
            if (fabricshm_session_open(&options, &own) != FABRICSHM_OK) return 6;
            fabricshm_session_close(own);
            return 0;
        });
        CHECK(child.wait() == 0);
        uint64_t version = 0;
        CHECK(fabricshm_tensor_publish(a.arena, &tensor, &version) == FABRICSHM_OK);
        CHECK(version == 1);
        fabricshm_region region;
        CHECK(fabricshm_region_create(a.arena, 4096, &region) == FABRICSHM_OK);
    }

    TEST_CASE("EPEER: the maker of a tensor died before it published") {
        const FakeDaemon daemon;
        test_support::Gate made;
        Child maker([&]() -> int {
            const Attached a(daemon);
            fabricshm_tensor tensor;
            if (create(a.arena, "orphan", &tensor) != FABRICSHM_OK) return 1;
            made.open();
            test_support::Gate forever;
            return forever.wait() ? 0 : 2;
        });
        const Attached a(daemon);
        fabricshm_tensor tensor;
        REQUIRE(made.wait());
        REQUIRE(fabricshm_tensor_open(a.arena, "orphan", 20'000, &tensor) == FABRICSHM_OK);
        maker.kill();
        CHECK(fabricshm_tensor_wait(a.arena, &tensor, 1, 20'000, nullptr) == FABRICSHM_EPEER);
        CHECK(fabricshm_error_rank() == -1);
        CHECK(text_has("tensor 'orphan'"));
    }

    TEST_CASE("two handles of one arena share it, and the last close reaches the daemon") {
        FakeDaemon daemon;
        const Attached a(daemon);
        fabricshm_arena* second = nullptr;
        REQUIRE(fabricshm_arena_open(a.session, "job", 0, 0, &second) == FABRICSHM_OK);
        CHECK(fabricshm_arena_base(second) == fabricshm_arena_base(a.arena));
        fabricshm_arena_close(second);
        fabricshm_region region;
        CHECK(fabricshm_region_create(a.arena, 4096, &region) == FABRICSHM_OK);
        CHECK(daemon.count(Type::kArenaClose) == 0);
    }
}
