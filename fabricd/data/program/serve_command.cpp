#include "fabricd/data/program/serve_command.hpp"

#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>

#include "fabricd/data/program/data_link.hpp"
#include "fabricd/data/program/outcome.hpp"
#ifdef FABRIC_DATA_PEERS
#include "fabricd/data/serve/cache_chunks.hpp"
#endif
#include "fabricd/data/serve/cache_arena.hpp"
#include "fabricd/data/serve/data_service.hpp"
#include "fabricd/data/serve/writes.hpp"
#include "fabricd/server/event_loop.hpp"
#include "fabricd/server/lock_file.hpp"
#include "fabricd/service/notify.hpp"
#include "fabricd/service/signals.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/client/published_arena.hpp"
#include "libfabricshm/client/socket_path.hpp"
#include "libfabricshm/os/random.hpp"
#include "libfabricshm/shm/data_layout.hpp"

namespace fabricd {

using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::PublishedArena;
using fabricshm::Session;

namespace {

// Of disks and servers that are at work when the service is to end. SIGALRM ends it then.
constexpr unsigned kEndSeconds = 15;
constexpr auto kUploadTime = 8s;
constexpr int kArenaNames = 8;
constexpr std::size_t kSocketPathRoom = sizeof(sockaddr_un::sun_path) - 1;
// Of the memory a cache keeps an eighth, if its file does not say how much.
constexpr Bytes kPartKept = 8;
constexpr auto kLastWord = 1s;

std::string too_long(const std::string& socket) {
    return socket + ": a socket's path has at most " + std::to_string(kSocketPathRoom) +
           " bytes (--socket)";
}

struct Published {
    std::shared_ptr<PublishedArena> arena;
    std::string name;
    DataTables tables;
    bool is_fresh = true;
    Bytes floor = 0;  // 0: it stays whole
};

std::uint64_t random_generation() {
    std::uint64_t generation = 0;
    const auto filled = fabricshm::fill_random(std::as_writable_bytes(std::span(&generation, 1)));
    if (!filled.ok()) generation = static_cast<std::uint64_t>(fabricshm::monotonic_ns());
    return generation | 1;  // never 0
}

// False: what is there is no table of ours, and readers may have pinned what it says.
bool take_tables(Published& published, std::uint64_t lines) {
    const auto planned =
        fabricshm::plan_data_tables(random_generation(), lines, published.arena->bytes());
    if (!planned.ok()) return false;
    published.tables = *planned;
    published.is_fresh = true;
    if (published.arena->is_new()) return true;
    const auto found =
        fabricshm::read_data_header(published.arena->data(), published.arena->bytes());
    // Ended before its tables were there: no reader has found any.
    if (!found.ok()) return found.error().code == Errc::kNotFound;
    const bool is_same = found->lines == planned->lines &&
                         found->arena_bytes == planned->arena_bytes &&
                         found->lines_offset == planned->lines_offset &&
                         found->chunks_offset == planned->chunks_offset;
    if (!is_same) return false;
    published.tables = *found;
    published.is_fresh = false;
    return true;
}

// What the cache keeps whatever others need: its tables, and a part of its memory.
Bytes floor_of(const DataSpec& spec, Bytes bytes, std::uint64_t lines) {
    const auto planned = fabricshm::plan_data_tables(1, lines, bytes);
    const Bytes tables = planned.ok() ? planned->chunks_offset : 0;
    const Bytes keeps = spec.memory_min != 0 ? spec.memory_min : bytes / kPartKept;
    const Bytes chunks = std::max(keeps, 2 * fabricshm::kDataChunkBytes);
    return std::min(fabricshm::round_up(tables + chunks, fabricshm::kPageBytes), bytes);
}

Error no_room(const Error& error, Bytes floor) {
    const std::string words = explanation_of(error);
    return fabricshm::explain(error,
                              "%s; the cache can't do without %s (tables and memory_min), and no "
                              "other cache gave them in time",
                              words.c_str(), fabricshm::format_bytes(floor).c_str());
}

// An arena of this service's name; under a further one when that is another's, of another size, or
// can't be taken up while readers have it.
Result<Published> publish(const std::shared_ptr<Session>& session, const DataSpec& spec) {
    const Bytes bytes = fabricshm::round_up(spec.memory, 2 * fabricshm::kMiB);
    const std::uint64_t lines = spec.files != 0 ? spec.files : default_lines(bytes);
    std::vector<std::string> readers;
    if (!spec.group.empty()) readers.push_back("group:" + spec.group);
    Error last{Errc::kBusy, 0, "publish arena"};
    for (int number = 0; number < kArenaNames; ++number) {
        Published published;
        published.name = "data-" + std::to_string(::geteuid());
        if (number != 0) published.name += "-" + std::to_string(number);
        const Bytes floor = floor_of(spec, bytes, lines);
        auto arena = PublishedArena::publish_elastic(session, published.name, bytes, floor, readers,
                                                     session->default_deadline());
        if (!arena.ok()) {
            last = arena.error();
            if (last.code == Errc::kExists || last.code == Errc::kBusy) continue;
            return last.code == Errc::kNoMemory ? no_room(last, floor) : last;
        }
        published.arena = std::move(arena).value();
        if (published.arena->is_elastic()) published.floor = floor;
        if (take_tables(published, lines)) return published;
        fabricshm::log(fabricshm::LogLevel::kWarning,
                       "the tables in arena %s can't be taken up; its readers keep what they have",
                       published.name.c_str());
        published.arena->unpublish();
    }
    return last;
}

// Silos whose chunks are asked of other hosts first.
Result<void> ask_peers(const PeersSpec& peers, DataService::Options& options) {
    if (peers.members.empty()) return {};
#ifdef FABRIC_DATA_PEERS
    options.before = [peers](const SiloSpec& spec, std::unique_ptr<Silo> silo) {
        return with_peers(peers, spec, std::move(silo));
    };
    return {};
#else
    static_cast<void>(options);
    return fabricshm::explain({Errc::kUnsupported, 0, "open peers"},
                              "peers: this build has none (it was made without libcurl, OpenSSL or "
                              "Boost)");
#endif
}

/// What a service has besides its readers: files that jobs write, and other hosts.
struct Company {
    std::unique_ptr<Writes> writes;
#ifdef FABRIC_DATA_PEERS
    std::unique_ptr<CacheChunks> chunks;
    std::unique_ptr<ChunkServer> server;
#endif

