#include "fabricd/server/daemon.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <mutex>
#include <utility>

#include "fabricd/pool/arena_memory.hpp"
#include "fabricd/pool/image.hpp"
#include "fabricd/pool/journal.hpp"
#include "fabricd/pool/registry.hpp"
#include "fabricd/server/attach_server.hpp"
#include "fabricd/server/descriptor_plan.hpp"
#include "fabricd/server/event_loop.hpp"
#include "fabricd/server/journal_compactor.hpp"
#include "fabricd/server/journal_schedule.hpp"
#include "fabricd/server/lock_file.hpp"
#include "fabricd/server/pin_desk.hpp"
#include "fabricd/server/pool_worker.hpp"
#include "fabricd/server/remote_hosts.hpp"
#include "fabricd/server/shard_mover.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/identity.hpp"
#include "libfabricshm/os/page_file.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::LogLevel;
using fabricshm::PoolBackend;
using fabricshm::TimePoint;

namespace {

constexpr int kHandshakes = 64;  // connections beyond the sessions: on their way in or out

Limits limits_of(const DaemonOptions& options) {
    Limits limits = options.limits;
    limits.own_uid = ::geteuid();
    return limits;
}

// Of main's and of tests' options alike; the words are the options' names.
Result<void> check(const DaemonOptions& options) {
    const auto absolute = [](const std::string& path) { return !path.empty() && path[0] == '/'; };
    if (!absolute(options.socket_path)) return Error{Errc::kInvalid, 0, "socket_path"};
    if (!absolute(options.state_dir)) return Error{Errc::kInvalid, 0, "state_dir"};
    if ((options.socket_mode & ~0777u) != 0) return Error{Errc::kInvalid, 0, "socket_mode"};
    const Limits& limits = options.limits;
    if (limits.default_arena_bytes == 0) return Error{Errc::kInvalid, 0, "default_arena_bytes"};
    const int least = std::min({limits.max_sessions, limits.max_sessions_per_user,
                                limits.max_arenas_per_user, limits.max_arenas_per_session,
                                limits.max_regions_per_session, limits.max_groups_per_arena});
    if (least < 1) return Error{Errc::kInvalid, 0, "limits"};
    if (options.links) FABRIC_TRY_VOID(fabricshm::check_links(*options.links));
    if (options.adopt_grace < Duration::zero()) return Error{Errc::kInvalid, 0, "adopt_grace"};
    if (options.tick_period <= Duration::zero()) return Error{Errc::kInvalid, 0, "tick_period"};
    return {};
}

// Below this there is nothing to serve: better an error at the start than one for each client.
constexpr int kFewestConnections = 8;

// Of a snapshot in one turn: less than a millisecond's work.
constexpr int kLookedAtInOneTurn = 1024;

}  // namespace

struct Daemon::Impl {
    DaemonOptions options;
    std::unique_ptr<PoolBackend> backend;
    LockFile state_lock;
    std::unique_ptr<Journal> journal;
    NoJournal unwritten;  // of the state until the first rewrite
    std::unique_ptr<MappedArenas> memory;
    std::unique_ptr<EventLoop> loop;
    std::unique_ptr<PoolWorker> worker;
    std::unique_ptr<ShardMover> mover;
    std::unique_ptr<JournalCompactor> compactor;
    std::unique_ptr<Registry> registry;
    SessionPages pages;
    fabricshm::Closer closer;
    fabricshm::Fd links;  // the page of the pool's links; empty where no machine is emulated
    std::unique_ptr<RemoteHosts> remote;
    std::unique_ptr<AttachServer> server;
    std::unique_ptr<DeviceWatch> devices;
    std::unique_ptr<Sampler> sampler;
    TimePoint started = Clock::now();
    TimePoint next_tick = started;
    TimePoint next_error_message = started;
    JournalSchedule schedule;
    bool is_damaged = false;  // the journal that lies there, and is still to be renamed

    RequestStats admin_stats;

    // Held around each piece of a snapshot: one in a turn, however many are asked for at once.
    std::mutex looking;
    // Until run() and after it there is no control thread: then the caller's thread stands in.
    std::mutex standing_in;
    bool running = false;

