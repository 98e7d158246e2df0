// The journal of the control loop, which people also hand to `fabricctl replay`. What is read is
// written again to the last bit, and whatever the windows say, no decision is made that cannot be
// carried out.

#include "fabricd/control/journal/decision_journal.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>

#include "fabricd/control/journal/decision_record.hpp"
#include "fabricd/control/loop/loop.hpp"
#include "fabricd/control/loop/replay.hpp"
#include "libfabricshm/base/crc32c.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/support/decision_values.hpp"

using namespace fabricd;

namespace {

constexpr std::size_t kUnchecked = offsetof(FrameHeader, bytes);

// Windows that are replayed: the loop remembers some, and a file has thousands.
constexpr std::size_t kMaxWindows = 64;

template <typename T>
void require_lasting(const std::optional<T>& read,
                     std::optional<T> (*from)(std::span<const std::byte>)) {
    if (!read) return;
    // Of an older version it is not what was read, but from then on it stays.
    const RecordBytes bytes = to_record(*read);
    const auto again = from(bytes);
    FUZZ_REQUIRE(again && to_record(*again) == bytes);
}

void require_frame(FrameType type, std::span<const std::byte> payload) {
    if (type == FrameType::kWindow) require_lasting(window_from(payload), window_from);
    if (type == FrameType::kDecision) require_lasting(decision_from(payload), decision_from);
    if (type == FrameType::kOutcome) require_lasting(outcome_from(payload), outcome_from);
}

// Shares are shares, and counts are counts, whatever a window says.
void require_sane(const Decision& decision) {
    FUZZ_REQUIRE(decision.id != 0);
    for (const double value : after_of(decision)) FUZZ_REQUIRE(std::isfinite(value) && value >= 0);
    if (kind_of(decision) != ActionKind::kBatchShares || after_of(decision).empty()) return;
    double sum = 0;
    for (const double value : after_of(decision)) sum += value;
    FUZZ_REQUIRE(std::abs(sum - 1) < 1e-6);
}

JournalStory story_of(fuzz::Data input) {
    const fabricshm::Fd file(::memfd_create("decisions", MFD_CLOEXEC));
    FUZZ_REQUIRE(file && ::write(file.get(), input.data(), input.size()) ==
                             static_cast<ssize_t>(input.size()));
    return read_decision_journal("/proc/self/fd/" + std::to_string(file.get())).value();
}

void run(fuzz::Data input) {
    const std::size_t whole = parse_frames(input, require_frame);
    FUZZ_REQUIRE(whole <= input.size());
    JournalStory story = story_of(input);
    FUZZ_REQUIRE(story.bad.empty() == (whole != 0 || input.empty()));
    if (!story.bad.empty()) return;
    FUZZ_REQUIRE(story.torn == (whole != input.size()));
    for (const Decision& decision : story.decisions) FUZZ_REQUIRE(decision.id <= story.last_id);
    if (story.windows.empty() || story.windows.size() > kMaxWindows) return;
    ControlConfig config;
    config.mode = "on";
    config.actions = "shares,units,sync,drain,placement,quota,compute,pool";
    const std::vector<Decision> now = replay(story, config);
    for (const Decision& decision : now) require_sane(decision);
    (void)compare(story.decisions, now);
}

void put_frame(fuzz::Buffer& file, FrameType type, std::span<const std::byte> payload) {
    fuzz::Buffer frame;
    fuzz::append(frame, FrameHeader{kFrameMagic, 0, static_cast<std::uint32_t>(payload.size()),
                                    static_cast<std::uint16_t>(type), 0});
    frame.insert(frame.end(), payload.begin(), payload.end());
    const std::uint32_t crc =
        fabricshm::crc32c(frame.data() + kUnchecked, frame.size() - kUnchecked);
    std::memcpy(frame.data() + offsetof(FrameHeader, crc), &crc, sizeof crc);
    file.insert(file.end(), frame.begin(), frame.end());
}

Window window_of(std::uint64_t number) {
    Window window;
    window.number = number;
    window.taken_ns = static_cast<std::int64_t>(number) * 1'000'000'000;
    window.length_s = 1;
    JobWindow job{1, 2, 2, {}};
    for (int rank = 0; rank < 2; ++rank) {
        RankWindow one;
        one.session = static_cast<std::uint64_t>(10 + rank);
        one.rank = rank;
        one.steps = 10;
        one.samples = 320;
        one.step_s = 1;
        one.compute_s = rank == 0 ? 0.9 : 0.3;
        one.wait_s = 0.95 - one.compute_s;
        one.batch = 32;
        job.ranks.push_back(one);
    }
    window.jobs.push_back(job);
    return window;
}

std::vector<fuzz::Buffer> seeds() {
    const auto settings = fuzz::buffer_of("mode=on\nlast_decision=1\n");
    fuzz::Buffer calm;
    put_frame(calm, FrameType::kStart, settings);
    for (std::uint64_t i = 1; i <= 12; ++i) {
        put_frame(calm, FrameType::kWindow, to_record(window_of(i)));
    }
    fuzz::Buffer host;
    put_frame(host, FrameType::kSettings, settings);
    Window window = window_of(1);
    window.devices.push_back({"gpu0",
                              1e9,
                              0,
                              {{"a", 1e8, 9e7, 1e6, 1, 0, 0, 1, 1, 50, 1e8, 50, 0},
                               {"b", 1e8, 1e6, 0, 1, 0, 0, 0, 1, 50, 1e8, 50, 0}}});
    window.pool.devices = window.devices[0].users;
    window.pool.most = {1e9, 1e9};
    window.placement.nodes = {{"node0", 1, 1e9}, {"node1", 1, 1e9}};
    window.placement.bandwidth = {1e10, 1e9, 1e9, 1e10};
    window.placement.shards.push_back({5, 1e6, 0.5, 0, {0, 1e9}, "a/s"});
    for (std::uint64_t i = 1; i <= 6; ++i) {
        window.number = i;
        put_frame(host, FrameType::kWindow, to_record(window));
    }
    Decision decision;
    decision.id = 1;
    decision.window = 6;
    decision.action = BatchShares{{0.5, 0.5}, {0.25, 0.75}};
    decision.reason = "because";
    decision.facts = {{"S112", "imbalance", 0.3, "", 1}};
    put_frame(host, FrameType::kDecision, to_record(decision));
    put_frame(host, FrameType::kOutcome, to_record({1, 6, Outcome::kFailed, 1.5, "refused"}));
    return {calm, host};
}

// Lengths and checksums are put right, but for one time in sixteen.
void mutate(fuzz::Buffer& bytes, std::size_t most, std::uint32_t random,
            const fuzz::MutateBytes& change) {
    change(bytes, most);
    if (random % 16 == 0) return;
    fuzz::Buffer file;
    fuzz::Data left = bytes;
    while (left.size() >= sizeof(FrameHeader)) {
        FrameHeader header;
        std::memcpy(&header, left.data(), sizeof header);
        left = left.subspan(sizeof header);
        const auto payload = left.first(std::min<std::size_t>(header.bytes, left.size()));
        put_frame(file, static_cast<FrameType>(header.type), payload);
        left = left.subspan(payload.size());
    }
    bytes = std::move(file);
}

const fuzz::Registered kTarget({"decision_journal", run, seeds, mutate});

}  // namespace
