#include "fabricd/ctl/dashboard/dashboard_picture.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "fabricd/ctl/cluster_commands.hpp"
#include "fabricd/ctl/dashboard/job_scope.hpp"
#include "fabricd/ctl/dashboard/list_text.hpp"
#include "fabricd/ctl/decision_view.hpp"
#include "fabricd/ctl/json_view.hpp"
#include "fabricd/ctl/operator_commands.hpp"
#include "fabricd/ctl/telemetry_view.hpp"
#include "fabricd/ctl/vgpu_commands.hpp"

namespace fabricd {

namespace {

// Of each list: what kListRows rows with names of usual length need, and a little more. Together
// with the history below kMaxPictureBytes; what is outside of lists has the rest.
constexpr std::size_t kListBytes[kPagedLists.size()] = {
    150'000,  // jobs
    340'000,  // training
    130'000,  // sessions
    90'000,   // groups
    120'000,  // arenas
    100'000,  // shards
    80'000,   // waiting
    60'000,   // paths
};
constexpr ListBound kAlarms{100, 20'000};
constexpr ListBound kCaches{kListRows, 50'000};
constexpr ListBound kPools{16, 8'000};
constexpr ListBound kDevices{kListRows, 60'000};
constexpr ListBound kLoad{kListRows, 30'000};
constexpr ListBound kVgpus{kListRows, 50'000};
constexpr ListBound kHosts{kListRows, 50'000};
constexpr ListBound kEvents{100, 60'000};
constexpr ListBound kDecisions{50, 300'000};
constexpr std::size_t kRestBytes = 20'000;

constexpr std::size_t all_bytes() {
    std::size_t bytes = kMaxHistoryBytes + kRestBytes;
    for (const std::size_t list : kListBytes) bytes += list;
    for (const ListBound& list :
         {kAlarms, kCaches, kPools, kDevices, kLoad, kVgpus, kHosts, kEvents, kDecisions}) {
        bytes += list.bytes;
    }
    return bytes;
}
static_assert(all_bytes() <= kMaxPictureBytes);

// So that one text can't push all others out of its list.
constexpr std::size_t kMaxText = 2'000;
constexpr std::size_t kMaxDecision = kDecisions.bytes / kDecisions.rows - 1;

std::string cut(const std::string& text, std::size_t bytes, const std::string& rest) {
    if (text.size() <= bytes) return text;
    return text.substr(0, bytes) + "... (" + rest + ")";
}

// Sorting needs numbers that can be compared.
double ordered(double value) {
    return std::isfinite(value) ? value : 0;
}

/// What is not to be overlooked comes first, then what is new, or large.
auto rank_of(const JobSum& job) {
    return std::tuple(!job.needs_attention(), -ordered(job.samples_per_s), ~job.sessions);
}
auto rank_of(const SessionSample& session) {
    return std::tuple(!(session.member && session.stale), ~session.session_id);
}
auto rank_of(const SessionView& session) {
    return std::tuple(session.connected && !session.given_up, ~session.id);
}
auto rank_of(const GroupView& group) {
    return std::tuple(group.state != GroupState::kBroken, group.state != GroupState::kForming,
                      ~group.id);
}
auto rank_of(const ArenaView& arena) {
    return std::tuple(arena.bytes_quarantined == 0, ~arena.bytes_committed);
}
auto rank_of(const ShardView& shard) {
    const bool stays = shard.state == ShardState::kHere || shard.state == ShardState::kFixed;
    return std::tuple(stays, ~shard.bytes);
}
auto rank_of(const WaitingView& waiting) {
    return std::tuple(-waiting.waited_ms);
}
auto rank_of(const PathSample& path) {
    return std::tuple(ordered(path.bytes_per_second));
}

/// Of a list that is longer than what a page shows: what rank_of() says. A shorter one stays in the
/// order of fabricctl.
template <typename Item>
void sort_first(std::vector<const Item*>& items, std::size_t first) {
    if (items.size() <= kListRows) return;
    std::partial_sort(items.begin(),
                      items.begin() + static_cast<std::ptrdiff_t>(std::min(first, items.size())),
                      items.end(), [](const Item* a, const Item* b) {
                          const auto rank_a = rank_of(*a);
                          const auto rank_b = rank_of(*b);
                          // Equal ones in their order, so that rows keep their places.
                          return rank_a != rank_b ? rank_a < rank_b : a < b;
                      });
}

/// Writes the keys of an object, and of its lists how many rows there are.
class PictureWriter {
  public:
    explicit PictureWriter(const PictureQuery& query) : query_(query) {}

    void put(std::string_view key, std::string_view json) {
        text_ += text_.empty() ? '{' : ',';
        text_ += '"';
        text_ += key;
        text_ += "\":";
        text_ += json;
    }

    /// The rows that the query wants of those that are in its scope.
    template <typename Item, typename AppendRow>
    std::string page(PagedList list, const std::vector<Item>& items, const JobScope& scope,
                     AppendRow append_row) {
        std::vector<const Item*> found;
        for (const Item& item : items) {
            if (scope.has(item)) found.push_back(&item);
        }
        // Of a list that has become shorter the last page.
        const std::size_t last = found.empty() ? 0 : (found.size() - 1) / kListRows * kListRows;
        const std::size_t wanted = query_.from_of(list);
        const std::size_t from = wanted < found.size() ? wanted : last;
        sort_first(found, from + kListRows);
        const auto index = static_cast<std::size_t>(list);
        ListText text({kListRows, kListBytes[index]});
        for (std::size_t i = from; i < found.size(); ++i) {
            const auto append = [&](std::string& row) { append_row(row, *found[i]); };
            if (!text.append(append)) break;
        }
        lists_[std::string(kPagedLists[index])] = {{"from", from},
                                                   {"rows", text.rows()},
                                                   {"matching", found.size()},
                                                   {"all", items.size()}};
        return text.text();
    }

    /// The first rows of a list that is short, as a rule; there are `all` of them.
    std::string first(const char* name, const Json& rows, ListBound bound, std::size_t all) {
        ListText text(bound);
        for (const Json& row : rows) {
            if (!text.add(row)) break;
        }
        return count(name, text, all);
    }
    /// The last ones. In their order, whichever find room.
    std::string newest(const char* name, const Json& rows, ListBound bound) {
        ListText room(bound);
        std::size_t from = rows.size();
        while (from > 0 && room.add(rows[from - 1])) --from;
        ListText text(bound);
        for (std::size_t i = from; i < rows.size(); ++i) text.add(rows[i]);
        return count(name, text, rows.size());
    }

    std::string end() {
        put("lists", one_line(lists_));
        return std::move(text_) + "}";
    }

  private:
    std::string count(const char* name, const ListText& text, std::size_t all) {
        lists_[name] = {{"from", 0}, {"rows", text.rows()}, {"matching", all}, {"all", all}};
        return text.text();
    }

    const PictureQuery& query_;
    Json lists_ = Json::object();
    std::string text_;
};

/// `json` with lists whose texts are there already.
std::string with_lists(const Json& json,
                       const std::vector<std::pair<std::string_view, std::string>>& lists) {
    std::string text = one_line(json);
    text.pop_back();
    for (const auto& [key, list] : lists) {
        if (text.size() > 1) text += ',';
        text += "\"" + std::string(key) + "\":" + list;
    }
    return text + "}";
}

/// No more than a text has rows of.
template <typename Item>
std::vector<Item> head_of(const std::vector<Item>& items) {
    const std::size_t rows = std::min(items.size(), kListRows);
    return {items.begin(), items.begin() + static_cast<std::ptrdiff_t>(rows)};
}

template <typename Item, typename ToJson>
Json rows_of(const std::vector<Item>& items, ToJson to_json) {
    Json rows = Json::array();
    for (const Item& item : head_of(items)) rows.push_back(to_json(item));
    return rows;
}

std::string status_text(const StatusView& status, PictureWriter& writer) {
    StatusView head = status;
    head.alarms.clear();
    head.caches.clear();
    Json json = row_json(head);
    json.erase("alarms");
    json.erase("caches");
    const Json alarms = rows_of(status.alarms, [](const std::string& alarm) {
        return Json(cut(alarm, kMaxText, "fabricctl status"));
    });
    const Json caches = rows_of(status.caches, row_json<CacheView>);
    return with_lists(json,
                      {{"alarms", writer.first("alarms", alarms, kAlarms, status.alarms.size())},
                       {"caches", writer.first("caches", caches, kCaches, status.caches.size())}});
}

/// With its text. A decision over a thousand ranks is some hundred kilobytes: here it has its
/// beginning, so that all have room.
Json decision_row(const Decision& decision) {
    const std::string why = why_text(decision);
    if (why.size() <= kMaxDecision) {
        Json json = json_of(decision);
        json["why"] = why;
        if (one_line(json).size() <= kMaxDecision) return json;
    }
    Decision head = decision;
    head.facts.clear();
    Json json = json_of(head);
    for (const char* list : {"names", "before", "after"}) json[list] = Json::array();
    json["cut"] = true;
    const std::string command = "fabricctl why " + std::to_string(decision.id);
    // Again where the text has much that is longer in JSON.
    for (std::size_t bytes = kMaxDecision / 2;; bytes /= 2) {
        json["why"] = cut(why, bytes, command);
        json["reason"] = cut(decision.reason, bytes / 8, command);
        json["outcome_reason"] = cut(decision.outcome_reason, bytes / 8, command);
        if (one_line(json).size() <= kMaxDecision || bytes == 0) return json;
    }
}

void put_control(const DashboardPicture& all, PictureWriter& writer) {
    const Json vgpus = json_of(head_of(all.vgpus));
    writer.put("vgpus", writer.first("vgpus", vgpus["vgpus"], kVgpus, all.vgpus.size()));
    Json events = json_of(all.events)["events"];
    for (Json& event : events) {
        event["text"] = cut(event["text"].get<std::string>(), kMaxText, "fabricctl events");
    }
    writer.put("events", writer.newest("events", events, kEvents));
    ClusterView head = all.cluster;
    head.hosts = head_of(all.cluster.hosts);
    head.trouble = cut(all.cluster.trouble, kMaxText, "fabricctl hosts");
    Json cluster = json_of(head);
    const std::string hosts =
        writer.first("hosts", cluster["hosts"], kHosts, all.cluster.hosts.size());
    cluster.erase("hosts");
    writer.put("cluster", with_lists(cluster, {{"hosts", hosts}}));
    Json decisions = Json::array();
    for (const Decision& decision : all.decisions) decisions.push_back(decision_row(decision));
    writer.put("decisions", writer.newest("decisions", decisions, kDecisions));
}

std::string telemetry_text_of(const Sample& sample, const JobScope& scope, PictureWriter& writer) {
    const GroupRates rates = rates_of_groups(sample);
    const auto training = [&](std::string& text, const SessionSample& session) {
        append_training(text, session, rates);
    };
    return with_lists(
        {{"number", sample.number}, {"cost_ns", sample.cost_ns}},
        {{"training", writer.page(PagedList::kTraining, sample.sessions, scope, training)},
         {"devices",
          writer.first("load", rows_of(sample.devices, load_json), kLoad, sample.devices.size())},
         {"paths", writer.page(PagedList::kPaths, sample.paths, scope, append_path)}});
}

void put_pool(const Picture& all, const JobScope& scope, PictureWriter& writer) {
    const auto row = [](std::string& text, const auto& item) { append_row(text, item); };
    const auto json = [](const auto& item) { return row_json(item); };
    writer.put("status", status_text(all.status, writer));
    writer.put("arenas", writer.page(PagedList::kArenas, all.arenas, scope, row));
    writer.put("sessions", writer.page(PagedList::kSessions, all.sessions, scope, row));
    writer.put("groups", writer.page(PagedList::kGroups, all.groups, scope, row));
    writer.put("telemetry", telemetry_text_of(all.telemetry, scope, writer));
    writer.put("pools", writer.first("pools", rows_of(all.pools, json), kPools, all.pools.size()));
    writer.put("devices",
               writer.first("devices", rows_of(all.devices, json), kDevices, all.devices.size()));
    writer.put("waiting", writer.page(PagedList::kWaiting, all.waiting, scope, row));
    writer.put("shards", writer.page(PagedList::kShards, all.shards, scope, row));
}

void put_sums(const JobSums& sums, const JobScope& scope, PictureWriter& writer) {
    Json totals = json_of(sums.all);
    totals["label"] = totals["uid"] = nullptr;
    totals["jobs"] = sums.jobs.size();
    writer.put("totals", one_line(totals));
    writer.put("jobs",
               writer.page(PagedList::kJobs, sums.jobs, scope,
                           [](std::string& text, const JobSum& job) { append_row(text, job); }));
}

}  // namespace

std::string picture_text(const PictureStamp& stamp, const DashboardPicture* picture,
                         const PictureQuery& query, std::string_view history) {
    PictureWriter writer(query);
    writer.put("number", std::to_string(stamp.number));
    writer.put("unix_ms", std::to_string(stamp.unix_ms));
    writer.put("daemon", one_line({{"answers", stamp.answers},
                                   {"since_unix_ms", stamp.since_unix_ms},
                                   {"socket", stamp.socket},
                                   {"error", stamp.error}}));
    writer.put("match", one_line(query.match));
    writer.put("user", query.user ? std::to_string(*query.user) : "null");
    if (picture != nullptr) {
        const JobScope scope(picture->picture, query);
        put_sums(picture->sums, scope, writer);
        put_pool(picture->picture, scope, writer);
        put_control(*picture, writer);
    }
    if (!history.empty()) writer.put("history", history);
    return writer.end();
}

}  // namespace fabricd