    ~Impl();
    Result<void> open_state();
    Result<void> restore();
    Result<void> start_empty(const JournalContents& contents, const Error& why);
    Result<void> take_leftovers(bool journal_trusted, bool journal_empty);
    void take_home(PoolImage& image) const;
    Result<void> put_aside();
    Result<void> rewrite_journal();
    void try_rewrite();
    void try_compact();
    void compacted(const Result<void>& done);
    bool disk_has_room() const;
    void report_disk(const Error& error, const char* and_so);
    Result<int> connections_possible() const;
    Result<void> open_socket();
    Result<void> share_links(const fabricshm::LinkImage& image);
    Result<void> serve();
    void pass_time();
    void on_control_thread(const std::function<void()>& task);
    template <typename Ask>
    auto answer(const char* request, Ask ask) {  // what `ask` says there
        std::optional<decltype(ask())> said;
        std::string reason;
        on_control_thread([&] {
            const TimePoint began = Clock::now();
            said = ask();
            admin_stats.count(request, Clock::now() - began);
            if constexpr (requires { said->error(); }) {
                if (!said->ok()) reason = reason_of(said->error());
            }
        });
        // Kept by thread: the caller's own has to have it.
        if constexpr (requires { said->error(); }) {
            if (!reason.empty()) (void)explain(said->error(), "%s", reason.c_str());
        }
        return *std::move(said);
    }
    Snapshot look(const SnapshotParts& parts);
    void look_at_pool(Snapshot& all) const;
    void make_sampler();
    void fill_from_registry(std::vector<SessionClaim>& claims);
    std::string journal_path() const { return options.state_dir + "/journal"; }
    void make_registry();
};

Daemon::Impl::~Impl() {
    if (sampler) sampler->stop();
    // First the loop, so that the worker's last results are taken by none; then the worker, which
    // uses the backend.
    if (loop) loop->close();
    if (worker) worker->stop();
    if (mover) mover->stop();
    if (compactor) compactor->stop();
}

// Twice at most in a daemon's life: a second one replaces one that took half of a bad journal.
void Daemon::Impl::make_registry() {
    const bool has_other_caches = options.visibility != nullptr && !options.visibility->coherent();
    registry = std::make_unique<Registry>(
        limits_of(options),
        Registry::Parts{&unwritten, memory.get(), worker.get(), options.devices,
                        options.links ? &*options.links : nullptr, mover.get(),
                        backend->commits_whole(), backend->is_local(), has_other_caches,
                        why_nothing_is_published(backend->kind(), options.dax_trust_users)});
}

Result<void> Daemon::Impl::open_state() {
    // Held for the daemon's life: two daemons with one journal would give the same memory away
    // twice.
    FABRIC_TRY_VOID(make_directory(options.state_dir, 0700));
    FABRIC_TRY_VOID(check_not_open_to_all(options.state_dir));
    FABRIC_TRY(state_lock, LockFile::take(options.state_dir + "/lock"));
    return {};
}

// Reads the journal and begins a fresh one with what is still true of it.
Result<void> Daemon::Impl::restore() {
    FABRIC_TRY(const JournalContents contents, read_journal(journal_path()));
    journal = std::make_unique<Journal>(journal_path());
    make_registry();
    if (contents.unfinished_bytes != 0) {
        fabricshm::log(LogLevel::kWarning,
                       "the journal's last record was being written when the daemon ended: %llu "
                       "bytes are dropped",
                       static_cast<unsigned long long>(contents.unfinished_bytes));
    }
    // Played into plain data first, then taken over: a registry that got half of a journal which
    // turns out to be wrong is thrown away whole.
    auto image = replay(contents);
    if (image.ok() && !options.host_name.empty()) take_home(*image);
    const bool is_empty = image.ok() && image->sessions.empty() && image->arenas.empty();
    const Result<void> restored = image.ok()
                                      ? registry->restore(*image, started, options.adopt_grace)
                                      : Result<void>(image.error());
    if (!restored.ok()) FABRIC_TRY_VOID(start_empty(contents, restored.error()));
    const bool nobody_lives = contents.damage && contents.damage->other_boot;
    FABRIC_TRY_VOID(take_leftovers(restored.ok() || nobody_lives, is_empty));
    registry->use_journal(journal.get());
    // Left by a daemon that was killed while it wrote it: takes space, and says nothing.
    ::unlink((journal_path() + Compaction::kSuffix).c_str());
    // Until it works nothing is granted, so that what lies there stays true.
    registry->journal_fell_behind(Error{Errc::kSystem, 0, "journal"});
    try_rewrite();
    return {};
}

