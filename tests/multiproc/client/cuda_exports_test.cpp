// Device memory that processes export to each other, through fabricd and the C ABI, on mocks of
// the driver that open each other's memory by the rules of CUDA IPC.

#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <fabricshm/cuda.h>

#include "libfabricshm/client/cuda_seat.hpp"
#include "libfabricshm/client/handles.hpp"
#include "libfabricshm/optim/agreement.hpp"
#include "tests/support/apart_sums.hpp"
#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/mock_gpu/job_ranks.hpp"

namespace apart = test_support::apart;
using kernels::DType;
using mock_gpu::has_kernels;
using mock_gpu::kTimeoutMs;
using test_support::Child;
using test_support::Daemon;
using test_support::failed;
using test_support::Gate;
using test_support::Job;
using test_support::run_children;

namespace {

constexpr std::size_t kRoom = 256 << 10;  // of each rank's device memory
constexpr std::size_t kSkip = 4096;       // its range starts so far in its allocation
constexpr std::uint64_t kFits = 80;       // half of a stage has 3 ranks' parts of every type
constexpr std::uint64_t kCut = 3001;      // f32: in pieces

// A process's place in the group "gpus", with memory on its device.
struct Rank {
    Rank(const std::string& socket, int number, int ranks, int machine_device = 0)
        : job(socket, mock_gpu::kJobBytes), rank(number), world(ranks) {
        host.first_device = machine_device;
        if (!job.ok) return;
        group = mock_gpu::join(job, rank, world);
        if (group == nullptr || fabricshm_cuda_attach(job.arena, 0) != 0) return;
        if (mock_gpu::join_on_device(group) != 0) return;
        memory = reinterpret_cast<std::byte*>(mock_gpu::device_memory(kRoom / sizeof(float)));
        ok = memory != nullptr;
    }

    std::byte* input() const { return memory + kSkip; }
    std::byte* output() const { return memory + kRoom / 2; }

    int export_own(bool has, std::uint32_t* ranks) const {
        return fabricshm_cuda_export(group, has ? memory + kSkip : nullptr, has ? kRoom - kSkip : 0,
                                     ranks);
    }

    int copies() const {
        return static_cast<int>(
            std::count_if(host.launches.begin(), host.launches.end(),
                          [](const mock_gpu::Launch& one) { return one.kernel == "fabric_copy"; }));
    }

