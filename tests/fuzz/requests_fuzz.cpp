// A story of several sessions: messages in any order, lost connections, deaths, time, copies that
// end and restarts of the daemon at any record. Only what proto::check_request() takes reaches the
// registry, as in the server. All along the accounts balance, every reply is one that a client
// takes, and at the end nothing is left.

#include "fabricd/server/requests.hpp"
#include "tests/fuzz/registry_case.hpp"

using namespace fuzz;
using proto::Message;
using proto::Type;

namespace {

constexpr int kMaxSteps = 300;
constexpr std::size_t kMaxSessions = 6;
constexpr unsigned kTypes = 22;
constexpr unsigned kOtherActs = 8;

// An arena of more would be a memory file of more.
constexpr Bytes kMaxArena = 16 * fabricshm::kMiB;

class Story {
  public:
    explicit Story(Data bytes) : input_(bytes) {
        const unsigned flags = input_.below(8);
        if ((flags & 1) != 0) case_.first_step = 2 * fabricshm::kMiB;
        if ((flags & 2) != 0) {
            DeviceSpec device;
            device.name = "gpu0";
            device.memory_bytes = device.quota_bytes = fabricshm::kMiB;
            case_.devices.push_back(device);
        }
        if ((flags & 4) != 0) case_.limits.user_quota_bytes = 4 * fabricshm::kMiB;
        case_.limits.max_regions_per_session = 64;
        case_.renew();
        case_.start();
    }

    void play() {
        for (int step = 0; step < kMaxSteps && !input_.empty(); ++step) {
            act();
            for (const Answer& answer : case_.registry->take_answers()) take(reply_of(answer));
            // They cost as much as eight steps do.
            if (step % 8 == 7) FUZZ_REQUIRE(case_.registry->problems().empty());
        }
        FUZZ_REQUIRE(case_.registry->problems().empty());
        finish();
    }

  private:
    void act() {
        const unsigned choice = input_.below(kOtherActs + 3 * kTypes);
        switch (choice) {
            case 0:
            case 1:
                return begin_session();
            case 2:
                return with_session([&](SessionId who) { end(who); });
            case 3:
                return with_session(
                    [&](SessionId who) { case_.registry->connection_lost(who, now_); });
            case 4:
                return resume();
            case 5:
                return pass_time();
            case 6:
                return end_work();
            case 7:
                return restart();
            default:
                return send(type_of(1 + (choice - kOtherActs) % kTypes));
        }
    }

    // A hello is none of the registry's business; its place is that of a type beyond kTypes, so
    // that stories which were written down before go on meaning what they did.
    static Type type_of(unsigned number) {
        const auto type = static_cast<Type>(number);
        return type == Type::kHello ? Type::kArenaCommit : type;
    }

    void begin_session() {
        if (sessions_.size() >= kMaxSessions) return;
        const Peer peer{static_cast<std::int32_t>(100 + sessions_.size()), 1000, 1000};
        const char* const device = input_.below(2) == 0 ? "" : "gpu0";
        const auto made = case_.registry->open_session(peer, "s", kToken, now_, device);
        if (made.ok()) sessions_.emplace_back(*made, peer);
    }
    template <typename Act>
    void with_session(Act act) {
        if (!sessions_.empty()) act(sessions_[input_.below(6) % sessions_.size()].first);
    }
    void end(SessionId who) {
        case_.registry->end_session(who, "story");
        forget(who);
    }
    void forget(SessionId who) {
        std::erase_if(sessions_, [&](const auto& session) { return session.first == who; });
    }
    void resume() {
        if (sessions_.empty()) return;
        const auto& [who, peer] = sessions_[input_.below(6) % sessions_.size()];
        FUZZ_REQUIRE(case_.registry->resume_session(who, peer, kToken).ok());
    }
    void pass_time() {
        now_ += std::chrono::milliseconds(input_.number<std::uint16_t>());
        for (const SessionId ended : case_.registry->expire(now_)) forget(ended);
    }
    // Of a copy or of a growth.
    void end_work() {
        const bool well = input_.below(4) != 0;
        if (!case_.copies.jobs.empty()) {
            case_.end_copy(well);
        } else if (case_.work.grown_done < case_.work.grown.size()) {
            const Result<void> failure = Error{Errc::kNoMemory, 0, "fuzz"};
            case_.work.finish_growth(well ? Result<void>() : failure);
        }
    }

    // As if killed after some prefix of the journal had reached the file.
    void restart() {
        auto& entries = case_.journal.contents.entries;
        for (unsigned lost = input_.below(4); lost > 0 && entries.size() > 1; --lost) {
            entries.pop_back();
        }
        const auto restored = case_.restart(now_);
        FUZZ_REQUIRE(restored.ok() && case_.registry->contradictions().empty());
        const auto known = std::exchange(sessions_, {});
        for (const SessionView& view : case_.registry->snapshot(now_).sessions) {
            const Peer peer{view.pid, 1000, 1000};
            if (input_.below(4) == 0) continue;
            FUZZ_REQUIRE(case_.registry->resume_session(SessionId{view.id}, peer, kToken).ok());
            sessions_.emplace_back(SessionId{view.id}, peer);
        }
        for (const ArenaView& view : case_.registry->snapshot(now_).arenas) {
            if (input_.below(4) == 0) continue;
            case_.registry->found_in_pool(ArenaId{view.id}, NotedWork::make(view.bytes));
        }
    }

