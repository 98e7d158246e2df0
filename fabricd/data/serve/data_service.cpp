#include "fabricd/data/serve/data_service.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "fabricd/data/silo/open_silo.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/os/sealed_file.hpp"
#include "libfabricshm/shm/data_layout.hpp"
#include "libfabricshm/shm/data_listing.hpp"

namespace fabricd {

using namespace std::chrono_literals;
using namespace fabricshm::proto;
using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::kNoLine;

namespace {

constexpr std::uint64_t kReadTag = std::uint64_t{1} << 63;
// Reads that a killed service had asked a disk for have ended by then.
constexpr Duration kSettle = 60s;
constexpr Duration kBusyTick = 2ms;
constexpr Duration kSlowTick = 50ms;
// A line for so many bytes of memory: files are seldom smaller.
constexpr Bytes kBytesALine = 16 * fabricshm::kKiB;
constexpr std::uint64_t kMinLines = 65'536;

RequestOutcome malformed() {
    return {Errc::kInvalid, 0, "the request is malformed"};
}

}  // namespace

std::uint64_t default_lines(Bytes memory) noexcept {
    // Never more than an eighth of the memory.
    return std::min(std::max(kMinLines, memory / kBytesALine),
                    memory / 8 / sizeof(fabricshm::DataLine));
}

DataService::DataService(Options options, std::unique_ptr<SecondTier> tier, PublishedMemory& memory,
                         EventLoop& loop)
    : options_(std::move(options)),
      memory_(memory),
      loop_(loop),
      tier_(std::move(tier)),
      cache_(options_.arena, options_.tables, memory, tier_.get()),
      files_(options_.spec.silos, cache_),
      fills_({cache_, files_, workers_, options_.spec.silos, options_.spec.silo_timeout}),
      listings_({files_, fills_, workers_, options_.spec.silos, options_.tables.generation,
                 options_.spec.silo_timeout,
                 [this](std::function<void()> task) { return loop_.post(std::move(task)); }}),
      plans_({cache_, files_, fills_, options_.spec.silos}),
      saved_plans_({plans_, listings_, options_.spec.silos, tier_.get()}),
      notes_(memory),
      parts_{options_.spec,
             cache_,
             files_,
             fills_,
             listings_,
             plans_,
             notes_,
             workers_,
             [this](const Fetch& fetch, std::uint32_t silo, std::function<void(FillDone)> done) {
                 Fetch tagged = fetch;
                 tagged.tag = kReadTag | ++last_read_;
                 reads_[tagged.tag] = std::move(done);
                 workers_[silo]->fetch(tagged, FetchPriority::kAhead);
             },
             [this](std::uint64_t line) { return memory_.holders(line); },
             [this] { return memory_.processes(); },
             options_.arena_name,
             tier_.get(),
             nullptr},
      walks_(parts_),
      share_(cache_, memory, options_.floor, [this] { plans_.resized(); }),
      commands_(parts_, walks_),
      settled_(Clock::now() + kSettle) {
    if (options_.usable != 0) CacheEnd(cache_).begin_with(options_.usable);
    if (tier_ != nullptr) tier_->set_files(files_);
    files_.on_gone = [this](std::uint64_t id) {
        fills_.gone(id);
        plans_.gone(id);
    };
}

// What there is behind memory and spill: other hosts, where they are asked, and the silo.
Result<std::unique_ptr<Silo>> DataService::open_beyond(const SiloSpec& spec,
                                                       std::span<std::byte> memory) const {
    FABRIC_TRY(auto silo, options_.open ? options_.open(spec, memory) : open_silo(spec, memory));
    if (!options_.before || memory.empty()) return silo;
    return options_.before(spec, std::move(silo));
}

Result<void> DataService::open_silos() {
    // No more than stays: a ring would go on to use the pages that it has pinned when the daemon
    // has taken them back and given others for them. What lies behind is pinned read by read.
    const Bytes stays = options_.floor != 0 ? options_.floor : options_.tables.arena_bytes;
    const std::span<std::byte> memory(options_.arena + options_.tables.chunks_offset,
                                      stays - options_.tables.chunks_offset);
    for (const SiloSpec& spec : options_.spec.silos) {
        SiloWorker::Options worker;
        worker.silo_timeout = options_.spec.silo_timeout;
        worker.memory = memory;
        worker.on_fill = [this](FillDone done) {
            loop_.post([this, done = std::move(done)]() mutable { filled(std::move(done)); });
        };
        worker.open = [this](const SiloSpec& silo, std::span<std::byte> into) {
            const auto open = [this, silo, into] { return open_beyond(silo, into); };
            return tier_ != nullptr ? tier_->open_silo(silo, into, open) : open();
        };
        FABRIC_TRY(auto started, SiloWorker::start(spec, std::move(worker)));
        const auto silo = static_cast<std::uint32_t>(workers_.size());
        if (const auto& away = started->away_at_start()) {
            fills_.note_silo(silo, outcome_of(*away), Clock::now());
        }
        workers_.push_back(std::move(started));
    }
    return {};
}

Result<std::unique_ptr<DataService>> DataService::start(Options options, PublishedMemory& memory,
                                                        EventLoop& loop) {
    FABRIC_TRY(auto tier, SecondTier::open(options.spec));
    std::unique_ptr<DataService> service(
        new DataService(std::move(options), std::move(tier), memory, loop));
    DataService& self = *service;
    FABRIC_TRY_VOID(self.files_.open(self.options_.names, self.options_.is_fresh));
    FABRIC_TRY_VOID(self.open_silos());
    const DataServer::Options server{self.options_.socket, self.options_.spec.group};
    FABRIC_TRY(self.server_, DataServer::open(server, loop, [&self](DataRequest request) {
                   self.handle(std::move(request));
               }));
    self.server_->on_end = [&self](std::uint64_t connection) {
        self.plans_.end_connection(connection);
        self.saved_plans_.end_connection(connection);
        if (self.writes_ != nullptr) self.writes_->end_connection(connection);
    };
    // What readers viewed while there was no service is not counted now.
    self.notes_.read([](std::uint64_t) {});
    self.saved_plans_.take_up(Clock::now());
    return service;
}

DataService::~DataService() {
    server_.reset();
    // Behind this no worker writes into the arena, and none posts.
    workers_.clear();
}

void DataService::filled(FillDone done) {
    const std::uint64_t tag = done.fetched.tag;
    if ((tag & kReadTag) == 0) {
        const KnownFile* file = files_.find(cache_.fields(tag).file);
        const auto silo = file != nullptr ? std::optional(file->silo) : std::nullopt;
        const bool has_changed = done.fetched.outcome == FetchOutcome::kChanged;
        fills_.done(done, Clock::now());
        // A reader that lists again is to find the version that is there by now.
        if (has_changed && silo) listings_.expire(*silo);
        return;
    }
    const auto found = reads_.find(tag);
    const auto take = std::move(found->second);
    reads_.erase(found);
    take(std::move(done));
}

void DataService::tick(TimePoint now) {
    if (!plans_.is_idle()) {
        notes_.read([this](std::uint64_t line) { plans_.viewed(line); });
        plans_.tick(now);
    }
    const bool has_plans = !plans_.is_idle();
    if (std::exchange(had_plans_, has_plans) && !has_plans && tier_ != nullptr) {
        tier_->release_kept();
    }
    if (listings_.is_making()) listings_.make_some();
    if (!walks_.is_idle()) walks_.tick(now);
    if (writes_ != nullptr) writes_->tick(now);
    share_.tick(notes_, fills_.waiting(now), now);
    if (now < next_slow_tick_) return;
    next_slow_tick_ = now + kSlowTick;
    notes_.read([this](std::uint64_t line) { plans_.viewed(line); });
    fills_.tick(now);
    listings_.tick(now);
    saved_plans_.tick(now);
    if (now >= settled_) {
        cache_.settle();
        settled_ = TimePoint::max();
    }
}

Duration DataService::tick_interval() const {
    if (listings_.is_making()) return Duration::zero();
    const bool is_idle = plans_.is_idle() && walks_.is_idle() && !share_.is_shrinking();
    return is_idle ? kSlowTick : kBusyTick;
}

// --- requests ---

void DataService::reply(const DataRequest& request, const RequestOutcome& outcome,
                        std::string payload, std::shared_ptr<const fabricshm::Fd> descriptor) {
    DataMessage message;
    message.type = request.message.type;
    message.request_id = request.message.request_id;
    message.status = outcome.code;
    message.detail = outcome.detail;
    message.payload = outcome.code == Errc::kOk ? std::move(payload) : outcome.text;
    server_->answer(request.connection, std::move(message), std::move(descriptor));
}

void DataService::handle(DataRequest request) {
    switch (request.message.type) {
        case DataType::kHello:
            return hello(request);
        case DataType::kList:
            return list(request);
        case DataType::kFetch:
            return fetch(request);
        case DataType::kPlan:
            return plan(request);
        case DataType::kStat:
            return stat(request);
        case DataType::kCommand:
            return command(request);
        case DataType::kCreate:
        case DataType::kWrite:
        case DataType::kCommit:
        case DataType::kAbort:
            return write(std::move(request));
    }
}

// A copy of the request without what was to be read once: for an answer that comes later.
static DataRequest address_of(const DataRequest& request) {
    DataRequest address;
    address.connection = request.connection;
    address.peer = request.peer;
    address.message.type = request.message.type;
    address.message.request_id = request.message.request_id;
    return address;
}

void DataService::hello(const DataRequest& request) {
    DataHelloReply hello{};
    std::strncpy(hello.arena, options_.arena_name.c_str(), sizeof hello.arena - 1);
    hello.generation = options_.tables.generation;
    reply(request, {}, data_payload(hello));
}

void DataService::list(const DataRequest& request) {
    std::string_view path;
    const auto wanted = data_fixed<DataListRequest>(request.message.payload, &path);
    if (!wanted || !check(*wanted).ok()) return reply(request, malformed());
    auto address = std::make_shared<DataRequest>(address_of(request));
    listings_.list(
        std::string(path), (wanted->flags & kDataListRecursive) != 0, false,
        [this, address](const RequestOutcome& outcome,
                        const std::shared_ptr<const Listing>& listing) {
            if (outcome.code != Errc::kOk) return reply(*address, outcome);
            const DataListReply answer{listing->id, listing->files.size()};
            // The descriptor lives as long as its listing.
            reply(*address, {}, data_payload(answer),
                  std::shared_ptr<const fabricshm::Fd>(listing, &listing->descriptor));
        },
        Clock::now());
}

void DataService::fetch(const DataRequest& request) {
    const auto wanted = data_fixed<DataFetchRequest>(request.message.payload);
    if (!wanted || !check(*wanted).ok()) return reply(request, malformed());
    const KnownFile* file = files_.find(wanted->file);
    if (file == nullptr) {
        return reply(request, {Errc::kChanged, 0, "another version is there by now"});
    }
    const std::uint64_t chunks = fabricshm::data_chunks(file->facts.bytes);
    const bool is_its = file->first_line != kNoLine && wanted->line >= file->first_line &&
                        wanted->line - file->first_line < chunks;
    if (!is_its) return reply(request, malformed());
    auto address = std::make_shared<DataRequest>(address_of(request));
    const auto priority =
        wanted->priority == kDataOnDemand ? FetchPriority::kOnDemand : FetchPriority::kAhead;
    fills_.want(
        *file, wanted->line - file->first_line, priority, plans_.kind_for(*file),
        [this, address](const RequestOutcome& outcome) { reply(*address, outcome); }, Clock::now());
}

void DataService::plan(const DataRequest& request) {
    const auto wanted = data_fixed<DataPlanRequest>(request.message.payload);
    if (!wanted || !check(*wanted).ok()) return reply(request, malformed());
    const auto listing = listings_.find(wanted->listing);
    if (listing == nullptr || listing->is_virtual) {
        return reply(request, {Errc::kNotFound, 0, "the listing is too old: list again"});
    }
    const RequestOutcome taken =
        plans_.announce(*wanted, listing, request.connection, Clock::now());
    if (taken.code == Errc::kOk) saved_plans_.announced(request.connection, request.peer.pid);
    reply(request, taken);
}

void DataService::stat(const DataRequest& request) {
    auto address = std::make_shared<DataRequest>(address_of(request));
    listings_.stat(
        request.message.payload, false,
        [this, address](const RequestOutcome& outcome, PathFacts facts) {
            if (outcome.code != Errc::kOk) return reply(*address, outcome);
            DataStatReply answer{};
            answer.first_line = kNoLine;
            answer.generation = options_.tables.generation;
            answer.flags = facts.is_folder ? fabricshm::kEntryFolder : 0;
            if (const KnownFile* file = files_.find(facts.file)) {
                answer.bytes = file->facts.bytes;
                answer.first_line = file->first_line;
                std::copy(file->facts.version.words.begin(), file->facts.version.words.end(),
                          answer.version);
                answer.file = file->id;
                answer.mtime_ns = files_.mtime_of(*file);
            }
            reply(*address, {}, data_payload(answer));
        },
        Clock::now());
}

void DataService::command(const DataRequest& request) {
    if (request.peer.uid != ::geteuid() && request.peer.uid != 0) {
        return reply(request, {Errc::kDenied, 0, "commands are for the service's own user"});
    }
    auto address = std::make_shared<DataRequest>(address_of(request));
    commands_.run(
        request.message.payload,
        [this, address](const RequestOutcome& outcome, const std::string& json) {
            if (outcome.code != Errc::kOk) return reply(*address, outcome);
            auto file = fabricshm::make_sealed_file("fabric-data", std::as_bytes(std::span(json)));
            if (!file.ok()) return reply(*address, outcome_of(file.error()));
            reply(*address, {}, "", std::make_shared<fabricshm::Fd>(std::move(file).value()));
        },
        Clock::now());
}

void DataService::write(DataRequest request) {
    if (writes_ == nullptr) {
        return reply(request, {Errc::kUnsupported, 0, "this service takes no new files"});
    }
    auto address = std::make_shared<DataRequest>(address_of(request));
    writes_->handle(std::move(request),
                    [this, address](const RequestOutcome& outcome, const std::string& payload) {
                        reply(*address, outcome, payload);
                    });
}

}  // namespace fabricd