    mock_gpu::HostState& host = mock_gpu::with_gpu();
    const Job job;
    const int rank;
    const int world;
    fabricshm_group* group = nullptr;
    std::byte* memory = nullptr;
    bool ok = false;
};

bool has_ended(const Rank& self, int put) {
    return put == 0 && fabricshm_cuda_wait(self.group, nullptr, kTimeoutMs) == 0;
}

bool allreduce_is_right(const Rank& self, DType type, std::uint64_t count, bool in_place) {
    std::byte* const to = in_place ? self.input() : self.output();
    apart::give_all(type, self.input(), self.rank, 0, count);
    return has_ended(self,
                     fabricshm_allreduce_on_stream(
                         self.group, self.input(), to, count, static_cast<fabricshm_dtype>(type),
                         static_cast<fabricshm_op>(apart::op_of(type)), nullptr)) &&
           apart::wrong(type, to, count, [&](std::byte* at, std::uint64_t i) {
               apart::combine(type, at, self.world, i);
           }) == 0;
}

bool reduce_scatter_is_right(const Rank& self, DType type, std::uint64_t count) {
    const std::uint64_t first = static_cast<std::uint64_t>(self.rank) * count;
    apart::give_all(type, self.input(), self.rank, 0,
                    count * static_cast<std::uint64_t>(self.world));
    return has_ended(self, fabricshm_reduce_scatter_on_stream(
                               self.group, self.input(), self.output(), count,
                               static_cast<fabricshm_dtype>(type),
                               static_cast<fabricshm_op>(apart::op_of(type)), nullptr)) &&
           apart::wrong(type, self.output(), count, [&](std::byte* at, std::uint64_t i) {
               apart::combine(type, at, self.world, first + i);
           }) == 0;
}

bool all_gather_is_right(const Rank& self, DType type, std::uint64_t count) {
    apart::give_all(type, self.input(), self.rank, 0, count);
    if (!has_ended(self,
                   fabricshm_all_gather_on_stream(self.group, self.input(), self.output(), count,
                                                  static_cast<fabricshm_dtype>(type), nullptr))) {
        return false;
    }
    std::uint64_t wrong = 0;
    for (int from = 0; from < self.world; ++from) {
        const auto skip = static_cast<std::uint64_t>(from) * count * kernels::size_of(type);
        wrong +=
            apart::wrong(type, self.output() + skip, count,
                         [=](std::byte* at, std::uint64_t i) { apart::give(type, at, from, i); });
    }
    return wrong == 0;
}

bool broadcasts_are_right(const Rank& self, DType type, std::uint64_t count) {
    for (int root = 0; root < self.world; ++root) {
        apart::give_all(type, self.input(), self.rank, 0, count);
        if (!has_ended(self, fabricshm_broadcast_on_stream(self.group, self.input(), count,
                                                           static_cast<fabricshm_dtype>(type), root,
                                                           nullptr)) ||
            apart::wrong(type, self.input(), count, [=](std::byte* at, std::uint64_t i) {
                apart::give(type, at, root, i);
            }) != 0) {
            return false;
        }
    }
    return true;
}

bool all_are_right(const Rank& self, DType type, std::uint64_t count) {
    return allreduce_is_right(self, type, count, false) &&
           allreduce_is_right(self, type, count, true) &&
           reduce_scatter_is_right(self, type, count) && all_gather_is_right(self, type, count) &&
           broadcasts_are_right(self, type, count);
}

// Everything that one rank sees, where the ranks of `exporters` export.
int run_exports(const std::string& socket, int rank, int world, std::uint32_t exporters) {
    Rank self(socket, rank, world);
    if (!self.ok) return failed(1);
    const bool has = (exporters >> rank & 1) != 0;
    const auto others =
        static_cast<std::size_t>(__builtin_popcount(exporters & ~(std::uint32_t{1} << rank)));
    std::uint32_t ranks = ~std::uint32_t{0};
    if (self.export_own(has, &ranks) != 0) return failed(2);
    if (ranks != exporters || self.host.opened.size() != others) return failed(3);
    for (int t = 0; t < kernels::kDTypeCount; ++t) {
        if (!all_are_right(self, static_cast<DType>(t), kFits)) return failed(4);
    }
    if ((self.copies() == 0) != has) return failed(5);
    if (!all_are_right(self, DType::kF32, kCut)) return failed(6);
    // Not any more; then again, until the rank leaves.
    if (fabricshm_cuda_unexport(self.group) != 0) return failed(7);
    if (!self.host.opened.empty()) return failed(8);
    self.host.launches.clear();
    if (!all_are_right(self, DType::kF32, kFits) || self.copies() == 0) return failed(9);
    if (self.export_own(has, nullptr) != 0 || self.host.opened.size() != others) return failed(10);
    if (!all_are_right(self, DType::kBF16, kFits)) return failed(11);
    if (fabricshm_cuda_leave(self.group) != 0 || !self.host.opened.empty()) return failed(12);
    if (self.export_own(has, nullptr) != FABRICSHM_ENOENT) return failed(13);
    if (mock_gpu::join_on_device(self.group) != 0) return failed(14);
    if (!all_are_right(self, DType::kF32, kFits)) return failed(15);
    if (self.export_own(has, &ranks) != 0 || ranks != exporters) return failed(16);
    self.host.launches.clear();
    if (!all_are_right(self, DType::kF32, kFits)) return failed(17);
    if ((self.copies() == 0) != has) return failed(18);
    fabricshm_group_leave(self.group);
    return self.host.opened.empty() ? 0 : failed(19);
}

// The parameters of an SGD step with gradients that no stage holds.
int run_step(const std::string& socket, int rank) {
    constexpr std::uint64_t kTotal = 5000;
    Rank self(socket, rank, 2);
    if (!self.ok) return failed(1);
    auto* gradient = reinterpret_cast<float*>(self.input());
    auto* publish = gradient + kTotal;
    auto* own = publish + kTotal;
    const auto value = [](int of, std::uint64_t i) {
        return static_cast<float>((static_cast<std::uint64_t>(of) * 31 + i * 7) % 101) - 50;
    };
    for (std::uint64_t i = 0; i < kTotal; ++i) gradient[i] = value(rank, i);
    for (std::uint64_t i = 0; i < kTotal / 2; ++i) own[i] = static_cast<float>(i);
    fabricshm_hyper hyper{};
    hyper.learning_rate = 0.5;
    void* factors = fabricshm_alloc(self.job.arena, FABRICSHM_CUDA_FACTORS_BYTES);
    if (fabricshm_cuda_factors(FABRICSHM_SGD, &hyper, 1, factors) != 0) return failed(2);
    fabricshm_cuda_step step{};
    step.struct_size = sizeof step;
    step.optimiser = FABRICSHM_SGD;
    step.gradient_dtype = step.publish_dtype = FABRICSHM_F32;
    step.scale = 0.5F;
    step.total = kTotal;
    step.begin = rank == 0 ? 0 : kTotal / 2;
    step.count = kTotal / 2;
    step.factors = factors;
    step.parameters = own;
    step.gradient = gradient;
    step.publish = publish;
    // Too large for the stage: refused before it is exported.
    if (fabricshm_step_on_stream(self.group, &step, nullptr) != FABRICSHM_EINVAL) return failed(3);
    if (self.export_own(true, nullptr) != 0) return failed(4);
    if (!has_ended(self, fabricshm_step_on_stream(self.group, &step, nullptr))) return failed(5);
    for (std::uint64_t i = 0; i < kTotal; ++i) {
        const auto before = static_cast<double>(i % (kTotal / 2));
        const double mean = (value(0, i) + value(1, i)) * 0.5;
        if (publish[i] != before - 0.5 * mean) return failed(6);
    }
    if (self.copies() != 0) return failed(7);
    return fabricshm_cuda_leave(self.group) == 0 ? 0 : failed(8);
}

// One allocation in two groups: opened once, and closed with the last of them.
int run_two_groups(const std::string& socket, int rank) {
    Rank self(socket, rank, 2);
    if (!self.ok) return failed(1);
    fabricshm_group* const first = self.group;
    fabricshm_group* second = nullptr;
    if (fabricshm_group_join(self.job.arena, "more", rank, 2, kTimeoutMs, &second) != 0 ||
        mock_gpu::join_on_device(second) != 0) {
        return failed(2);
    }
    for (fabricshm_group* group : {first, second}) {
        self.group = group;
        std::uint32_t ranks = 0;
        if (self.export_own(true, &ranks) != 0 || ranks != 0b11) return failed(3);
        if (!allreduce_is_right(self, DType::kF32, kFits, true)) return failed(4);
    }
    if (self.host.opens != 1 || self.host.opened.size() != 1) return failed(5);
    if (fabricshm_cuda_unexport(first) != 0 || self.host.opened.size() != 1) return failed(6);
    self.host.launches.clear();
    if (!all_are_right(self, DType::kF32, kFits) || self.copies() != 0) return failed(7);
    // Another range of the same memory, before the one of before is closed.
    if (fabricshm_cuda_export(second, self.memory, kRoom, nullptr) != 0) return failed(8);
    if (self.host.opens != 1 || self.host.opened.size() != 1) return failed(9);
    if (!all_are_right(self, DType::kF32, kFits) || self.copies() != 0) return failed(10);
    if (fabricshm_cuda_leave(second) != 0 || !self.host.opened.empty()) return failed(11);
    return fabricshm_cuda_leave(first) == 0 ? 0 : failed(12);
}

// Rank 1 is killed when it has exported its memory; what rank 0 has of it.
int outlive(const std::string& socket, int rank, Gate& exported) {
    Rank self(socket, rank, 2);
    if (!self.ok || self.export_own(true, nullptr) != 0) {
        exported.open();
        return failed(1);
    }
    if (rank == 1) {
        exported.open();
        for (;;) ::pause();
    }
    int code = 0;
    for (int tries = 0; code == 0 && tries < 10'000'000; ++tries) {
        code = fabricshm_cuda_status(self.group);
    }
    if (code != FABRICSHM_EPEER || fabricshm_error_rank() != 1) return failed(2);
    code = fabricshm_allreduce_on_stream(self.group, self.input(), self.input(), kFits,
                                         FABRICSHM_F32, FABRICSHM_SUM, nullptr);
    if (code != FABRICSHM_EPEER) return failed(3);
    if (self.export_own(true, nullptr) != FABRICSHM_EPEER) return failed(4);
    // Still open: kernels of before may be reading there.
    if (self.host.opened.size() != 1) return failed(5);
    if (fabricshm_cuda_unexport(self.group) != FABRICSHM_EBROKEN) return failed(6);
    if (!self.host.opened.empty()) return failed(7);
    // What is left of the group goes on without the dead, and exports again.
    fabricshm_group* survivors = nullptr;
    if (fabricshm_group_shrink(self.group, kTimeoutMs, &survivors) != 0) return failed(8);
    if (mock_gpu::join_on_device(survivors) != 0) return failed(9);
    std::uint32_t ranks = 0;
    if (fabricshm_cuda_export(survivors, self.memory, kRoom, &ranks) != 0 || ranks != 1) {
        return failed(10);
    }
    return fabricshm_barrier_on_stream(survivors, nullptr) == 0 ? 0 : failed(11);
}

// The last rank is on another device than the others, and does not reach theirs if `one_way`.
int run_two_devices(const std::string& socket, int rank, bool one_way) {
    constexpr int kLast = 2;
    ::setenv("FABRIC_MOCK_DEVICES", "2", 1);
    Rank self(socket, rank, kLast + 1, rank == kLast ? 1 : 0);
    if (!self.ok) return failed(1);
    self.host.can_access_peers = !one_way || rank != kLast;
    std::uint32_t ranks = 0;
    if (self.export_own(true, &ranks) != 0) return failed(2);
    if (ranks != (one_way ? 0b100U : 0b111U)) return failed(3);
    // What not all reach is not kept open by those that do.
    const std::size_t opened = !one_way ? 2 : rank == kLast ? 0 : 1;
    if (self.host.opened.size() != opened) return failed(4);
    if (!all_are_right(self, DType::kF32, kFits)) return failed(5);
    if ((self.copies() == 0) != (!one_way || rank == kLast)) return failed(6);
    return fabricshm_cuda_leave(self.group) == 0 ? 0 : failed(7);
}

// Rank 0 can't open what rank 1 exports: all fail, and what was exported before still is.
int run_full(const std::string& socket, int rank) {
    Rank self(socket, rank, 2);
    if (!self.ok) return failed(1);
    std::uint32_t ranks = 0;
    if (self.export_own(true, &ranks) != 0 || ranks != 0b11) return failed(2);
    std::byte* const more =
        reinterpret_cast<std::byte*>(mock_gpu::device_memory(kRoom / sizeof(float)));
    const struct {
        int status;
        int expected;
    } cases[] = {{2, FABRICSHM_ENOMEM}, {1, FABRICSHM_EUNSUPPORTED}, {999, FABRICSHM_EUNSUPPORTED}};
    for (const auto& one : cases) {
        self.host.open_status = rank == 0 ? one.status : 0;
        if (fabricshm_cuda_export(self.group, more, kRoom, &ranks) != one.expected) {
            return failed(3);
        }
        if (rank == 1 && std::strstr(fabricshm_error_text(), "rank 0") == nullptr) {
            return failed(4);
        }
        if (self.host.opened.size() != 1) return failed(5);
        self.host.launches.clear();
        if (!all_are_right(self, DType::kF32, kFits) || self.copies() != 0) return failed(6);
    }
    // A rank that has no right memory: the others hear of it.
    std::byte local[64];
    void* const wrong = rank == 1 ? static_cast<void*>(local) : static_cast<void*>(more);
    if (fabricshm_cuda_export(self.group, wrong, sizeof local, &ranks) != FABRICSHM_EINVAL) {
        return failed(7);
    }
    void* const pool = fabricshm_alloc(self.job.arena, 64);
    if (fabricshm_cuda_export(self.group, pool, 64, &ranks) != FABRICSHM_EINVAL ||
        std::strstr(fabricshm_error_text(), "arena") == nullptr) {
        return failed(8);
    }
    self.host.launches.clear();
    if (!all_are_right(self, DType::kF32, kFits) || self.copies() != 0) return failed(9);
    return fabricshm_cuda_leave(self.group) == 0 ? 0 : failed(10);
}

int run_with_cpu(const std::string& socket, int rank) {
    const Job job(socket, mock_gpu::kJobBytes);
    if (!job.ok) return failed(1);
    fabricshm_group* group = mock_gpu::join(job, rank, 2);
    if (group == nullptr) return failed(2);
    if (const int code = mock_gpu::join_on(rank == 1, job, group); code != 0) return code;
    // On each by itself: none waits for the other.
    std::uint32_t ranks = 0;
    if (rank == 0 && fabricshm_cuda_export(group, mock_gpu::device_memory(64), 64, &ranks) !=
                         FABRICSHM_EUNSUPPORTED) {
        return failed(3);
    }
    if (rank == 1 && fabricshm_cuda_export(group, nullptr, 0, &ranks) != FABRICSHM_EUNSUPPORTED) {
        return failed(4);
    }
    return fabricshm_barrier_on_stream(group, nullptr) == 0 ? 0 : failed(5);
}

// What a hostile rank 1 says of its memory, and what rank 0 makes of it.
using Words = std::vector<std::uint64_t>;
constexpr std::size_t kWords = 1 + sizeof(fabricshm::gpu::ExportOffer) / 8;

struct Lie {
    int expected;
    // Changes what the rank would say; `victim` is what rank 0 said of what it exports by now.
    void (*change)(std::uint64_t& code, fabricshm::gpu::ExportOffer& own,
                   const fabricshm::gpu::ExportOffer& victim);
};
using Offer = fabricshm::gpu::ExportOffer;
const Lie kLies[] = {
    {FABRICSHM_EUNSUPPORTED,
     [](std::uint64_t&, Offer& own, const Offer&) {
         std::memset(&own.handle, 0x5a, sizeof own.handle);
     }},
    {FABRICSHM_EUNSUPPORTED,
     [](std::uint64_t&, Offer& own, const Offer&) { own.handle.bytes[16] ^= 0x40; }},
    {FABRICSHM_ECORRUPT, [](std::uint64_t&, Offer& own, const Offer&) { own.bytes += 1; }},
    {FABRICSHM_ECORRUPT,
     [](std::uint64_t&, Offer& own, const Offer&) { own.offset = ~std::uint64_t{0} - 63; }},
    {FABRICSHM_ECORRUPT,
     [](std::uint64_t&, Offer& own, const Offer&) {
         own.offset = kRoom + 1;
         own.bytes = 1;
     }},
    {FABRICSHM_ECORRUPT,
     [](std::uint64_t&, Offer& own, const Offer&) { own.bytes = ~std::uint64_t{0}; }},
    {FABRICSHM_ECORRUPT, [](std::uint64_t& code, Offer&, const Offer&) { code = 12345; }},
    // As if it were in rank 0's process: with rank 0's own words, and with its token alone.
    {FABRICSHM_EUNSUPPORTED, [](std::uint64_t&, Offer& own, const Offer& victim) { own = victim; }},
    {FABRICSHM_EUNSUPPORTED,
     [](std::uint64_t&, Offer& own, const Offer& victim) {
         own.token = victim.token;
         own.handle = {};
     }},
};

// An export without a lie, but for that it keeps what rank 0 says.
int export_and_listen(Rank& self, Offer& victim) {
    fabricshm::Group& group = self.group->local();
    fabricshm::gpu::DeviceGroup& device = *self.group->on_device->group;
    const auto deadline = fabricshm::Clock::now() + std::chrono::milliseconds(kTimeoutMs);
    auto exports = device.offer(self.memory + kSkip, kRoom - kSkip);
    if (!exports.ok()) return failed(60);
    std::vector<Offer> offers(2);
    Words words(kWords);
    std::memcpy(&words[1], &exports.value()->offered(), sizeof(Offer));
    const auto all = fabricshm::gather(group, words, deadline);
    if (!all.ok()) return failed(61);
    for (std::size_t i = 0; i < 2; ++i) {
        std::memcpy(&offers[i], &(*all)[i * kWords + 1], sizeof(Offer));
    }
    victim = offers[0];
    if (!exports.value()->open(offers).ok()) return failed(62);
    if (!fabricshm::gather(group, {0, 0b11}, deadline).ok()) return failed(63);
    device.use(std::move(exports).value());
    return fabricshm::pass_barrier(group, deadline).ok() ? 0 : failed(64);
}

int hostile(Rank& self, const Offer& victim) {
    fabricshm::Group& group = self.group->local();
    const auto deadline = fabricshm::Clock::now() + std::chrono::milliseconds(kTimeoutMs);
    for (const Lie& lie : kLies) {
        auto exports = self.group->on_device->group->offer(self.memory + kSkip, kRoom - kSkip);
        if (!exports.ok()) return failed(50);
        Words words(kWords);
        Offer offer = exports.value()->offered();
        lie.change(words[0], offer, victim);
        std::memcpy(&words[1], &offer, sizeof offer);
        if (!fabricshm::gather(group, words, deadline).ok()) return failed(51);
        if (words[0] != 0) continue;  // the others hear of a failure, and that was it
        // And then that it reaches all.
        if (!fabricshm::gather(group, {0, 0b11}, deadline).ok()) return failed(52);
    }
    return 0;
}

int run_hostile(const std::string& socket, int rank) {
    Rank self(socket, rank, 2);
    if (!self.ok) return failed(1);
    if (rank == 0 && self.export_own(true, nullptr) != 0) return failed(2);
    if (rank == 1) {
        Offer victim{};
        if (const int code = export_and_listen(self, victim); code != 0) return code;
        if (const int code = hostile(self, victim); code != 0) return code;
    }
    for (std::size_t i = 0; rank == 0 && i < std::size(kLies); ++i) {
        const int code = self.export_own(true, nullptr);
        if (code != kLies[i].expected) {
            std::fprintf(stderr, "lie %zu: %d\n", i, code);
            return failed(3);
        }
        if (self.host.opened.size() != 1) return failed(4);
    }
    // What was exported before still is.
    self.host.launches.clear();
    if (!all_are_right(self, DType::kF32, kFits) || self.copies() != 0) return failed(5);
    return fabricshm_cuda_leave(self.group) == 0 && self.host.opened.empty() ? 0 : failed(6);
}

// Rank 1 does not come to an export: the operations on streams have ended with it.
int run_late(const std::string& socket, int rank, Gate& ended) {
    Rank self(socket, rank, 2);
    if (!self.ok) return failed(1);
    if (rank == 1) return ended.wait() ? 0 : failed(2);
    const auto deadline = fabricshm::Clock::now() + std::chrono::milliseconds(20);
    const auto late =
        self.group->on_device->export_memory(self.group->local(), self.memory, kRoom, deadline);
    const bool is_late = !late.ok() && late.error().code == fabricshm::Errc::kTimeout;
    const int after = fabricshm_cuda_status(self.group);
    ended.open();
    return is_late && after == FABRICSHM_EBROKEN ? 0 : failed(3);
}

void check_children(int world, const std::function<int(int)>& body) {
    for (const int code : run_children(world, body)) CHECK(code == 0);
}

}  // namespace

