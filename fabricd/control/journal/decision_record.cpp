#include "fabricd/control/journal/decision_record.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "libfabricshm/base/check.hpp"

namespace fabricd {

namespace {

/// Appends fields. The other half of Reader: both walk a record through the same `fields()`, so
/// that what is written and what is read cannot differ.
class Writer {
  public:
    template <typename T>
    requires std::is_arithmetic_v<T> || std::is_enum_v<T>
    void field(T& value) {
        const auto bytes = std::as_bytes(std::span(&value, 1));
        bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    }
    void field(std::string& text) {
        auto size = static_cast<std::uint32_t>(text.size());
        field(size);
        const auto bytes = std::as_bytes(std::span(text));
        bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    }
    template <typename T>
    void field(std::vector<T>& list) {
        auto size = static_cast<std::uint32_t>(list.size());
        field(size);
        for (T& entry : list) each(entry);
    }
    template <typename... Fields>
    void later(Fields&... all) {
        (field(all), ...);
    }
    RecordBytes take() { return std::move(bytes_); }

  private:
    template <typename T>
    void each(T& entry) {
        if constexpr (std::is_class_v<T> && !std::is_same_v<T, std::string>) {
            fields(*this, entry);
        } else {
            field(entry);
        }
    }

    RecordBytes bytes_;
};

/// Takes fields off the front. After the first that is not there everything reads as 0.
class Reader {
  public:
    explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}

    template <typename T>
    requires std::is_arithmetic_v<T> || std::is_enum_v<T>
    void field(T& value) {
        value = T{};
        if (!has(sizeof value)) return;
        std::memcpy(&value, left_.data(), sizeof value);
        left_ = left_.subspan(sizeof value);
    }
    void field(bool& value) {
        // Any other byte than 0 and 1 in a bool is undefined behaviour.
        std::uint8_t byte = 0;
        field(byte);
        value = byte != 0;
    }
    void field(std::string& text) {
        std::uint32_t size = 0;
        field(size);
        if (!has(size)) return;
        text.assign(reinterpret_cast<const char*>(left_.data()), size);
        left_ = left_.subspan(size);
    }
    template <typename T>
    void field(std::vector<T>& list) {
        std::uint32_t size = 0;
        field(size);
        // Every entry takes a byte at least: a length that lies costs no memory.
        if (!has(size)) return;
        list.clear();
        for (std::uint32_t i = 0; i < size && good_; ++i) {
            T entry{};
            each(entry);
            list.push_back(std::move(entry));
        }
    }
    /// Fields of later versions, at the end of a record: all of them, or none in older ones.
    template <typename... Fields>
    void later(Fields&... all) {
        if (!left_.empty()) (field(all), ...);
    }
    bool ended_well() const { return good_ && left_.empty(); }

  private:
    template <typename T>
    void each(T& entry) {
        if constexpr (std::is_class_v<T> && !std::is_same_v<T, std::string>) {
            fields(*this, entry);
        } else {
            field(entry);
        }
    }
    bool has(std::size_t bytes) {
        good_ = good_ && bytes <= left_.size();
        return good_;
    }

