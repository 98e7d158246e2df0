#include "fabricd/ctl/dashboard/dashboard_picture.hpp"

#include <doctest/doctest.h>

#include <numeric>
#include <set>

#include "fabricd/ctl/dashboard/history.hpp"
#include "fabricd/ctl/decision_view.hpp"
#include "fabricd/ctl/json_view.hpp"

using namespace fabricd;

namespace {

constexpr std::size_t kManySessions = 10'000;

SessionView session_of(std::uint64_t id, std::string label) {
    SessionView session;
    session.id = id;
    session.pid = static_cast<std::int32_t>(1000 + id);
    session.label = std::move(label);
    session.age_ms = 1000;
    session.connected = true;
    return session;
}

SessionSample sample_of(std::uint64_t id, std::string label) {
    SessionSample session;
    session.session_id = id;
    session.pid = static_cast<std::int32_t>(1000 + id);
    session.label = std::move(label);
    session.image = fabricshm::empty_telemetry();
    session.image.steps = 3;
    session.image.group_id = 1;
    session.stale = false;
    session.member = true;
    session.rates.samples_per_s = 1;
    return session;
}

template <typename LabelOf>
DashboardPicture picture_of(std::size_t sessions, LabelOf label_of) {
    DashboardPicture all;
    for (std::size_t i = 0; i < sessions; ++i) {
        all.picture.sessions.push_back(session_of(i + 1, label_of(i)));
        all.picture.telemetry.sessions.push_back(sample_of(i + 1, label_of(i)));
    }
    all.picture.status.sessions = sessions;
    all.sums = sums_of(all.picture);
    return all;
}

DashboardPicture picture_of(std::size_t sessions) {
    return picture_of(sessions, [](std::size_t i) { return "job" + std::to_string(i % 50); });
}

std::string text_of(const DashboardPicture& picture, std::string_view query = "since=1") {
    const PictureStamp stamp{7, 1'700'000'000'000, true, 1'600'000'000'000, "/s", ""};
    return picture_text(stamp, &picture, parse_picture_query(query), "");
}

Json json_of(const DashboardPicture& picture, std::string_view query = "since=1") {
    const Json json = Json::parse(text_of(picture, query), nullptr, false);
    REQUIRE(json.is_object());
    return json;
}

std::vector<std::uint64_t> ids_of(const Json& rows, const char* key) {
    std::vector<std::uint64_t> ids;
    for (const Json& row : rows) ids.push_back(row[key].get<std::uint64_t>());
    return ids;
}

/// As many as there can be of everything, with the longest names; each letter is two of JSON.
DashboardPicture largest_picture() {
    const auto name_of = [](std::size_t i, std::size_t bytes) {
        std::string name = std::to_string(i);
        return name + std::string(bytes - name.size(), '"');
    };
    DashboardPicture all = picture_of(kManySessions, [&](std::size_t i) { return name_of(i, 63); });
    Picture& picture = all.picture;
    for (std::size_t i = 0; i < kManySessions; ++i) {
        picture.sessions[i].device = picture.sessions[i].host = name_of(i, 63);
        SessionSample& sample = picture.telemetry.sessions[i];
        sample.device = name_of(i, 63);
        sample.rates = {1.0 / 3, 1e9 / 7, 1.0 / 7, 1.0 / 11, 1.0 / 13, 1.0 / 17};
        sample.image.steps = sample.image.samples = UINT64_MAX;
        ArenaView arena;
        arena.id = arena.bytes = arena.bytes_used = arena.bytes_committed = UINT64_MAX - i;
        arena.name = name_of(i, 63);
        arena.session_ids.assign(100, UINT64_MAX);
        picture.arenas.push_back(arena);
        GroupView group;
        group.name = name_of(i, 63);
        group.dead_ranks.resize(i < 2 * kListRows ? 1024 : 1);
        std::iota(group.dead_ranks.begin(), group.dead_ranks.end(), 0);
        picture.groups.push_back(group);
        ShardView shard;
        shard.name = name_of(i, 127);
        shard.home_arena = shard.home_device = name_of(i, 63);
        picture.shards.push_back(shard);
        WaitingView waiting;
        waiting.arena = waiting.group = name_of(i, 63);
        waiting.waiting = group.dead_ranks;
        waiting.late.assign(group.dead_ranks.size(), {1023, UINT64_MAX, INT32_MAX});
        picture.waiting.push_back(waiting);
        picture.telemetry.paths.push_back({UINT64_MAX, 1023, 1022, i, 1e9 / 7, 1e9 / 7, 1e3 / 7});
        CacheView cache;
        cache.name = name_of(i, 63);
        picture.status.caches.push_back(cache);
        picture.status.alarms.push_back(name_of(i, 10'000));
        DeviceView device;
        device.spec.name = device.spec.kind = name_of(i, 63);
        picture.devices.push_back(device);
        DeviceSample load;
        load.name = load.description = name_of(i, 200);
        picture.telemetry.devices.push_back(load);
        VgpuView vgpu;
        vgpu.spec.name = vgpu.spec.gpu = name_of(i, 63);
        vgpu.tenants.resize(48);
        all.vgpus.push_back(vgpu);
        all.cluster.hosts.emplace_back();
        all.cluster.hosts.back().name = name_of(i, 63);
    }
    all.cluster.trouble = name_of(0, 100'000);
    for (std::size_t i = 0; i < 100; ++i) {
        all.events.push_back({i, 0, "warning", name_of(i, 100'000)});
    }
    for (std::size_t i = 0; i < 50; ++i) {
        Decision decision;
        decision.id = i + 1;
        decision.reason = decision.outcome_reason = name_of(i, 10'000);
        decision.action =
            BatchShares{std::vector<double>(1024, 1.0 / 3), std::vector<double>(1024, 1.0 / 7)};
        decision.facts.assign(300, {"S113", name_of(i, 63), 1.0 / 3, "samples/s", 1023});
        all.decisions.push_back(decision);
    }
    all.sums = sums_of(picture);
    return all;
}

TEST_SUITE("ctl.dashboard.dashboard_picture") {
    TEST_CASE("a small picture has all rows, those of fabricctl, in their order") {
        const DashboardPicture picture = picture_of(kListRows);
        const Json json = json_of(picture);
        Json top = fabricd::json_of(picture.picture, View::kTop);
        for (const char* key : {"status", "arenas", "sessions", "groups", "telemetry"}) {
            CAPTURE(key);
            // Written, since NaN is null there.
            const Json told = Json::parse(one_line(top[key]));
            if (std::string(key) != "status") {
                CHECK(json[key] == told);
                continue;
            }
            for (const auto& [field, value] : told.items()) CHECK(json[key][field] == value);
        }
        for (const char* list : {"sessions", "training"}) {
            CAPTURE(list);
            const Json count = json["lists"][list];
            CHECK(count == Json{{"from", 0}, {"rows", 500}, {"matching", 500}, {"all", 500}});
        }
        CHECK(json["number"] == 7);
        CHECK(json["daemon"]["answers"] == true);
        CHECK_FALSE(json.contains("history"));
    }

    TEST_CASE("of many sessions it has the newest, how many there are, and the sums of all") {
        const Json json = json_of(picture_of(kManySessions));
        for (const auto& [list, rows, key] :
             {std::tuple("sessions", json["sessions"], "id"),
              std::tuple("training", json["telemetry"]["training"], "session")}) {
            CAPTURE(list);
            CHECK(rows.size() == kListRows);
            CHECK(json["lists"][list]["all"] == kManySessions);
            const auto ids = ids_of(rows, key);
            CHECK(ids.front() == kManySessions);
            CHECK(ids.back() == kManySessions - kListRows + 1);
        }
        CHECK(json["totals"]["sessions"] == kManySessions);
        CHECK(json["totals"]["jobs"] == 50);
        CHECK(json["totals"]["samples_per_s"] == double(kManySessions));
        CHECK(json["jobs"].size() == 50);
        for (const Json& job : json["jobs"]) CHECK(job["sessions"] == 200);
    }

    TEST_CASE("pages together are all rows, each once") {
        const DashboardPicture picture = picture_of(1234);
        std::set<std::uint64_t> seen;
        for (std::size_t from = 0; from < 1234; from += kListRows) {
            const Json json = json_of(picture, "since=1&sessions=" + std::to_string(from));
            CHECK(json["lists"]["sessions"]["from"] == from);
            for (const std::uint64_t id : ids_of(json["sessions"], "id")) {
                CHECK(seen.insert(id).second);
            }
        }
        CHECK(seen.size() == 1234);
        // Behind the end: the last one, of a list that has become shorter.
        const Json last = json_of(picture, "since=1&sessions=5000")["lists"]["sessions"];
        CHECK(last["from"] == 1000);
        CHECK(last["rows"] == 234);
        CHECK(json_of(picture_of(0), "since=1&sessions=5000")["sessions"].empty());
    }

    TEST_CASE("what needs attention is in the first rows, however old it is") {
        DashboardPicture picture = picture_of(kManySessions);
        picture.picture.telemetry.sessions[3].stale = true;
        picture.picture.sessions[4].connected = false;
        for (std::uint64_t i = 0; i < 1000; ++i) {
            GroupView group;
            group.id = i;
            group.state = i == 5 ? GroupState::kBroken : GroupState::kComplete;
            picture.picture.groups.push_back(group);
            ArenaView arena;
            arena.id = i;
            arena.bytes_committed = i == 6 ? 1 << 30 : 1 << 20;
            picture.picture.arenas.push_back(arena);
            WaitingView waiting;
            waiting.group_id = i;
            waiting.waited_ms = i == 7 ? 9000 : 2000;
            picture.picture.waiting.push_back(waiting);
        }
        picture.sums = sums_of(picture.picture);
        const Json json = json_of(picture);
        CHECK(json["telemetry"]["training"][0]["session"] == 4);
        CHECK(json["sessions"][0]["id"] == 5);
        CHECK(json["groups"][0]["id"] == 5);
        CHECK(json["arenas"][0]["id"] == 6);
        CHECK(json["waiting"][0]["group_id"] == 7);
        CHECK(json["totals"]["away"] == 1);
        CHECK(json["totals"]["stale_ranks"] == 1);
    }

    TEST_CASE("a text chooses jobs, with their sessions and ranks, out of all") {
        const DashboardPicture picture = picture_of(kManySessions);
        const Json json = json_of(picture, "since=1&match=job17");
        CHECK(json["match"] == "job17");
        CHECK(json["jobs"].size() == 1);
        CHECK(json["sessions"].size() == 200);
        CHECK(json["telemetry"]["training"].size() == 200);
        for (const Json& row : json["sessions"]) CHECK(row["label"] == "job17");
        const Json count = json["lists"]["sessions"];
        CHECK(count["matching"] == 200);
        CHECK(count["all"] == kManySessions);
        // The sums of all are those of all.
        CHECK(json["totals"]["sessions"] == kManySessions);
        // And a rank's share is that of its group, of which the other rows are not there.
        CHECK(json["telemetry"]["training"][0]["share_of_group"] ==
              doctest::Approx(1.0 / kManySessions));
    }

    TEST_CASE("of one job a picture has what is of it, and of which it is") {
        DashboardPicture picture = picture_of(100);
        for (std::uint64_t i = 1; i <= 50; ++i) {
            ArenaView arena;
            arena.id = i;
            arena.session_ids = {i};
            picture.picture.arenas.push_back(arena);
            GroupView group;
            group.id = 100 + i;
            group.arena_id = i;
            group.name = "world";
            picture.picture.groups.push_back(group);
        }
        // The sessions 2 and 52 of the label job1, and not those of job10 to job19.
        const Json json = json_of(picture, "since=1&match=job1&user=0");
        CHECK(json["match"] == "job1");
        CHECK(json["user"] == 0);
        CHECK(ids_of(json["sessions"], "id") == std::vector<std::uint64_t>{2, 52});
        CHECK(ids_of(json["arenas"], "id") == std::vector<std::uint64_t>{2});
        CHECK(ids_of(json["groups"], "id") == std::vector<std::uint64_t>{102});
        CHECK(json["jobs"].size() == 1);
        CHECK(json["lists"]["groups"]["all"] == 50);
        CHECK(json_of(picture, "since=1&match=job1&user=1")["sessions"].empty());
        CHECK(json_of(picture, "since=1&match=job1")["sessions"].size() == 22);
        CHECK(json_of(picture, "since=1&match=job1")["user"].is_null());
    }

    TEST_CASE("without a daemon there is what is wrong, and nothing else") {
        const PictureStamp stamp{1, 5, false, 5, "/s", "no fabricd answers at /s"};
        const Json json = Json::parse(picture_text(stamp, nullptr, {}, ""));
        CHECK(json["daemon"]["error"] == "no fabricd answers at /s");
        CHECK_FALSE(json.contains("status"));
    }

    TEST_CASE("a long decision has its beginning, a short one all that fabricctl says") {
        DashboardPicture picture;
        Decision decision;
        decision.id = 17;
        decision.action = BatchShares{{0.5, 0.5}, {0.8, 0.2}};
        decision.reason = "imbalance";
        decision.facts = {{"S112", "imbalance", 0.5, "", -1}};
        picture.decisions = {decision};
        decision.id = 18;
        decision.facts.assign(1000, {"S113", "speed", 400, "samples/s", 0});
        picture.decisions.push_back(decision);
        const Json rows = json_of(picture)["decisions"];
        REQUIRE(rows.size() == 2);
        Json whole = fabricd::json_of(picture.decisions[0]);
        whole["why"] = why_text(picture.decisions[0]);
        CHECK(rows[0] == whole);
        const std::string why = rows[1]["why"];
        CHECK(why.starts_with("decision 18"));
        CHECK(why.find("fabricctl why 18") != why.npos);
        CHECK(rows[1]["cut"] == true);
    }

    TEST_CASE("however much there is of everything, a picture stays below its bound") {
        const DashboardPicture picture = largest_picture();
        History history;
        JobSums some = picture.sums;
        some.jobs.resize(History::kMaxSeries);
        for (std::size_t i = 0; i < History::kMaxPoints; ++i) {
            history.add(1'700'000'000'000 + static_cast<std::int64_t>(i), {}, some);
        }
        const PictureStamp stamp{UINT64_MAX, 1'700'000'000'000, true, 1'600'000'000'000, "/s", ""};
        std::string match(5000, '\x01');  // six bytes of JSON each
        for (const std::string& query : {std::string(), "match=" + match,
                                         std::string("sessions=9000&training=9000&match=9")}) {
            CAPTURE(query.substr(0, 20));
            const std::string text = picture_text(stamp, &picture, parse_picture_query(query),
                                                  history.text(kMaxHistoryBytes));
            CHECK(text.size() <= kMaxPictureBytes);
            const Json json = Json::parse(text, nullptr, false);
            REQUIRE(json.is_object());
            // Of each something, with how many there are.
            for (const auto& [name, count] : json["lists"].items()) {
                CAPTURE(name);
                if (count["matching"] == 0) continue;
                CHECK(count["rows"] > 0);
            }
            CHECK(json["lists"]["sessions"]["all"] == kManySessions);
            CHECK(json["decisions"].size() == 50);
            CHECK(json["events"].back()["number"] == 99);
        }
    }
}

}  // namespace