    Result<void> start(const DataSpec& spec, const std::string& socket, DataService& service,
                       EventLoop& loop) {
        Writes::Options options;
        options.log = socket + ".writes";
        FABRIC_TRY(writes, Writes::start(options, service.parts(), loop));
        service.set_writes(writes.get());
#ifdef FABRIC_DATA_PEERS
        chunks = std::make_unique<CacheChunks>(service.parts(), loop);
        FABRIC_TRY(server, serve_peers(spec.peers, *chunks));
#else
        static_cast<void>(spec);
#endif
        return {};
    }
    /// Behind the loop's last task, so that no thread waits for one.
    void end(DataService& service) {
#ifdef FABRIC_DATA_PEERS
        server.reset();
#endif
        service.set_writes(nullptr);
        writes.reset();
    }
};

DataService::Options options_of(const DataSpec& spec, const std::string& socket,
                                const Published& published) {
    DataService::Options options;
    options.spec = spec;
    options.socket = socket;
    options.names = socket + ".names";
    options.arena_name = published.name;
    options.arena = published.arena->data();
    options.tables = published.tables;
    options.is_fresh = published.is_fresh;
    options.floor = published.floor;
    options.usable = std::min(published.arena->usable(), published.tables.arena_bytes);
    return options;
}

std::string folder_of(const std::string& path) {
    const auto slash = path.rfind('/');
    return slash == std::string::npos ? "." : path.substr(0, std::max<std::size_t>(slash, 1));
}

// Files that only the cache has are uploaded before the service ends, while there is time.
bool may_end(const std::atomic<bool>& is_asked, const Writes& writes, TimePoint& deadline) {
    if (!is_asked.load(std::memory_order_relaxed)) return false;  // nothing else comes with it
    if (deadline == fabricshm::kNoWait) deadline = Clock::now() + kUploadTime;
    return writes.stats().pending == 0 || Clock::now() >= deadline;
}

int run(DataService& service, CacheArena& memory, EventLoop& loop, const Writes& writes,
        const std::atomic<bool>& is_asked) {
    TimePoint deadline = fabricshm::kNoWait;
    const auto watchdog = watchdog_interval();
    auto next_word = Clock::now();
    while (!may_end(is_asked, writes, deadline)) {
        const auto turned = loop.turn(Clock::now() + service.tick_interval());
        if (!turned.ok()) return fail(kFailed, describe(turned.error()));
        const auto now = Clock::now();
        service.tick(now);
        if (!memory.arena().is_held()) {
            return fail(kFailed, "the daemon has lost this session; started again it goes on");
        }
        if (watchdog && now >= next_word) {
            notify_systemd("WATCHDOG=1");
            next_word = now + *watchdog / 2;
        }
    }
    return 0;
}

void log_start(const std::string& socket, const Published& published, Bytes capacity) {
    fabricshm::log(fabricshm::LogLevel::kInfo, "serving at %s from arena %s, %s%s", socket.c_str(),
                   published.name.c_str(), fabricshm::format_bytes(capacity).c_str(),
                   published.is_fresh ? "" : ", taken up again");
}

Result<std::shared_ptr<Session>> attach(const std::string& daemon) {
    fabricshm::SessionOptions options;
    options.sockets = fabricshm::socket_paths(daemon);
    options.label = "fabric-data";
    return Session::open(options);
}

}  // namespace

int serve(const ServeOptions& options) {
    // EFBIG is an answer: of the spill beyond RLIMIT_FSIZE.
    std::signal(SIGXFSZ, SIG_IGN);
    auto loop = EventLoop::make();
    std::atomic<bool> is_asked_to_end{false};
    // Behind what its actions use, so that it ends before them.
    auto signals = SignalThread::block();
    if (!signals.ok() || !loop.ok()) return fail(kFailed, "can't watch signals");

    const std::string socket = options.socket.empty() ? default_data_socket() : options.socket;
    // Before anything is made next to it.
    if (socket.size() > kSocketPathRoom) return fail(kBadUsage, too_long(socket));
    if (const auto made = make_directory(folder_of(socket), 0700); !made.ok()) {
        return fail(kFailed, explanation_of(made.error()));
    }
    // Before the arena: a second service would publish another one first.
    const auto lock = LockFile::take(socket + ".lock");
    if (!lock.ok()) {
        return fail(kFailed, lock.error().code == Errc::kBusy
                                 ? "a service has " + socket + " already"
                                 : explanation_of(lock.error()));
    }
    auto session = attach(options.daemon);
    if (!session.ok()) return fail(kFailed, explanation_of(session.error()));
    auto published = publish(*session, options.spec);
    if (!published.ok()) {
        return fail(kFailed, "the arena: " + explanation_of(published.error()));
    }

    CacheArena memory(published->arena);
    DataService::Options made = options_of(options.spec, socket, *published);
    if (const auto peers = ask_peers(options.spec.peers, made); !peers.ok()) {
        return fail(kBadUsage, explanation_of(peers.error()));
    }
    auto service = DataService::start(std::move(made), memory, *loop);
    if (!service.ok()) {
        const Errc code = service.error().code;
        const bool is_configuration = code == Errc::kInvalid || code == Errc::kUnsupported;
        return fail(is_configuration ? kBadUsage : kFailed, explanation_of(service.error()));
    }
    Company company;
    const auto joined = company.start(options.spec, socket, **service, *loop);
    if (!joined.ok()) return fail(kBadUsage, explanation_of(joined.error()));
    signals->start({[&](int, SignalThread::Sender) {
                        is_asked_to_end.store(true, std::memory_order_relaxed);  // see may_end()
                        static_cast<void>(loop->post([] {}));
                    },
                    [] {}});
    log_start(socket, *published, (*service)->parts().cache.capacity());
    notify_systemd("READY=1", kLastWord);
    const int code = run(**service, memory, *loop, *company.writes, is_asked_to_end);
    notify_systemd("STOPPING=1", kLastWord);
    ::alarm(kEndSeconds);
    loop->close();
    company.end(**service);
    service->reset();
    (*session)->close();
    return code;
}

}  // namespace fabricd