// Safe: sessions of before are unknown, and their memfds not reachable by others. The file stays
// for people.
Result<void> Daemon::Impl::start_empty(const JournalContents& contents, const Error& why) {
    const std::string what = contents.damage ? describe(*contents.damage) : describe(why);
    if (options.refuses_damage && why.code == Errc::kCorrupt) {
        fabricshm::log(LogLevel::kError, "%s is damaged: %s", journal_path().c_str(), what.c_str());
        return Error{Errc::kCorrupt, 0, "the journal is damaged (state.damaged_journal)"};
    }
    fabricshm::log(LogLevel::kError,
                   "%s can't be used: %s. It is renamed, and the daemon starts empty: the sessions "
                   "of before can't come back",
                   journal_path().c_str(), what.c_str());
    is_damaged = true;
    make_registry();
    return registry->restore(PoolImage{}, started, options.adopt_grace);
}

// Under a name that no other one has, the last of them aside: someone may want to look at each.
Result<void> Daemon::Impl::put_aside() {
    std::string aside = journal_path() + ".bad";
    for (int i = 1; i <= 9 && ::access(aside.c_str(), F_OK) == 0; ++i) {
        aside = journal_path() + ".bad." + std::to_string(i);
    }
    if (::rename(journal_path().c_str(), aside.c_str()) != 0) {
        return Error{Errc::kSystem, errno, "put the damaged journal aside"};
    }
    fabricshm::log(LogLevel::kWarning, "the damaged journal is %s", aside.c_str());
    is_damaged = false;
    return {};
}

// This host was a guest before it took the pool over.
void Daemon::Impl::take_home(PoolImage& image) const {
    const fabricshm::HostIdentity identity = fabricshm::own_host();
    Peer own;
    own.host = options.host_name;
    own.boot = identity.boot;
    own.machine = identity.machine;
    own.pid_namespace = identity.pid_namespace;
    if (const int ours = come_home(image, own); ours != 0) {
        fabricshm::log(LogLevel::kInfo, "%d sessions that were those of a guest are this host's",
                       ours);
    }
}

// Arenas that the device itself remembers (devdax).
Result<void> Daemon::Impl::take_leftovers(bool journal_trusted, bool journal_empty) {
    FABRIC_TRY(std::vector<fabricshm::PoolLeftover> found, backend->list());
    if (!found.empty() && !journal_trusted) {
        // Live sessions may be using them, and nothing says which: an administrator decides.
        return Error{Errc::kCorrupt, 0, "the pool has arenas, but the journal is not readable"};
    }
    if (!found.empty() && journal_empty && !options.visibility_profile.empty()) {
        // After a take-over: processes of guests, which outlive the owner, may write to them.
        return Error{
            Errc::kCorrupt, 0,
            "the pool of several hosts has arenas that the journal does not know: copy the "
            "state.dir of its last owner, or --format when all of its processes have ended"};
    }
    for (fabricshm::PoolLeftover& leftover : found) {
        const ArenaId id{leftover.arena_id};
        if (registry->found_in_pool(id, std::move(leftover.piece))) continue;
        // Made, but never granted: the daemon was killed before it wrote that down.
        fabricshm::log(LogLevel::kWarning, "arena %llu of the pool belongs to no session",
                       shown(id));
        // By the worker, though it has not started yet: it keeps the account of what is used.
        worker->destroy(id);
    }
    return {};
}

