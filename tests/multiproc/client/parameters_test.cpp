// Shared parameters through the C ABI, a daemon and processes: what programs do with them.

#include <doctest/doctest.h>
#include <fabricshm/optim.hpp>

#include <cmath>
#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/job.hpp"

using namespace test_support;

namespace {

constexpr std::int64_t kTimeoutMs = 60'000;
constexpr int kCount = 5000;

struct Model {
    std::int64_t shape[1] = {kCount};
    fabricshm_parameter parameter{"w", shape, 1, 0};
    fabricshm_parameters_spec spec{sizeof(fabricshm_parameters_spec),
                                   &parameter,
                                   1,
                                   FABRICSHM_SGD,
                                   FABRICSHM_F32,
                                   FABRICSHM_BF16,
                                   0,
                                   nullptr};
};

// SGD without momentum: what each step does can be said in one line.
int step(fabricshm_parameters* set, fabricshm_step_report* report = nullptr) {
    const fabricshm_hyper hyper = fabricshm_hyper_make(0.5);
    fabricshm_step_call call = fabricshm_step_make(&hyper, 1);
    call.timeout_ms = kTimeoutMs;
    return fabricshm_parameters_step(set, &call, report);
}

fabricshm_parameter_memory view_of(fabricshm_parameters* set) {
    fabricshm_parameter_memory memory{};
    (void)fabricshm_parameter_view(set, 0, &memory);
    return memory;
}

void fill(float* values, float value) {
    for (int i = 0; i < kCount; ++i) values[i] = value;
}

bool all_are(const float* values, float value) {
    for (int i = 0; i < kCount; ++i) {
        if (values[i] != value) return false;
    }
    return true;
}

int train(const Daemon& daemon, int rank, int world) {
    const Job job(daemon.socket(), 64 << 20);
    fabricshm_group* group = nullptr;
    if (!job.ok) return 1;
    if (fabricshm_group_join(job.arena, "world", rank, world, kTimeoutMs, &group) != 0) {
        return failed(2);
    }
    Model model;
    fabricshm_parameters* set = nullptr;
    if (fabricshm_parameters_open(group, "model", &model.spec, kTimeoutMs, &set) != 0) {
        return failed(3);
    }
    const fabricshm_parameter_memory w = view_of(set);
    if (w.count != kCount || w.copy == nullptr || w.state[0] == nullptr || w.state[1] != nullptr) {
        return 4;
    }
    for (int i = 0; i < 10; ++i) {
        // The mean of 1, 2, .. world; half of it is taken off the parameters.
        fill(static_cast<float*>(w.gradient), static_cast<float>(rank + 1));
        fabricshm_step_report report{};
        report.struct_size = sizeof report;
        if (step(set, &report) != 0) return failed(5);
        const float expected = -0.25F * static_cast<float>((world + 1) * (i + 1));
        if (!all_are(w.values, expected)) return 6;
        std::uint32_t upper = 0;
        std::memcpy(&upper, &expected, 4);
        if (static_cast<std::uint16_t*>(w.copy)[kCount - 1] != upper >> 16) return 7;
        if (report.step != static_cast<std::uint64_t>(i + 1) || !std::isnan(report.norm)) return 8;
    }
    fabricshm_parameters_close(set);
    fabricshm_group_leave(group);
    return 0;
}

// A rank dies, the survivors shrink and go on; at the end the set is there for a group of later.
int survive(const Daemon& daemon, int rank) {
    constexpr int kWorld = 3;
    const Job job(daemon.socket(), 64 << 20);
    fabricshm_group* group = nullptr;
    if (!job.ok) return 1;
    if (fabricshm_group_join(job.arena, "world", rank, kWorld, kTimeoutMs, &group) != 0) {
        return failed(2);
    }
    Model model;
    fabricshm_parameters* set = nullptr;
    if (fabricshm_parameters_open(group, "model", &model.spec, kTimeoutMs, &set) != 0) {
        return failed(3);
    }
    const fabricshm_parameter_memory w = view_of(set);
    auto* gradient = static_cast<float*>(w.gradient);
    fill(gradient, 3);
    if (step(set) != 0 || !all_are(w.values, -1.5F)) return failed(4);
    // Rank 0 made the memory; it is the one that goes.
    if (rank == 0) ::raise(SIGKILL);
    if (step(set) != FABRICSHM_EPEER || fabricshm_error_rank() != 0) return failed(5);
    fabricshm_group* smaller = nullptr;
    if (fabricshm_group_shrink(group, kTimeoutMs, &smaller) != 0) return failed(6);
    int applied = -1;
    if (fabricshm_parameters_recover(set, smaller, kTimeoutMs, &applied) != 0) return failed(7);
    fabricshm_group_leave(group);
    if (applied != 0 || fabricshm_parameters_steps(set) != 1) return 8;
    if (view_of(set).gradient != w.gradient || view_of(set).values != w.values) return 9;
    fill(gradient, rank == 1 ? 1 : 2);
    if (step(set) != 0 || !all_are(w.values, -2.25F)) return failed(10);
    fabricshm_parameters_close(set);
    fabricshm_group_leave(smaller);

    // Another group of the two finds it as it was.
    if (fabricshm_group_join(job.arena, "again", rank - 1, 2, kTimeoutMs, &group) != 0) {
        return failed(11);
    }
    model.spec.slots = 3;
    if (fabricshm_parameters_open(group, "model", &model.spec, kTimeoutMs, &set) != 0) {
        return failed(12);
    }
    if (fabricshm_parameters_steps(set) != 2 || !all_are(view_of(set).values, -2.25F)) return 13;
    fabricshm_parameters_close(set);
    return 0;
}

int refuse_all(const Daemon& daemon) {
    const Job job(daemon.socket(), 64 << 20);
    fabricshm_group* group = nullptr;
    if (!job.ok) return 1;
    if (fabricshm_group_join(job.arena, "world", 0, 1, kTimeoutMs, &group) != 0) return failed(2);
    const auto refused = [&](void (*change)(Model&), const char* word) {
        Model model;
        change(model);
        fabricshm_parameters* set = nullptr;
        const int code = fabricshm_parameters_open(group, "m", &model.spec, kTimeoutMs, &set);
        const bool named = std::string(fabricshm_error_text()).find(word) != std::string::npos;
        return code == FABRICSHM_EINVAL && set == nullptr && named;
    };
    if (!refused([](Model& m) { m.spec.optimiser = static_cast<fabricshm_optimiser>(9); },
                 "optimiser 9")) {
        return failed(3);
    }
    if (!refused([](Model& m) { m.spec.gradients = FABRICSHM_I32; }, "gradients")) return failed(4);
    if (!refused([](Model& m) { m.parameter.name = ""; }, "a name has")) return failed(5);
    if (!refused([](Model& m) { m.parameter.ndim = 9; }, "ndim")) return failed(6);
    if (!refused([](Model& m) { m.spec.count = 0; }, "no parameter")) return failed(7);
    if (!refused([](Model& m) { m.spec.slots = 500; }, "slots 500")) return failed(8);

    Model model;
    fabricshm_parameters* set = nullptr;
    if (fabricshm_parameters_open(group, "m", &model.spec, kTimeoutMs, &set) != 0) return failed(9);
    fabricshm_hyper hyper = fabricshm_hyper_make(-1);
    fabricshm_step_call call = fabricshm_step_make(&hyper, 1);
    if (fabricshm_parameters_step(set, &call, nullptr) != FABRICSHM_EINVAL) return 10;
    if (std::string(fabricshm_error_text()).find("learning_rate") == std::string::npos) return 11;
    call.struct_size = 3;
    if (fabricshm_parameters_step(set, &call, nullptr) != FABRICSHM_EINVAL) return 12;
    fabricshm_parameter_memory memory{};
    if (fabricshm_parameter_view(set, 1, &memory) != FABRICSHM_EINVAL) return 13;
    // Two handles would be one memory under two names.
    fabricshm_parameters* other = nullptr;
    if (fabricshm_parameters_open(group, "m", &model.spec, kTimeoutMs, &other) != FABRICSHM_EBUSY ||
        std::string(fabricshm_error_text()).find("open already") == std::string::npos) {
        return failed(25);
    }
    // A set of another make under the same name.
    fabricshm_parameters_close(set);
    model.shape[0] = 7;
    if (fabricshm_parameters_open(group, "m", &model.spec, kTimeoutMs, &other) !=
        FABRICSHM_EMISMATCH) {
        return failed(14);
    }
    model.shape[0] = kCount;
    if (fabricshm_parameters_open(group, "m", &model.spec, kTimeoutMs, &set) != 0)
        return failed(26);
    if (fabricshm_parameters_free(job.arena, "m") != FABRICSHM_EBUSY) return failed(20);
    if (std::string(fabricshm_error_text()).find("has the set open") == std::string::npos) {
        return failed(21);
    }
    // The name of another tensor is neither opened nor freed.
    fabricshm_tensor plain{};
    const std::int64_t shape[] = {4096};
    if (fabricshm_tensor_create(job.arena, "t", FABRICSHM_F32, 1, shape, &plain) != 0) return 22;
    Model model2;
    if (fabricshm_parameters_open(group, "t", &model2.spec, kTimeoutMs, &other) !=
        FABRICSHM_EEXIST) {
        return failed(23);
    }
    if (fabricshm_parameters_free(job.arena, "t") != FABRICSHM_EEXIST) return failed(24);
    // Left before it was closed: nothing but closing is left to do.
    fabricshm_group_leave(group);
    if (step(set) != FABRICSHM_ECLOSED) return failed(15);
    fabricshm_parameters_close(set);
    if (fabricshm_parameters_free(job.arena, "m") != 0) return failed(16);
    if (fabricshm_parameters_free(job.arena, "m") != FABRICSHM_ENOENT) return failed(17);
    return 0;
}

// The same by the C++ owners.
int train_in_cpp(const Daemon& daemon, int rank, int world) {
    namespace fabric = fabricshm::api;
    fabric::SessionOptions where;
    where.socket = daemon.socket();
    where.timeout_ms = kTimeoutMs;
    auto session = fabric::Session::open(where);
    if (!session.ok()) return 1;
    auto arena = session->open_arena("job", 64 << 20);
    if (!arena.ok()) return 2;
    auto group = arena->join("world", rank, world);
    if (!group.ok()) return 3;
    const std::vector<fabric::ParameterShape> shapes = {{"w", {10, 20}, 0}, {"b", {}, 0}};
    fabric::Parameters::Options options;
    options.optimiser = FABRICSHM_SGD;
    auto set = fabric::Parameters::open(*group, "model", shapes, options);
    if (!set.ok()) return 4;
    if (set->values(0).size() != 200 || set->values(1).size() != 1) return 5;
    if (!set->gradient<double>(0).empty() || set->values(2).data() != nullptr) return 6;
    for (float& g : set->gradient<float>(0)) g = static_cast<float>(rank);
    set->gradient<float>(1)[0] = 4;
    const auto report = set->step(fabricshm_hyper_make(1));
    if (!report.ok() || report.value().step != 1) return 7;
    for (const float w : set->values(0)) {
        if (w != -static_cast<float>(world - 1) / 2) return 8;
    }
    return set->values(1)[0] == -4 && set->steps() == 1 ? 0 : 9;
}

// Each rank by itself: whole numbers, so the sum is the same in every order.
int push_apart(const Daemon& daemon, int rank, int world) {
    const Job job(daemon.socket(), 64 << 20);
    fabricshm_group* group = nullptr;
    if (!job.ok) return 1;
    if (fabricshm_group_join(job.arena, "world", rank, world, kTimeoutMs, &group) != 0) {
        return failed(2);
    }
    Model model;
    fabricshm_parameters* set = nullptr;
    if (fabricshm_parameters_open(group, "model", &model.spec, kTimeoutMs, &set) != 0) {
        return failed(3);
    }
    const fabricshm_hyper hyper = fabricshm_hyper_make(1);
    fabricshm_step_call call = fabricshm_step_make(&hyper, 1);
    call.timeout_ms = kTimeoutMs;
    // What is refused.
    std::vector<float> own(kCount);
    float* places[1] = {nullptr};
    if (fabricshm_parameters_push(nullptr, &call, nullptr) != FABRICSHM_EINVAL) return 4;
    if (fabricshm_parameters_push(set, nullptr, nullptr) != FABRICSHM_EINVAL) return 5;
    if (fabricshm_parameters_pull(set, places, 1, kTimeoutMs) != FABRICSHM_EINVAL) return 6;
    places[0] = own.data();
    if (fabricshm_parameters_pull(set, places, 2, kTimeoutMs) != FABRICSHM_EINVAL) return 7;
    if (fabricshm_parameters_pull(set, nullptr, 1, kTimeoutMs) != FABRICSHM_EINVAL) return 8;
    if (fabricshm_parameters_advance(set, 1, -5, nullptr) != FABRICSHM_EINVAL) return 9;
    call.clip_norm = 1;
    if (fabricshm_parameters_push(set, &call, nullptr) != FABRICSHM_EINVAL) return 10;
    call.clip_norm = 0;
    constexpr int kPushes = 20;
    for (int i = 0; i < kPushes * (rank + 1); ++i) {
        fill(static_cast<float*>(view_of(set).gradient), 1);
        if (fabricshm_parameters_push(set, &call, nullptr) != 0) return failed(11);
        std::uint64_t version = 0;
        if (fabricshm_parameters_advance(set, 2, kTimeoutMs, &version) != 0) return failed(12);
        if (version == 0) return 13;
        if (fabricshm_parameters_pull(set, places, 1, kTimeoutMs) != 0) return failed(14);
        if (own[0] > -static_cast<float>(i + 1)) return 15;  // this rank's own are among them
    }
    if (fabricshm_parameters_finish(set, kTimeoutMs) != 0) return failed(16);
    const int pushes = kPushes * world * (world + 1) / 2;
    if (!all_are(view_of(set).values, -static_cast<float>(pushes))) return 17;
    if (fabricshm_parameters_steps(set) != static_cast<std::uint64_t>(pushes)) return 18;
    // And together again.
    if (step(set) != 0 || !all_are(view_of(set).values, -static_cast<float>(pushes) - 0.5F)) {
        return failed(19);
    }
    fabricshm_parameters_close(set);
    return 0;
}

std::string joined(const std::vector<int>& codes) {
    std::string text;
    for (const int code : codes) text += std::to_string(code) + " ";
    return text;
}

}  // namespace