// Ranks are on devices: without kernels in the library there is nothing to be shown.
TEST_SUITE("multiproc.client.cuda_exports" * doctest::skip(!has_kernels())) {
    TEST_CASE(
        "peers reach exported memory, of every type, in every collective, and any ranks may "
        "export") {
        const Daemon daemon;
        for (const std::uint32_t exporters : {0b111U, 0b010U, 0b101U, 0b000U}) {
            check_children(
                3, [&](int rank) { return run_exports(daemon.socket(), rank, 3, exporters); });
        }
        check_children(1, [&](int rank) { return run_exports(daemon.socket(), rank, 1, 0b1); });
    }

    TEST_CASE("a step takes gradients that no stage holds, and stores into its peers' memory") {
        const Daemon daemon;
        check_children(2, [&](int rank) { return run_step(daemon.socket(), rank); });
    }

    TEST_CASE("memory that several groups export is opened once, and closed with the last") {
        const Daemon daemon;
        check_children(2, [&](int rank) { return run_two_groups(daemon.socket(), rank); });
    }

    TEST_CASE("a rank that is killed takes its export along, and what was opened is closed") {
        const Daemon daemon;
        Gate exported;
        Child victim([&] { return outlive(daemon.socket(), 1, exported); });
        Child survivor([&] { return outlive(daemon.socket(), 0, exported); });
        CHECK(exported.wait());
        victim.kill();
        CHECK(survivor.wait() == 0);
    }

    TEST_CASE("memory of a device that another one does not reach stays staged, for all ranks") {
        const Daemon daemon;
        for (const bool one_way : {false, true}) {
            check_children(
                3, [&](int rank) { return run_two_devices(daemon.socket(), rank, one_way); });
        }
    }

    TEST_CASE("when one rank can't export or open, all fail, and nothing has changed") {
        const Daemon daemon;
        check_children(2, [&](int rank) { return run_full(daemon.socket(), rank); });
    }

    TEST_CASE("a group with a rank on a CPU exports nothing") {
        const Daemon daemon;
        check_children(2, [&](int rank) { return run_with_cpu(daemon.socket(), rank); });
    }

    TEST_CASE("wrong handles, sizes and tokens of a peer are errors, and harm nothing") {
        const Daemon daemon;
        check_children(2, [&](int rank) { return run_hostile(daemon.socket(), rank); });
    }

    TEST_CASE("a rank that does not come to an export ends the operations on streams") {
        const Daemon daemon;
        Gate ended;
        check_children(2, [&](int rank) { return run_late(daemon.socket(), rank, ended); });
    }
}