Result<void> Daemon::Impl::rewrite_journal() {
    if (is_damaged) FABRIC_TRY_VOID(put_aside());
    FABRIC_TRY_VOID(
        journal->rewrite([this](JournalSink& sink) { return registry->write_journal(sink); }));
    registry->journal_rewritten();
    schedule.rewritten(journal->size());
    return {};
}

// From the state in memory, on this thread: at the start, when the file lacks something, or when it
// does not say what was written.
void Daemon::Impl::try_rewrite() {
    const bool was_behind = registry->journal_behind();
    const auto done = rewrite_journal();
    const bool has_reported = next_error_message != started;
    if (done.ok()) {
        next_error_message = started;
        if (was_behind && has_reported) {
            fabricshm::log(LogLevel::kInfo, "the journal can be written again: grants go on");
        }
        return;
    }
    schedule.rewrite_failed(Clock::now(), disk_has_room());
    if (was_behind) registry->journal_fell_behind(done.error());
    report_disk(done.error(), was_behind ? "; nothing is granted until it can be written" : "");
}

// What is live in the journal is no more than its file.
bool Daemon::Impl::disk_has_room() const {
    return has_room(options.state_dir, journal->size() + Journal::kReserve);
}

void Daemon::Impl::report_disk(const Error& error, const char* and_so) {
    const TimePoint now = Clock::now();
    if (now < next_error_message) return;
    next_error_message = fabricshm::deadline_after(now, std::chrono::minutes(1));
    fabricshm::log(LogLevel::kError, "the disk of %s (state.dir): %s%s", options.state_dir.c_str(),
                   describe(error).c_str(), and_so);
}

// From the file, while the daemon serves: a journal that says all, and has become long.
void Daemon::Impl::try_compact() {
    if (compactor->is_busy()) return;
    if (const auto begun = compactor->begin(*journal); !begun.ok()) compacted(begun);
}

void Daemon::Impl::compacted(const Result<void>& done) {
    if (done.ok()) return schedule.rewritten(journal->size());
    // The other thread has to read the whole journal for each.
    schedule.put_off_compaction(Clock::now());
    if (done.error().code == Errc::kBusy) return;  // it was rewritten as a whole meanwhile
    if (done.error().code == Errc::kCorrupt) {
        fabricshm::log(LogLevel::kError,
                       "%s does not say what was written into it; it is rewritten",
                       journal_path().c_str());
        return try_rewrite();
    }
    report_disk(done.error(), "; the journal grows until it can be rewritten");
}

// As many as are wanted, or as there are descriptors for: out of them the daemon could not even say
// no, and others in this process would be hit.
Result<int> Daemon::Impl::connections_possible() const {
    const int wanted = options.limits.max_sessions + kHandshakes;
    const long limit = raise_descriptor_limit();
    const int possible = connections_for(limit, open_descriptors(), wanted);
    if (possible == wanted) return wanted;
    if (possible < kFewestConnections) {
        return Error{Errc::kInvalid, 0, "the limit of open files (RLIMIT_NOFILE) is too low"};
    }
    fabricshm::log(LogLevel::kWarning,
                   "%ld open files (RLIMIT_NOFILE) are enough for %d connections; limits.sessions "
                   "asks for %d",
                   limit, possible, wanted);
    return possible;
}

Result<void> Daemon::Impl::open_socket() {
    // The admission is asked for the socket's group before it moves on to the server.
    FABRIC_TRY(Admission admission, Admission::make(options.allow_uids, options.socket_group));
    FABRIC_TRY(Listener listener,
               Listener::open({options.socket_path, options.socket_mode}, admission));
    AttachLimits limits;
    FABRIC_TRY(limits.places.all, connections_possible());
    limits.places.per_user = options.limits.max_sessions_per_user + kHandshakes;
    limits.default_arena_bytes = options.limits.default_arena_bytes;
    FABRIC_TRY(limits.instance, fabricshm::instance_of(options.state_dir));
    limits.pool = backend->uuid();
    limits.visibility = options.visibility_profile;
    limits.replies = options.replies;
    limits.cluster.view = [this]() -> std::shared_ptr<const ClusterView> {
        return options.cluster.view ? options.cluster.view() : nullptr;
    };
    limits.cluster.settle = [this](const Survivors& survivors) {
        const auto& settle = options.cluster.settle;
        return settle ? settle(survivors) : Verdict::kNoStore;
    };
    remote = std::make_unique<RemoteHosts>(
        *registry, [this](SessionId session, const char* why, SessionEnd how) {
            server->end_session(session, why, how);
        });
    limits.guests = remote.get();
    server = std::make_unique<AttachServer>(*loop, *registry, pages, closer, std::move(listener),
                                            std::move(admission), limits);
    if (options.links) FABRIC_TRY_VOID(share_links(*options.links));
    return {};
}

