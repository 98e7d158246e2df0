// ChromeTrace: the records of a trace as the JSON that chrome://tracing and ui.perfetto.dev open.
// docs/tracing.md.

#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "fabricd/control/journal/decision.hpp"
#include "fabricd/telemetry/trace_tracks.hpp"

namespace fabricd {

/// What one session wrote, as it came over the admin API.
struct TraceBatch {
    std::uint64_t session_id = 0;
    std::int32_t pid = 0;
    std::string label;
    std::vector<fabricshm::TraceRecord> records;
    std::uint64_t lost = 0;  // so far, like the next one
    std::uint64_t senseless = 0;
};

/// Writes events as they come: of the records it keeps only what arrows need, of the last
/// operations. Each session and group of it has a track of its own, on which slices lie one behind
/// the other. Not thread-safe.
class ChromeTrace {
  public:
    /// Enough for 300,000 operations; what is larger, viewers open badly.
    static constexpr std::uint64_t kMaxBytes = 100'000'000;

    /// `write` gets the text piece by piece, `max_bytes` at most, and the first one now.
    ChromeTrace(std::string job, const TraceSpan& span, std::function<void(std::string_view)> write,
                std::uint64_t max_bytes = kMaxBytes);

    /// How tracks name groups: `name_of` gives "" for one that it does not know.
    void name_groups(std::function<std::string(std::uint64_t group)> name_of) {
        name_of_group_ = std::move(name_of);
    }

    void add(const TraceBatch& batch);
    /// An instant, and of batch shares a counter; nothing when it was made at another time.
    void add(const Decision& decision);
    /// The end of the text. Afterwards nothing is added any more. `ended_early` says why the trace
    /// is shorter than was asked for; "": it is not.
    void finish(const std::string& ended_early = "");

    /// There was no room for something, and nothing more is written but the end.
    bool is_full() const noexcept { return is_full_; }
    std::uint64_t bytes() const noexcept { return bytes_; }
    std::uint64_t operations() const noexcept { return operations_; }
    std::size_t tracks() const noexcept { return tracks_.size(); }
    /// Sessions of which there is an operation: a rank may have a track for each of its groups.
    std::size_t ranks() const noexcept;
    /// Of all sessions.
    std::uint64_t lost() const noexcept;
    std::uint64_t senseless() const noexcept;
    /// Operations of groups for which a session had no track left.
    std::uint64_t without_track() const noexcept;

  private:
    struct Arrival {
        int track = 0;
        std::int64_t begin_ns = 0, arrive_ns = 0, end_ns = 0;
    };
    using TrackKey = std::pair<std::uint64_t, std::uint64_t>;      // session, group
    using OperationKey = std::pair<std::uint64_t, std::uint64_t>;  // group, epoch
    struct Session {
        TraceTracks tracks;
        std::uint64_t lost = 0;           // as the daemon says
        std::uint64_t senseless = 0;      // likewise
        std::uint64_t refused = 0;        // here
        std::uint64_t without_track = 0;  // likewise
    };

    int track_of(const TraceBatch& batch, const fabricshm::TraceRecord& record);
    void add(const TraceBatch& batch, const fabricshm::TraceRecord& record,
             const TraceTrack& before);
    void collect(const fabricshm::TraceRecord& record, int track);
    void draw_arrows(const std::vector<Arrival>& arrivals);
    bool emit(std::string_view event);
    std::string time_text(std::int64_t ns) const;
    std::string slice(const char* name, const char* category, int track, std::int64_t begin_ns,
                      std::int64_t end_ns, const std::string& arguments) const;

    TraceSpan span_;
    std::function<void(std::string_view)> write_;
    std::function<std::string(std::uint64_t)> name_of_group_;
    std::uint64_t max_bytes_;
    std::uint64_t bytes_ = 0;
    bool is_full_ = false;
    std::uint64_t operations_ = 0;
    std::uint64_t arrows_ = 0;
    std::map<TrackKey, int> tracks_;  // their numbers
    std::map<std::uint64_t, Session> sessions_;
    std::map<OperationKey, std::vector<Arrival>> unfinished_;
    std::deque<OperationKey> order_;  // the oldest first
};

}  // namespace fabricd