    std::span<const std::byte> left_;
    bool good_ = true;
};

template <typename Walker, typename... Fields>
void walk(Walker& walker, Fields&... all) {
    (walker.field(all), ...);
}

// Found by the walkers through their arguments, which is why they are plain overloads and come with
// the walker as a template parameter. A new field goes to the end, with a new journal version.
template <typename Walker>
void fields(Walker& walker, Fact& fact) {
    walk(walker, fact.stage, fact.name, fact.value, fact.unit, fact.rank);
}

template <typename Walker>
void fields(Walker& walker, Decision& d) {
    ActionFrame frame = frame_of(d.action);
    walk(walker, d.id, d.window, d.unix_ms, frame.kind, d.arena, d.group, d.device, frame.names,
         frame.before, frame.after, frame.rank, d.objective, d.promised, d.gain, d.cost_s, d.serial,
         d.undoes, d.reason, d.facts, d.outcome, d.measured, d.outcome_reason);
    if constexpr (std::is_same_v<Walker, Reader>) d.action = action_of(std::move(frame));
}

template <typename Walker>
void fields(Walker& walker, DecisionOutcome& o) {
    walk(walker, o.id, o.window, o.outcome, o.measured, o.reason);
}

template <typename Walker>
void fields(Walker& walker, RankWindow& r) {
    double retired = 0;  // load by others, which nothing ever measured
    walk(walker, r.session, r.rank, r.stale, r.steps, r.samples, r.step_s, r.compute_s, r.wait_s,
         r.comm_s, r.bytes, r.loss, r.gradient_norm, r.mean_gradient_norm, r.memory_used,
         r.memory_denied, retired, r.queue, r.batch, r.sync_interval, r.directive_serial);
}

template <typename Walker>
void fields(Walker& walker, JobWindow& job) {
    walk(walker, job.arena, job.group, job.world, job.ranks);
}

template <typename Walker>
void fields(Walker& walker, QuotaWindow& q) {
    walk(walker, q.name, q.quota, q.used, q.denied, q.speed, q.delay, q.busy, q.usage, q.priority,
         q.percent);
}

template <typename Walker>
void fields(Walker& walker, QuotaDevice& device) {
    walk(walker, device.name, device.memory, device.reserve, device.users);
}

template <typename Walker>
void fields(Walker& walker, ShardWindow& s) {
    walk(walker, s.id, s.bytes, s.until_needed_s, s.home, s.reads, s.name, s.moving);
}

template <typename Walker>
void fields(Walker& walker, NodeWindow& node) {
    double retired = 0;  // likewise
    walk(walker, node.name, node.speed, retired, node.free_bytes);
}

template <typename Walker>
void fields(Walker& walker, CacheWindow& c) {
    walk(walker, c.name, c.size, c.quota, c.committed, c.floor, c.stall_s, c.refetched, c.near,
         c.readers);
}

// What users were given later than their place in the record was laid down: by user, in turn.
template <typename Visit>
void visit_later(Window& w, Visit visit) {
    const auto each = [&](QuotaWindow& user) {
        for (double* field : {&user.promised, &user.promised_percent, &user.held_up}) visit(*field);
    };
    for (QuotaDevice& device : w.devices)
        std::for_each(device.users.begin(), device.users.end(), each);
    std::for_each(w.pool.devices.begin(), w.pool.devices.end(), each);
}

template <typename Walker>
void fields(Walker& walker, Window& w) {
    walk(walker, w.number, w.taken_ns, w.length_s, w.jobs, w.devices, w.placement.nodes,
         w.placement.bandwidth, w.placement.shards);
    // Behind the end of records that older daemons wrote.
    walker.later(w.pool.devices, w.pool.most);
    std::vector<double> later;
    visit_later(w, [&](double& field) { later.push_back(field); });
    const std::size_t expected = later.size();
    walker.later(later);
    std::size_t at = 0;
    if (later.size() == expected) {
        visit_later(w, [&](double& field) { field = later[at++]; });
        FABRIC_CHECK(at == expected);  // the same fields in the same order, both times
    }
    // By rank, in turn.
    std::vector<DeviceFaults> faults;
    for (const JobWindow& job : w.jobs) {
        for (const RankWindow& rank : job.ranks) faults.push_back(rank.faults);
    }
    const std::size_t ranks = faults.size();
    walker.later(faults);
    at = 0;
    for (JobWindow& job : w.jobs) {
        for (RankWindow& rank : job.ranks) rank.faults = faults.size() == ranks ? faults[at++] : 0;
    }
    walker.later(w.room.caches, w.room.length_s, w.room.capacity, w.room.used, w.room.lacked);
}

template <typename T>
std::optional<T> read(std::span<const std::byte> bytes) {
    Reader reader(bytes);
    T record;
    fields(reader, record);
    return reader.ended_well() ? std::optional(std::move(record)) : std::nullopt;
}

template <typename T>
RecordBytes write(T record) {  // a copy: fields() is one function for both ways
    Writer writer;
    fields(writer, record);
    RecordBytes bytes = writer.take();
    FABRIC_DCHECK(read<T>(bytes).has_value());  // a journal that can't be read is no journal
    return bytes;
}

}  // namespace

RecordBytes to_record(const Decision& decision) {
    return write(decision);
}

RecordBytes to_record(const DecisionOutcome& outcome) {
    return write(outcome);
}

RecordBytes to_record(const Window& window) {
    return write(window);
}

std::optional<Decision> decision_from(std::span<const std::byte> bytes) {
    return read<Decision>(bytes);
}

std::optional<DecisionOutcome> outcome_from(std::span<const std::byte> bytes) {
    return read<DecisionOutcome>(bytes);
}

std::optional<Window> window_from(std::span<const std::byte> bytes) {
    return read<Window>(bytes);
}

}  // namespace fabricd