// The links of the pool. Of this daemon alone: a later one makes its own, and arenas of before
// share theirs with those of before. Written once, here; from then on it is the sessions', which
// may write what they like.
Result<void> Daemon::Impl::share_links(const fabricshm::LinkImage& image) {
    FABRIC_TRY(
        fabricshm::PageFile made,
        fabricshm::make_page_file("fabric-links", fabricshm::kLinkPageBytes,
                                  fabricshm::PageAccess::kReadWrite, [](std::byte*) noexcept {}));
    FABRIC_TRY(const fabricshm::Mapping page,
               fabricshm::Mapping::map(made.descriptor, 0, fabricshm::kLinkPageBytes, {}));
    fabricshm::format_links(page.data(), image);
    links = std::move(made.descriptor);
    return {};
}

Result<void> Daemon::Impl::serve() {
    // Not before the control thread runs: its sockets and the registry are for this thread alone.
    // Accepting begins here and not in start(): the first hello wants an answer.
    FABRIC_TRY_VOID(server->start(links.get()));
    while (!loop->stopping()) {
        server->deliver();
        FABRIC_TRY_VOID(
            loop->turn(std::min({server->next_deadline(), remote->next_deadline(), next_tick})));
        pass_time();
    }
    return {};
}

void Daemon::Impl::pass_time() {
    const TimePoint now = Clock::now();
    if (now >= remote->next_deadline()) {
        remote->judge(options.cluster.view ? options.cluster.view() : nullptr, now);
    }
    server->expire(now);
    // When the state got ahead of a journal that could not be written, or may be about to.
    if (registry->journal_failing()) {
        if (schedule.may_rewrite(now, [this] { return disk_has_room(); })) try_rewrite();
    } else if (schedule.may_compact(now, journal->size())) {
        try_compact();
    }
    if (now < next_tick) return;
    next_tick = fabricshm::deadline_after(now, options.tick_period);
    if (options.on_tick) options.on_tick();
}

void Daemon::Impl::on_control_thread(const std::function<void()>& task) {
    std::promise<void> done;
    {
        // Under the lock, so that the control thread cannot end between the question and the post.
        const std::lock_guard lock(standing_in);
        if (!running) return task();
        if (!loop->post([&] {
                task();
                done.set_value();
            })) {
            return task();
        }
    }
    done.get_future().wait();
}

void Daemon::Impl::make_sampler() {
    devices = std::make_unique<DeviceWatch>(options.device_sources
                                                ? options.device_sources()
                                                : std::vector<std::unique_ptr<DeviceSource>>{});
    sampler = std::make_unique<Sampler>(
        pages, *devices, options.sampling,
        [this](std::vector<SessionClaim>& claims) { fill_from_registry(claims); });
}

// On the sampler's thread: what a session says of its memory, its rank and its shards is replaced
// by what the registry says, and that is for the control thread alone.
void Daemon::Impl::fill_from_registry(std::vector<SessionClaim>& claims) {
    on_control_thread([&] {
        for (SessionClaim& claim : claims) {
            const auto books =
                registry->account_of(SessionId{claim.session_id}, ArenaId{claim.arena_id},
                                     GroupId{claim.group_id}, claim.rank);
            claim.member = books.member;
            claim.memory_used = books.owned;
            claim.memory_denied = books.denied;
            claim.shards_open = registry->shards_open(SessionId{claim.session_id}, claim.shards);
        }
    });
}

