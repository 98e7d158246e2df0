#include "fabricd/ctl/dashboard/job_scope.hpp"

#include <doctest/doctest.h>

using namespace fabricd;

namespace {

constexpr std::uint32_t kAlice = 1000;
constexpr std::uint32_t kBob = 1001;

SessionView session_of(std::uint64_t id, const char* label, std::uint32_t uid = kAlice) {
    SessionView session;
    session.id = id;
    session.label = label;
    session.uid = uid;
    return session;
}

SessionSample rank_of(const SessionView& session, std::uint64_t group_id) {
    SessionSample sample;
    sample.session_id = session.id;
    sample.label = session.label;
    sample.uid = session.uid;
    sample.member = group_id != 0;
    sample.image = fabricshm::empty_telemetry();
    sample.image.group_id = group_id;
    return sample;
}

ArenaView arena_of(std::uint64_t id, const char* name, std::vector<std::uint64_t> sessions) {
    ArenaView arena;
    arena.id = id;
    arena.name = name;
    arena.session_ids = std::move(sessions);
    return arena;
}

GroupView group_of(std::uint64_t id, std::uint64_t arena_id, const char* name = "world") {
    GroupView group;
    group.id = id;
    group.arena_id = arena_id;
    group.name = name;
    return group;
}

/// Jobs "cat" of Alice (sessions 1, 2), "cat" of Bob (3), "cats" of Alice (4), and "" of Alice (5).
/// The first has arena 11 alone, with a group of it and one that has not formed; all have 12, with
/// a group of the first, one of the third, and one whose ranks are not known.
Picture two_cats() {
    Picture picture;
    picture.sessions = {session_of(1, "cat"), session_of(2, "cat"), session_of(3, "cat", kBob),
                        session_of(4, "cats"), session_of(5, "")};
    picture.telemetry.sessions = {
        rank_of(picture.sessions[0], 21), rank_of(picture.sessions[1], 23),
        rank_of(picture.sessions[3], 24), rank_of(picture.sessions[2], 0)};
    picture.arenas = {arena_of(11, "own", {1, 2}), arena_of(12, "shared", {2, 3, 4, 5}),
                      arena_of(13, "other", {3}), arena_of(14, "the cat's", {})};
    picture.groups = {group_of(21, 11),
                      group_of(22, 11),
                      group_of(23, 12),
                      group_of(24, 12),
                      group_of(25, 12),
                      group_of(26, 13),
                      group_of(27, 13, "cat pictures")};
    for (const std::uint64_t arena : {11, 12, 13}) {
        ShardView shard;
        shard.id = 30 + arena - 10;
        shard.arena_id = arena;
        picture.shards.push_back(shard);
    }
    picture.shards.push_back(picture.shards.back());
    picture.shards.back().id = 34;
    picture.shards.back().owner_session = 1;
    for (const GroupView& group : picture.groups) {
        PathSample path;
        path.group_id = group.id;
        picture.telemetry.paths.push_back(path);
        WaitingView waiting;
        waiting.arena_id = group.arena_id;
        waiting.group_id = group.id;
        waiting.group = group.name;
        picture.waiting.push_back(waiting);
    }
    // A group that forms, in an arena of the first.
    picture.waiting.emplace_back();
    picture.waiting.back().arena_id = 11;
    return picture;
}

using Ids = std::vector<std::uint64_t>;

template <typename Items, typename Id>
Ids ids_in(const JobScope& scope, const Items& items, Id Items::value_type::*id) {
    Ids ids;
    for (const auto& item : items) {
        if (scope.has(item)) ids.push_back(item.*id);
    }
    return ids;
}

PictureQuery query_of(const char* match, std::optional<std::uint32_t> user = std::nullopt) {
    PictureQuery query;
    query.match = match;
    query.user = user;
    return query;
}

TEST_SUITE("ctl.dashboard.job_scope") {
    TEST_CASE("of a job are its sessions, arenas, groups, shards, waits and paths") {
        const Picture picture = two_cats();
        const PictureQuery query = query_of("cat", kAlice);
        const JobScope scope(picture, query);
        CHECK(ids_in(scope, picture.sessions, &SessionView::id) == Ids{1, 2});
        CHECK(ids_in(scope, picture.telemetry.sessions, &SessionSample::session_id) == Ids{1, 2});
        CHECK(ids_in(scope, picture.arenas, &ArenaView::id) == Ids{11, 12});
        // Group 24 is of another job in a shared arena; of 25 it is not known.
        CHECK(ids_in(scope, picture.groups, &GroupView::id) == Ids{21, 22, 23, 25});
        CHECK(ids_in(scope, picture.shards, &ShardView::id) == Ids{31, 32, 34});
        CHECK(ids_in(scope, picture.waiting, &WaitingView::group_id) == Ids{21, 22, 23, 25, 0});
        CHECK(ids_in(scope, picture.telemetry.paths, &PathSample::group_id) == Ids{21, 22, 23, 25});
    }

    TEST_CASE("jobs of one label and two users are two") {
        const Picture picture = two_cats();
        const PictureQuery query = query_of("cat", kBob);
        const JobScope scope(picture, query);
        CHECK(ids_in(scope, picture.sessions, &SessionView::id) == Ids{3});
        CHECK(ids_in(scope, picture.arenas, &ArenaView::id) == Ids{12, 13});
        CHECK(ids_in(scope, picture.groups, &GroupView::id) == Ids{25, 26, 27});
        JobSum job;
        job.label = "cat";
        job.uid = kBob;
        CHECK(scope.has(job));
        job.uid = kAlice;
        CHECK_FALSE(scope.has(job));
    }

    TEST_CASE("sessions without a label are a job, too") {
        const Picture picture = two_cats();
        const PictureQuery query = query_of("", kAlice);
        const JobScope scope(picture, query);
        CHECK(ids_in(scope, picture.sessions, &SessionView::id) == Ids{5});
        CHECK(ids_in(scope, picture.arenas, &ArenaView::id) == Ids{12});
    }

    TEST_CASE("a text finds what is of the jobs that have it, and what has it in its name") {
        const Picture picture = two_cats();
        const PictureQuery cats = query_of("cats");
        const JobScope of_cats(picture, cats);
        CHECK(ids_in(of_cats, picture.sessions, &SessionView::id) == Ids{4});
        CHECK(ids_in(of_cats, picture.arenas, &ArenaView::id) == Ids{12});
        CHECK(ids_in(of_cats, picture.groups, &GroupView::id) == Ids{24, 25});
        const PictureQuery cat = query_of("cat");
        const JobScope of_cat(picture, cat);
        CHECK(ids_in(of_cat, picture.sessions, &SessionView::id) == Ids{1, 2, 3, 4});
        CHECK(ids_in(of_cat, picture.arenas, &ArenaView::id) == Ids{11, 12, 13, 14});
        const PictureQuery name = query_of("pictures");
        const JobScope of_name(picture, name);
        CHECK(ids_in(of_name, picture.sessions, &SessionView::id).empty());
        CHECK(ids_in(of_name, picture.groups, &GroupView::id) == Ids{27});
        CHECK(ids_in(of_name, picture.waiting, &WaitingView::group_id) == Ids{27});
        CHECK(ids_in(of_name, picture.telemetry.paths, &PathSample::group_id) == Ids{27});
    }

    TEST_CASE("without a text everything is there") {
        const Picture picture = two_cats();
        const PictureQuery query;
        const JobScope scope(picture, query);
        CHECK(ids_in(scope, picture.arenas, &ArenaView::id).size() == picture.arenas.size());
        CHECK(ids_in(scope, picture.groups, &GroupView::id).size() == picture.groups.size());
        CHECK(ids_in(scope, picture.shards, &ShardView::id).size() == picture.shards.size());
        CHECK(ids_in(scope, picture.waiting, &WaitingView::group_id).size() ==
              picture.waiting.size());
        CHECK(ids_in(scope, picture.telemetry.paths, &PathSample::group_id).size() ==
              picture.telemetry.paths.size());
    }
}

}  // namespace
