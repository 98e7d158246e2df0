#include "fabricd/ctl/chrome_trace.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "fabricd/ctl/json.hpp"
#include "libfabricshm/base/c_names.hpp"
#include "libfabricshm/collective/kinds.hpp"

namespace fabricd {

using fabricshm::TraceRecord;

namespace {

// Room for the end of the text, whatever it says.
constexpr std::uint64_t kTailBytes = 4096;

// Operations of which not all ranks were seen yet. Ranks are read every few milliseconds, each up
// to a ring further than the others.
constexpr std::size_t kMaxUnfinished = 16 * fabricshm::kTraceRecords;

constexpr int kProcess = 1;  // the job's number among the processes of the picture

std::string number(std::uint64_t value) {
    return std::to_string(value);
}

}  // namespace

ChromeTrace::ChromeTrace(std::string job, const TraceSpan& span,
                         std::function<void(std::string_view)> write, std::uint64_t max_bytes)
    : span_(span),
      write_(std::move(write)),
      max_bytes_(std::max<std::uint64_t>(max_bytes, 2 * kTailBytes)) {
    const Json name = {{"name", "process_name"},
                       {"ph", "M"},
                       {"pid", kProcess},
                       {"args", {{"name", "job " + job}}}};
    const std::string begin = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n" + one_line(name);
    write_(begin);
    bytes_ = begin.size();
}

// Whole or not at all: so the text stays JSON, and an arrow has both its ends.
bool ChromeTrace::emit(std::string_view event) {
    if (is_full_ || bytes_ + event.size() + kTailBytes > max_bytes_) {
        is_full_ = true;
        return false;
    }
    write_(event);
    bytes_ += event.size();
    return true;
}

// Microseconds with three places, exact.
std::string ChromeTrace::time_text(std::int64_t ns) const {
    char text[40];
    std::snprintf(text, sizeof text, "%lld.%03d", static_cast<long long>(ns / 1000),
                  static_cast<int>(ns % 1000));
    return text;
}

std::string ChromeTrace::slice(const char* name, const char* category, int track,
                               std::int64_t begin_ns, std::int64_t end_ns,
                               const std::string& arguments) const {
    std::string text = ",\n{\"name\":\"";
    text += name;
    text += "\",\"cat\":\"";
    text += category;
    text += "\",\"ph\":\"X\",\"pid\":1,\"tid\":" + std::to_string(track);
    text += ",\"ts\":" + time_text(begin_ns - span_.began_ns);
    text += ",\"dur\":" + time_text(end_ns - begin_ns);
    if (!arguments.empty()) text += ",\"args\":{" + arguments + "}";
    return text + "}";
}

// The daemon has left out what can't be. It may be of another version.
void ChromeTrace::add(const TraceBatch& batch) {
    Session& session = sessions_[batch.session_id];
    session.lost = std::max(session.lost, batch.lost);
    session.senseless = std::max(session.senseless, batch.senseless);
    for (const TraceRecord& record : batch.records) {
        if (is_full_) return;
        const auto [verdict, before] = session.tracks.place(record, span_);
        if (verdict == TraceVerdict::kFits) add(batch, record, before);
        if (verdict == TraceVerdict::kImpossible) ++session.refused;
        if (verdict == TraceVerdict::kNoTrack) ++session.without_track;
    }
}

// Its number; a new one is named first.
int ChromeTrace::track_of(const TraceBatch& batch, const TraceRecord& record) {
    const auto [found, is_new] = tracks_.try_emplace({batch.session_id, record.group_id},
                                                     static_cast<int>(tracks_.size()) + 1);
    if (!is_new) return found->second;
    const int track = found->second;
    const std::size_t of_session = sessions_[batch.session_id].tracks.size();
    const std::string group = name_of_group_ ? name_of_group_(record.group_id) : "";
    const std::string name = "rank " + number(record.rank) + " of " +
                             (group.empty() ? "group " + number(record.group_id) : group) + " (" +
                             number(record.world) + " ranks)";
    const Json named = {{"name", "thread_name"},
                        {"ph", "M"},
                        {"pid", kProcess},
                        {"tid", track},
                        {"args",
                         {{"name", name},
                          {"session", batch.session_id},
                          {"process", batch.pid},
                          {"label", batch.label}}}};
    const Json placed = {{"name", "thread_sort_index"},
                         {"ph", "M"},
                         {"pid", kProcess},
                         {"tid", track},
                         {"args", {{"sort_index", record.rank + 1000 * (of_session - 1)}}}};
    emit(",\n" + one_line(named) + ",\n" + one_line(placed));
    return track;
}

void ChromeTrace::add(const TraceBatch& batch, const TraceRecord& record,
                      const TraceTrack& before) {
    const int track = track_of(batch, record);
    std::string text;
    if (before.world != 0) {
        const bool gap = record.epoch != before.next_epoch;
        text += slice(gap ? "not recorded" : "compute", gap ? "gap" : "compute", track,
                      before.end_ns, record.begin_ns,
                      gap ? "\"operations\":" + number(record.epoch - before.next_epoch) : "");
    }
    const auto& row = fabricshm::kKindRows[record.kind];
    std::string arguments =
        "\"bytes\":" + number(record.bytes) + ",\"epoch\":" + number(record.epoch) +
        ",\"group\":" + number(record.group_id) + ",\"way\":\"" + name_of(record.way) + "\"";
    if (record.failed != 0) {
        const char* name = fabricshm::c_name_of(static_cast<fabricshm::Errc>(record.failed));
        arguments += ",\"error\":\"";
        arguments += name != nullptr ? name : "code " + number(record.failed);
        arguments += "\"";
    }
    text += slice(row.name, "collective", track, record.begin_ns, record.end_ns, arguments);
    if (record.arrive_ns > record.begin_ns) {
        text += slice("wait", "wait", track, record.begin_ns, record.arrive_ns, "");
    }
    if (!emit(text)) return;
    ++operations_;
    if (record.world > 1 && record.failed == 0) collect(record, track);
}

// Collects the ranks of one operation; with the last of them its arrows are drawn.
void ChromeTrace::collect(const TraceRecord& record, int track) {
    const OperationKey key{record.group_id, record.epoch};
    const auto [found, is_new] = unfinished_.try_emplace(key);
    if (is_new) order_.push_back(key);
    found->second.push_back({track, record.begin_ns, record.arrive_ns, record.end_ns});
    if (found->second.size() == record.world) {
        draw_arrows(found->second);
        unfinished_.erase(found);
    }
    // Of a rank that died, or lost records, the others' operations are never complete.
    while (unfinished_.size() > kMaxUnfinished || order_.size() > 2 * kMaxUnfinished) {
        unfinished_.erase(order_.front());
        order_.pop_front();
    }
}

void ChromeTrace::draw_arrows(const std::vector<Arrival>& arrivals) {
    const auto last = std::ranges::max_element(arrivals, {}, &Arrival::begin_ns);
    for (const Arrival& other : arrivals) {
        // Where one rank needs nothing of another it may have ended before that one began.
        if (other.track == last->track || other.end_ns < last->begin_ns) continue;
        const std::string id = number(++arrows_);
        const auto end = [&](const char* phase, int track, std::int64_t ns) {
            return ",\n{\"name\":\"last to arrive\",\"cat\":\"arrival\",\"ph\":\"" +
                   std::string(phase) + "\",\"id\":" + id +
                   ",\"pid\":1,\"tid\":" + std::to_string(track) +
                   ",\"ts\":" + time_text(ns - span_.began_ns) + "}";
        };
        const std::int64_t to = std::max({other.arrive_ns, other.begin_ns, last->begin_ns});
        emit(end("s", last->track, last->begin_ns) + end("f\",\"bp\":\"e", other.track, to));
    }
}

void ChromeTrace::add(const Decision& decision) {
    const std::int64_t ns = decision.unix_ms * 1'000'000 - span_.unix_ns;
    if (ns < 0 || ns > span_.until_ns - span_.began_ns) return;
    const Json instant = {
        {"name", std::string(name_of(kind_of(decision)))},
        {"cat", "decision"},
        {"ph", "i"},
        {"s", "g"},
        {"pid", kProcess},
        {"tid", 0},
        {"ts", static_cast<double>(ns) / 1000},
        {"args", {{"decision", decision.id}, {"group", decision.group}, {"why", decision.reason}}}};
    emit(",\n" + one_line(instant));
    const auto* shares = action_as<BatchShares>(decision);
    if (shares == nullptr) return;
    Json by_rank = Json::object();
    for (std::size_t rank = 0; rank < shares->after.size(); ++rank) {
        by_rank["rank " + std::to_string(rank)] = shares->after[rank];
    }
    const Json counter = {{"name", "batch share, group " + number(decision.group)},
                          {"ph", "C"},
                          {"pid", kProcess},
                          {"ts", static_cast<double>(ns) / 1000},
                          {"args", by_rank}};
    emit(",\n" + one_line(counter));
}

void ChromeTrace::finish(const std::string& ended_early) {
    const Json about = {
        {"began_unix_ns", span_.unix_ns}, {"operations", operations_},        {"lost", lost()},
        {"senseless", senseless()},       {"without_track", without_track()}, {"cut", is_full_},
        {"ended_early", ended_early}};
    const std::string end = "\n],\"otherData\":" + one_line(about) + "}\n";
    write_(end);
    bytes_ += end.size();
    is_full_ = true;
}

std::size_t ChromeTrace::ranks() const noexcept {
    return static_cast<std::size_t>(std::ranges::count_if(
        sessions_, [](const auto& session) { return session.second.tracks.size() != 0; }));
}

std::uint64_t ChromeTrace::lost() const noexcept {
    std::uint64_t sum = 0;
    for (const auto& [id, session] : sessions_) sum += session.lost;
    return sum;
}

std::uint64_t ChromeTrace::senseless() const noexcept {
    std::uint64_t sum = 0;
    for (const auto& [id, session] : sessions_) sum += session.senseless + session.refused;
    return sum;
}

std::uint64_t ChromeTrace::without_track() const noexcept {
    std::uint64_t sum = 0;
    for (const auto& [id, session] : sessions_) sum += session.without_track;
    return sum;
}

}  // namespace fabricd