TEST_SUITE("multiproc.client.parameters") {
    TEST_CASE("ranks step one copy of the parameters") {
        for (const int world : {1, 2, 4}) {
            const Daemon daemon;
            const auto codes =
                run_children(world, [&](int rank) { return train(daemon, rank, world); });
            INFO(joined(codes));
            for (const int code : codes) CHECK(code == 0);
        }
    }

    TEST_CASE("ranks push each for itself, as often as they like, and step together again") {
        const Daemon daemon;
        const auto codes = run_children(3, [&](int rank) { return push_apart(daemon, rank, 3); });
        INFO(joined(codes));
        for (const int code : codes) CHECK(code == 0);
    }

    TEST_CASE("the C++ owners do the same") {
        const Daemon daemon;
        const auto codes = run_children(2, [&](int rank) { return train_in_cpp(daemon, rank, 2); });
        INFO(joined(codes));
        for (const int code : codes) CHECK(code == 0);
    }

    TEST_CASE("the set outlives the rank that made it, and serves a later group") {
        const Daemon daemon;
        const auto codes = run_children(3, [&](int rank) { return survive(daemon, rank); });
        INFO(joined(codes));
        CHECK(codes[0] == 128 + SIGKILL);
        CHECK(codes[1] == 0);
        CHECK(codes[2] == 0);
    }

    TEST_CASE("what is out of its range is refused by name, and changes nothing") {
        const Daemon daemon;
        const auto codes = run_children(1, [&](int) { return refuse_all(daemon); });
        INFO(joined(codes));
        CHECK(codes[0] == 0);
    }
}
