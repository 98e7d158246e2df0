#include "fabricd/data/serve/fills.hpp"

#include <algorithm>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/shm/data_layout.hpp"

namespace fabricd {

using fabricshm::data_chunk_length;
using fabricshm::Errc;
using fabricshm::kDataChunkBytes;

namespace {

// Of a smoothed number, how much the newest counts.
constexpr double kNewest = 0.2;
// How much the least of late rises with each that is longer: twice in some 700.
constexpr double kForgets = 1.001;
// Seconds of a measurement of bytes per second.
constexpr double kWindow = 0.1;
// And how long nothing may end in it.
constexpr double kWindowPause = 0.02;

double smoothed(double old, double now) {
    return old == 0 ? now : old + kNewest * (now - old);
}

}  // namespace

RequestOutcome outcome_of(const Error& error) {
    return {error.code, error.detail, fabricshm::explanation_of(error)};
}

RequestOutcome outcome_of(const SiloAway& away) {
    const bool is_missing = away.error.code == Errc::kNotFound;
    return {is_missing ? Errc::kSystem : away.error.code, away.error.detail, away.reason};
}

Fills::Fills(Parts parts)
    : parts_(parts), meters_(parts.specs.size()), windows_(parts.specs.size()) {}

void Fills::want(const KnownFile& file, std::uint64_t chunk, FetchPriority priority, ChunkKind kind,
                 Answer answer, TimePoint now) {
    const std::uint64_t line = file.first_line + chunk;
    const DataLineState state = parts_.cache.state(line);
    if (state == DataLineState::kReady) {
        if (priority == FetchPriority::kOnDemand) parts_.cache.touch(line);
        const bool is_passing = kind == ChunkKind::kPassing && priority == FetchPriority::kAhead;
        const bool is_planned = kind == ChunkKind::kKept || is_passing;
        if (is_planned) parts_.cache.set_kind(line, kind);
        if (answer) answer({});
        return;
    }
    const auto [found, is_new] = fills_.try_emplace(line);
    Fill& fill = found->second;
    const bool is_reader = priority == FetchPriority::kOnDemand;
    if (answer) fill.waiters.push_back({std::move(answer), now + parts_.silo_timeout, is_reader});
    if (!is_new) {
        if (kind == ChunkKind::kKept) fill.kind = kind;
        const bool is_more = priority < fill.priority;
        fill.priority = std::min(fill.priority, priority);
        if (is_more && fill.is_begun) parts_.silos[fill.silo]->promote(line);
        return;
    }
    fill.file = file.id;
    fill.silo = file.silo;
    fill.priority = priority;
    fill.kind = kind;
    if (!begin(line, fill, file)) for_room_.push_back(line);
}

// False: there is no room now.
bool Fills::begin(std::uint64_t line, Fill& fill, const KnownFile& file) {
    const std::uint64_t chunk = line - file.first_line;
    const std::uint32_t bytes = data_chunk_length(file.facts.bytes, chunk);
    const bool is_wanted = fill.priority == FetchPriority::kOnDemand;
    const auto room = parts_.cache.begin(line, bytes, fill.kind, is_wanted);
    if (!room) return false;
    fill.is_begun = true;
    Fetch fetch;
    fetch.path = file.path;
    fetch.facts = file.facts;
    fetch.offset = chunk * kDataChunkBytes;
    fetch.bytes = bytes;
    fetch.into = room->into;
    fetch.room = room->room;
    fetch.tag = line;
    parts_.silos[fill.silo]->fetch(fetch, fill.priority);
    return true;
}

void Fills::measure(std::uint32_t silo, const FillDone& done, TimePoint now) {
    SiloMeter& meter = meters_[silo];
    ++meter.fetches;
    meter.bytes += done.bytes;
    meter.latency_s = smoothed(meter.latency_s, done.seconds);
    const double least = meter.least_latency_s * kForgets;
    meter.least_latency_s = least == 0 ? done.seconds : std::min(least, done.seconds);
    // Several at a time share what the silo gives: bytes over the time in which it was busy. A
    // pause ends a measurement, and is no part of the next one.
    Window& window = windows_[silo];
    const double since = std::chrono::duration<double>(now - window.last).count();
    const bool was_idle = since > done.seconds + kWindowPause;
    if (window.bytes == 0 || was_idle) {
        window.began =
            now - std::chrono::duration_cast<Duration>(std::chrono::duration<double>(done.seconds));
        window.bytes = 0;
    }
    window.last = now;
    window.bytes += done.bytes;
    const double seconds = std::chrono::duration<double>(now - window.began).count();
    if (seconds <= 0) return;
    const double rate = static_cast<double>(window.bytes) / seconds;
    const bool is_long = seconds >= kWindow;
    // Until there is a whole one a shorter one has to do.
    if (is_long) {
        meter.bytes_per_s = window.is_first ? rate : smoothed(meter.bytes_per_s, rate);
        window.is_first = false;
        window.bytes = 0;
    } else if (window.is_first) {
        meter.bytes_per_s = rate;
    }
}

void Fills::note_silo(std::uint32_t silo, const RequestOutcome& outcome, TimePoint now) {
    SiloMeter& meter = meters_[silo];
    // What is not there, or is another version, was answered.
    const bool is_answer = outcome.code == Errc::kOk || outcome.code == Errc::kChanged ||
                           outcome.code == Errc::kNotFound;
    if (is_answer) {
        meter.failing_since = fabricshm::kNoWait;
        return;
    }
    ++meter.failures;
    meter.last_failure = outcome.text;
    if (meter.failing_since == fabricshm::kNoWait) meter.failing_since = now;
}

void Fills::note_wrong(std::uint32_t silo, std::size_t count, const std::string& text) {
    meters_[silo].failures += count;
    meters_[silo].last_failure = text;
}

void Fills::done(const FillDone& done, TimePoint now) {
    const std::uint64_t line = done.fetched.tag;
    const auto found = fills_.find(line);
    FABRIC_CHECK(found != fills_.end());
    const std::uint32_t silo = found->second.silo;
    const std::uint64_t file = found->second.file;
    switch (done.fetched.outcome) {
        case FetchOutcome::kWhole:
            measure(silo, done, now);
            if (!done.fetched.is_copy) note_silo(silo, {}, now);
            parts_.cache.set_kind(line, found->second.kind);
            parts_.cache.finish(line, done.checksum);
            // Its version may have gone meanwhile.
            end(line, parts_.files.find(file) != nullptr
                          ? RequestOutcome{}
                          : RequestOutcome{Errc::kChanged, 0, "another version is there by now"});
            break;
        case FetchOutcome::kChanged: {
            note_silo(silo, {}, now);
            parts_.cache.fail(line);
            end(line, {Errc::kChanged, 0, done.fetched.reason});
            parts_.files.forget(file);
            break;
        }
        case FetchOutcome::kFailed: {
            const RequestOutcome outcome{done.fetched.error.code, done.fetched.error.detail,
                                         done.fetched.reason};
            note_silo(silo, done.fetched.is_of_file ? RequestOutcome{} : outcome, now);
            parts_.cache.fail(line);
            end(line, outcome);
            break;
        }
    }
    begin_waiting();
}

void Fills::end(std::uint64_t line, const RequestOutcome& outcome) {
    const auto found = fills_.find(line);
    const Fill fill = std::move(found->second);
    fills_.erase(found);
    for (const Waiter& waiter : fill.waiters) waiter.answer(outcome);
}

void Fills::gone(std::uint64_t file) {
    std::vector<std::uint64_t> unbegun;
    for (const auto& [line, fill] : fills_) {
        // What is begun ends when the silo lets go of the memory.
        if (fill.file == file && !fill.is_begun) unbegun.push_back(line);
    }
    for (const auto line : unbegun)
        end(line, {Errc::kChanged, 0, "another version is there by now"});
}

Duration Fills::waiting(TimePoint now) const {
    Duration sum{0};
    for (const auto& [line, fill] : fills_) {
        for (const Waiter& waiter : fill.waiters) {
            if (waiter.is_reader) sum += now - (waiter.deadline - parts_.silo_timeout);
        }
    }
    return sum;
}

void Fills::begin_waiting() {
    // A reader that waits before what is only ahead.
    std::stable_partition(for_room_.begin(), for_room_.end(), [&](std::uint64_t line) {
        const auto fill = fills_.find(line);
        return fill != fills_.end() && fill->second.priority == FetchPriority::kOnDemand;
    });
    while (!for_room_.empty()) {
        const std::uint64_t line = for_room_.front();
        const auto fill = fills_.find(line);
        const KnownFile* file =
            fill != fills_.end() ? parts_.files.find(fill->second.file) : nullptr;
        if (file == nullptr || fill->second.is_begun) {
            for_room_.pop_front();
            continue;
        }
        if (!begin(line, fill->second, *file)) return;
        for_room_.pop_front();
    }
}

void Fills::tick(TimePoint now) {
    parts_.cache.sweep();
    if (!for_room_.empty()) begin_waiting();
    std::vector<std::pair<Answer, RequestOutcome>> late;
    std::vector<std::uint64_t> unwanted;
    for (auto& [line, fill] : fills_) {
        const std::string at = parts_.specs[fill.silo].at;
        const RequestOutcome outcome =
            fill.is_begun
                ? RequestOutcome{Errc::kTimeout, 0, at + ": the silo has not answered in time"}
                : RequestOutcome{Errc::kNoMemory, 0, "the cache is full of what readers hold"};
        auto& waiters = fill.waiters;
        const std::size_t before = late.size();
        for (const Waiter& waiter : waiters) {
            if (waiter.deadline <= now) late.emplace_back(waiter.answer, outcome);
        }
        waiters.erase(std::remove_if(waiters.begin(), waiters.end(),
                                     [&](const Waiter& one) { return one.deadline <= now; }),
                      waiters.end());
        if (late.size() > before && fill.is_begun) note_silo(fill.silo, outcome, now);
        if (!fill.is_begun && waiters.empty() && fill.priority == FetchPriority::kOnDemand) {
            unwanted.push_back(line);
        }
    }
    for (const auto line : unwanted) fills_.erase(line);
    for (const auto& [answer, outcome] : late) answer(outcome);
}

}  // namespace fabricd