// Piece by piece, and what others ask for in between.
Snapshot Daemon::Impl::look(const SnapshotParts& parts) {
    SnapshotWalk walk{parts};
    const auto look_on = [&] {
        const bool is_first = walk.stage == SnapshotWalk::Stage::kBegin;
        if (is_first) look_at_pool(walk.all);
        return registry->look_on(walk, kLookedAtInOneTurn, Clock::now());
    };
    for (bool is_over = false; !is_over;) {
        const std::lock_guard lock(looking);
        is_over = answer("admin_snapshot", look_on);
    }
    return std::move(walk.all);
}

void Daemon::Impl::look_at_pool(Snapshot& all) const {
    all.uptime_ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - started).count();
    if (registry->journal_failing()) {
        all.alarms.push_back(
            "the disk of " + options.state_dir +
            " (state.dir): nothing is granted: " + describe(registry->journal_refusal()));
    }
    const fabricshm::PoolTotals totals = worker->totals();
    all.pool = {backend->kind(), backend->describe(), totals.capacity, totals.used,
                options.machine};
}

Daemon::Daemon(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Daemon::~Daemon() = default;

Result<std::unique_ptr<Daemon>> Daemon::start(DaemonOptions options,
                                              std::unique_ptr<PoolBackend> backend) {
    FABRIC_TRY_VOID(check(options));
    auto impl = std::make_unique<Impl>();
    impl->options = std::move(options);
    impl->backend = std::move(backend);
    impl->memory = std::make_unique<MappedArenas>(impl->options.visibility);
    FABRIC_TRY_VOID(impl->open_state());
    FABRIC_TRY(EventLoop loop, EventLoop::make());
    impl->loop = std::make_unique<EventLoop>(std::move(loop));
    EventLoop* shared_loop = impl->loop.get();
    impl->worker = std::make_unique<PoolWorker>(
        *impl->backend,
        [shared_loop](std::function<void()> task) { return shared_loop->post(std::move(task)); });
    impl->mover = std::make_unique<ShardMover>(
        [shared_loop](std::function<void()> task) { return shared_loop->post(std::move(task)); },
        impl->options.limits.move_bytes_per_second);
    impl->compactor = std::make_unique<JournalCompactor>(
        [shared_loop](std::function<void()> task) { return shared_loop->post(std::move(task)); });
    FABRIC_TRY_VOID(impl->restore());
    FABRIC_TRY_VOID(impl->open_socket());
    impl->make_sampler();
    return std::unique_ptr<Daemon>(new Daemon(std::move(impl)));
}

Result<void> Daemon::run() {
    // The worker and the mover before any client can ask for something, the sampler after
    // `running`, since it asks the control thread from the first moment on.
    Impl& impl = *impl_;
    impl.worker->start(
        [&impl](ArenaId id, Result<fabricshm::PoolPiece> piece) {
            impl.registry->arena_made(id, std::move(piece));
        },
        [&impl](ArenaId id, Result<fabricshm::PoolPiece> piece) {
            impl.registry->arena_adopted(id, std::move(piece));
        },
        [&impl](ArenaId id, Bytes to, const Result<void>& done) {
            impl.registry->arena_grown(id, to, done);
        });
    impl.mover->start([&impl](ShardId shard, Result<fabricshm::ShardWord> seen) {
        impl.registry->shard_copied(shard, std::move(seen));
    });
    impl.compactor->start([&impl](const Result<void>& done) { impl.compacted(done); });
    {
        const std::lock_guard lock(impl.standing_in);
        impl.running = true;
    }
    impl.sampler->start();
    const auto served = impl.serve();
    {
        const std::lock_guard lock(impl.standing_in);
        // In one step with the close: a task that was posted before runs in close(), one after it
        // runs on its caller's thread.
        impl.running = false;
        impl.loop->close();
    }
    // Not before: it may be waiting for the control thread, which from here on is the one that
    // asks.
    impl.sampler->stop();
    impl.worker->stop();
    impl.mover->stop();
    impl.compactor->stop();
    impl.server.reset();  // the socket goes now: a successor may start before this object is gone
    // No session could come back to what it says, so it does not stay behind. Still under the lock.
    if (served.ok() && impl.registry->idle()) ::unlink(impl.journal_path().c_str());
    return served;
}

void Daemon::stop() noexcept {
    impl_->loop->stop();
}

Snapshot Daemon::snapshot(const SnapshotParts& parts) {
    Snapshot picture = impl_->look(parts);
    sampler().look([&](const Sample& sample) {
        for (const FaultyDevice& faulty : sample.faulty) {
            for (DeviceView& device : picture.devices) {
                if (device.spec.name == faulty.name) device.faults = words_of(faulty.faults);
            }
        }
    });
    return picture;
}

RequestStats Daemon::request_stats() {
    return impl_->answer("admin_stats", [&] {
        RequestStats all = impl_->server ? impl_->server->stats() : RequestStats{};
        all.take_admin(impl_->admin_stats);
        return all;
    });
}

Places Daemon::places(const std::vector<ShardId>& shards) {
    return impl_->answer("admin_places",
                         [&] { return impl_->registry->places(shards, Clock::now()); });
}

// The pages on the caller's thread: what a session shows is not the control thread's business.
std::vector<WaitingView> Daemon::waiting() {
    const auto shown = impl_->pages.waits();
    return impl_->answer("admin_waiting",
                         [&] { return impl_->registry->waiting(shown, Clock::now()); });
}

std::optional<ShardView> Daemon::shard(const std::string& name) {
    return impl_->answer("admin_shard", [&] { return impl_->registry->shard(name); });
}

const Sampler& Daemon::sampler() const noexcept {
    return *impl_->sampler;
}

void Daemon::share_cluster(ClusterDesk cluster) {
    impl_->options.cluster = std::move(cluster);
}

void Daemon::write_out_by(std::function<Result<void>(const OpenRange& range)> flush) {
    impl_->remote->write_out_by(std::move(flush), [this](std::function<void()> task) {
        return impl_->loop->post(std::move(task));
    });
}

SessionPages& Daemon::pages() noexcept {
    return impl_->pages;
}

Result<void> Daemon::move_shard(const MoveOrder& order,
                                std::function<void(const Result<void>&)> done) {
    return impl_->answer("admin_move",
                         [&] { return impl_->registry->move_shard(order, std::move(done)); });
}

Result<QuotaState> Daemon::set_quota(const QuotaOrder& order) {
    return impl_->answer("admin_quota",
                         [&] { return impl_->registry->set_quota(order, Clock::now()); });
}

Result<void> Daemon::shift_quotas(const std::vector<QuotaShift>& shifts) {
    return impl_->answer("admin_quota",
                         [&] { return impl_->registry->shift_quotas(shifts, Clock::now()); });
}

void Daemon::on_server(const char* request, const std::function<void(AttachServer&)>& what) {
    impl_->answer(request, [&] {
        if (!impl_->server) return false;
        what(*impl_->server);
        impl_->server->deliver();
        return true;
    });
}

void Daemon::take_guest(fabricshm::UnixSocket socket, const Peer& peer) {
    on_server("guest_client", [&](AttachServer& server) { server.take(std::move(socket), peer); });
}

void Daemon::on_guests(const char* request, const std::function<void(RemoteHosts&)>& what) {
    on_server(request, [&](AttachServer&) { what(*impl_->remote); });
}

Bytes Daemon::used_bytes() const {
    return impl_->worker->totals().used;
}

Result<std::vector<RemoteSession>> Daemon::greet_guest(const Peer& host) {
    return impl_->answer("guest_greeting", [&]() -> Result<std::vector<RemoteSession>> {
        if (!impl_->server) return std::vector<RemoteSession>{};
        auto seen = impl_->remote->greet(host);
        impl_->server->deliver();
        return seen;
    });
}

int Daemon::fence_guest(const std::string& host) {
    return impl_->answer("guest_fence", [&] {
        if (!impl_->server) return 0;
        const int ended = impl_->remote->fence(host);
        impl_->server->deliver();
        return ended;
    });
}

void Daemon::drain(bool on) {
    impl_->answer("admin_drain", [&] {
        impl_->registry->set_draining(on);
        return on;
    });
}

}  // namespace fabricd