    std::uint64_t id() { return input_.below(4) == 0 ? input_.number<std::uint64_t>() : small(); }
    std::uint64_t small() { return input_.below(24); }
    Bytes size() {
        constexpr Bytes kSizes[] = {1, 4096, 4097, 65536, fabricshm::kMiB, 5 * fabricshm::kMiB};
        const unsigned choice = input_.below(8);
        return choice < std::size(kSizes) ? kSizes[choice] : input_.number<std::uint64_t>();
    }
    template <std::size_t bytes>
    void name(char (&field)[bytes]) {
        const unsigned choice = input_.below(8);
        if (choice < 6) {
            field[0] = "abc"[choice % 3];
        } else {
            const std::string text = input_.text(bytes);
            std::memcpy(field, text.data(), text.size());
        }
    }
    std::int64_t wait() { return input_.below(8) == 0 ? input_.number<std::int64_t>() : 1000; }
    template <typename Shaped>
    void shape(Shaped& body) {
        body.dtype = input_.below(16);
        body.ndim = input_.below(4);
        for (std::uint32_t i = 0; i < body.ndim && i < proto::kDimsMax; ++i) {
            body.shape[i] = static_cast<std::int64_t>(size() % 5000);
        }
        body.timeout_ms = wait();
        name(body.name);
    }
    proto::Region region() { return {id(), id(), small(), size(), size()}; }

    void fill(Message& message) {
        const std::string kind = name_of(proto::type_of(message.header));
        if (kind == "arena_open") {
            name(message.arena_open.name);
            message.arena_open.bytes = size() % kMaxArena;
            message.arena_open.flags = input_.below(2);
        } else if (kind.starts_with("arena")) {
            message.arena.arena_id = id();
        } else if (kind.starts_with("region") || kind == "poisoned") {
            message.region = region();
        } else if (kind.starts_with("tensor")) {
            message.tensor.region = region();
            shape(message.tensor);
        } else if (kind.starts_with("shard")) {
            fill_shard(message.shard);
        } else if (kind.starts_with("group")) {
            message.group.arena_id = id();
            message.group.group_id = id();
            name(message.group.name);
            message.group.world = static_cast<std::int32_t>(input_.below(4));
            message.group.rank = static_cast<std::int32_t>(input_.below(4)) - 1;
            message.group.timeout_ms = wait();
        }
    }
    void fill_shard(proto::Shard& shard) {
        constexpr const char* kTargets[] = {"here",        "arena:a",     "arena:b", "arena:c",
                                            "device:gpu0", "device:none", "node:0",  "node:x"};
        shard.header = region();
        shape(shard);
        shard.flags = input_.below(8) == 0 ? 1 : 0;
        const unsigned choice = input_.below(9);
        if (choice < std::size(kTargets)) std::strcpy(shard.target, kTargets[choice]);
        if (choice == std::size(kTargets)) name(shard.target);
    }

    void send(Type type) {
        with_session([&](SessionId who) {
            Message message = proto::make_request(type, ++requests_);
            fill(message);
            if (!proto::check_request(message, sizeof message).ok()) return;
            const bool is_connections = type == Type::kHello || type == Type::kBye ||
                                        type == Type::kTelemetryOpen ||
                                        type == Type::kDirectivesOpen || type == Type::kHosts;
            if (is_connections) return;
            fabricshm::Fd presented;
            if (type == Type::kArenaAdopt) presented = NotedWork::make(4096).fd;
            const auto reply = serve(*case_.registry, who, message, std::move(presented), now_);
            if (reply) take(*reply);
        });
    }
    static void take(const Message& reply) {
        FUZZ_REQUIRE(proto::check_reply(reply, sizeof reply).ok());
    }

    // Everybody gone.
    void finish() {
        for (const SessionView& view : case_.registry->snapshot(now_).sessions) {
            case_.registry->end_session(SessionId{view.id}, "end of story");
        }
        while (!case_.copies.jobs.empty()) case_.end_copy(false);
        while (case_.work.grown_done < case_.work.grown.size()) case_.work.finish_growth();
        case_.outlast(now_ + 24h * 400);
        const Snapshot left = case_.registry->snapshot(now_);
        FUZZ_REQUIRE(case_.registry->problems().empty());
        FUZZ_REQUIRE(left.sessions.empty() && left.arenas.empty() && left.shards.empty());
        FUZZ_REQUIRE(case_.restart(now_).ok());
        FUZZ_REQUIRE(case_.registry->snapshot(now_).arenas.empty());
    }

    Input input_;
    RegistryCase case_;
    TimePoint now_ = kNow;
    std::vector<std::pair<SessionId, Peer>> sessions_;
    std::uint64_t requests_ = 0;
};

void run(Data input) {
    Story(input).play();
}

// Bytes that look like nothing; most steps of a story are small numbers.
std::vector<Buffer> seeds() {
    std::vector<Buffer> all;
    for (unsigned story = 1; story <= 12; ++story) {
        Buffer bytes;
        std::uint32_t random = story * 2654435761U;
        // Two sessions and an arena for each of them, so that what follows has something to act on;
        // in half of the stories one of them is committed as a whole, and a piece of that ends.
        for (const unsigned byte :
             {story % 8, 0U, 0U, 1U, 0U, 9U, 0U, 0U, 4U, 0U, 9U, 1U, 1U, 5U, 0U}) {
            bytes.push_back(static_cast<std::byte>(byte));
        }
        for (const unsigned byte : {8U, 1U, 1U, 4U, 6U, 1U}) {
            if (story > 6) bytes.push_back(static_cast<std::byte>(byte));
        }
        for (int i = 0; i < 400; ++i) {
            random = random * 1664525U + 1013904223U;
            bytes.push_back(static_cast<std::byte>(random >> 24));
        }
        all.push_back(std::move(bytes));
    }
    return all;
}

const Registered kTarget({"requests", run, seeds});

}  // namespace
