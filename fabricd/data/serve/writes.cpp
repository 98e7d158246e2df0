#include "fabricd/data/serve/writes.hpp"

#include <algorithm>
#include <ctime>
#include <utility>

#include "fabricd/data/silo/memory_silo.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/random.hpp"
#include "libfabricshm/shm/data_listing.hpp"

namespace fabricd {

using namespace fabricshm::proto;
using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::kNoLine;

namespace {

constexpr std::size_t kMaxOpen = 64;  // each may have most of a chunk that is not in the cache
constexpr Bytes kMaxAtOnce = 16 * fabricshm::kMiB;
constexpr std::size_t kShownLost = 10;
// The first word of a version that no silo has given: web servers' begin with a small byte that is
// not 0, and the first word of a folder's file is its size.
constexpr std::uint64_t kUnwrittenVersion = 0xfab71c0000000000U;

std::uint64_t now_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
           static_cast<std::uint64_t>(now.tv_nsec);
}

std::uint64_t random_token() {
    std::uint64_t token = 0;
    const auto filled = fabricshm::fill_random(std::as_writable_bytes(std::span(&token, 1)));
    return filled.ok() ? token : static_cast<std::uint64_t>(fabricshm::monotonic_ns());
}

RequestOutcome outcome_of_step(const Written& written) {
    return {written.error.code, written.error.detail, written.reason};
}

}  // namespace

Writes::Writes(Options options, ServiceParts& parts, EventLoop& loop)
    : options_(std::move(options)),
      parts_(parts),
      loop_(loop),
      workers_(parts.spec.silos.size()),
      unwritten_(parts.spec.silos.size()),
      bytes_(parts.cache, parts.files) {}

Result<std::unique_ptr<Writes>> Writes::start(Options options, ServiceParts& parts,
                                              EventLoop& loop) {
    std::unique_ptr<Writes> writes(new Writes(std::move(options), parts, loop));
    FABRIC_TRY_VOID(writes->open());
    return writes;
}

Result<void> Writes::open() {
    std::vector<LoggedWrite> left;
    FABRIC_TRY(log_, WriteLog::open(options_.log, left));
    for (std::uint32_t silo = 0; silo < parts_.spec.silos.size(); ++silo) {
        const SiloSpec& spec = parts_.spec.silos[silo];
        WriteWorker::Options worker;
        for (const LoggedWrite& write : left) {
            if (write.at != spec.at) continue;
            worker.to_clear.push_back(write.name);
            if (!write.is_answered) continue;
            // What readers may still have of it is not what the silo has.
            const KnownFile* file = parts_.files.find(silo, write.name.path);
            if (file != nullptr && file->facts.version.words[0] == kUnwrittenVersion) {
                parts_.files.forget(file->id);
            }
            const std::string path = spec.at + "/" + printable(write.name.path);
            fabricshm::log(fabricshm::LogLevel::kError,
                           "%s: its commit was answered (write = \"back\"), and the service ended "
                           "before the silo had answered: look whether it is there",
                           path.c_str());
            ++stats_.lost_count;
            if (stats_.lost.size() < kShownLost) stats_.lost.push_back(path);
        }
        if (spec.write == WritePolicy::kOff) continue;
        worker.on_cleared = [this](const WriteName& name, const Error& error,
                                   const std::string& reason) {
            loop_.post([this, name, error, reason] {
                if (error.code == Errc::kOk) return log_.end(name.token);
                fabricshm::log(fabricshm::LogLevel::kWarning,
                               "what an earlier service wrote is not cleared: %s", reason.c_str());
            });
        };
        worker.on_done = [this](Written written) {
            loop_.post([this, written = std::move(written)] { took(written); });
        };
        FABRIC_TRY(workers_[silo], WriteWorker::start(spec, std::move(worker)));
    }
    parts_.listings.unwritten = [this](std::uint32_t silo) -> const Listings::Unwritten& {
        return unwritten_[silo];
    };
    return {};
}

Writes::~Writes() {
    // Behind this no worker reads the arena, and none posts.
    workers_.clear();
    parts_.listings.unwritten = nullptr;
}

void Writes::handle(DataRequest request, Reply reply) {
    switch (request.message.type) {
        case DataType::kCreate:
            return create(request, reply);
        case DataType::kWrite:
            return append(request, reply);
        case DataType::kCommit:
            return commit(request, reply);
        case DataType::kAbort:
            return abort(request, reply);
        default:
            break;
    }
    FABRIC_CHECK(false);
}

// --- requests ---

RequestOutcome Writes::why_not(const std::string& path, std::uint32_t silo,
                               const std::string& inside) const {
    const SiloSpec& spec = parts_.spec.silos[silo];
    if (spec.from.starts_with("http")) {
        return {Errc::kUnsupported, 0, spec.at + ": files of a web server are read only"};
    }
    if (workers_[silo] == nullptr) {
        return {Errc::kDenied, 0,
                spec.at + " is read-only (write, in its section of the data file)"};
    }
    if (names_.contains({silo, inside})) {
        return {Errc::kExists, 0, printable(path) + " is being written already"};
    }
    const auto open = std::count_if(writes_.begin(), writes_.end(),
                                    [](const auto& one) { return one.second.file == 0; });
    if (static_cast<std::size_t>(open) >= kMaxOpen) {
        return {Errc::kBusy, 0, "64 files are being written already"};
    }
    return {};
}

void Writes::create(const DataRequest& request, const Reply& reply) {
    const std::string& path = request.message.payload;
    const auto place = parts_.listings.place_of(path);
    if (path.empty()) return reply({Errc::kInvalid, 0, "a file to write needs a path"}, "");
    if (!place) return reply({Errc::kNotFound, 0, printable(path) + " lies in no silo"}, "");
    if (place->path.empty()) {
        return reply({Errc::kInvalid, 0, printable(path) + " is a silo, and no file of it"}, "");
    }
    const RequestOutcome outcome = why_not(path, place->silo, place->path);
    if (outcome.code != Errc::kOk) return reply(outcome, "");
    const std::uint64_t id = ++last_;
    Write& write = writes_[id];
    write.connection = request.connection;
    write.silo = place->silo;
    write.name.path = place->path;
    write.is_back = parts_.spec.silos[place->silo].write == WritePolicy::kBack;
    names_[{place->silo, place->path}] = id;
    write.waiting.push_back(reply);
    begin(id, write);
}

// Under a token of its own each time: what an attempt leaves is its own.
void Writes::begin(std::uint64_t id, Write& write) {
    write.name.token = random_token();
    const SiloSpec& spec = parts_.spec.silos[write.silo];
    // Of what the cache alone has a crash leaves nothing.
    write.is_logged = spec.made == nullptr;
    const auto logged = write.is_logged ? log_.begin(spec.at, write.name) : Result<void>();
    if (!logged.ok()) {
        // The silo has not heard of it.
        answer(write, outcome_of(logged.error()));
        if (write.file == 0) return end(id);
        write.retry = Clock::now() + options_.retry_pause;
        return;
    }
    if (write.file != 0) static_cast<void>(log_.answered(write.name.token).ok());
    workers_[write.silo]->begin(id, write.name, add_step(id, Kind::kBegin));
}

std::uint64_t Writes::add_step(std::uint64_t id, Kind kind) {
    const std::uint64_t tag = ++last_;
    steps_[tag] = {id, kind};
    return tag;
}

Writes::Write* Writes::find(std::uint64_t id, std::uint64_t connection) {
    const auto found = writes_.find(id);
    // Of another connection, ended, or with its commit behind it.
    const bool is_its = found != writes_.end() && found->second.connection == connection &&
                        found->second.is_begun && !found->second.is_over &&
                        !found->second.is_asked_commit;
    return is_its ? &found->second : nullptr;
}

void Writes::append(const DataRequest& request, const Reply& reply) {
    const auto wanted = data_fixed<DataWriteRequest>(request.message.payload);
    if (!wanted) return reply({Errc::kInvalid, 0, "the request is malformed"}, "");
    Write* const write = find(wanted->write, request.connection);
    if (write == nullptr) return reply({Errc::kNotFound, 0, "no such file is being written"}, "");
    if (write->failed.code != Errc::kOk) return reply(write->failed, "");
    if (wanted->bytes > kMaxAtOnce || !is_memory_file(request.descriptor.get())) {
        return reply({Errc::kInvalid, 0, "bytes come in a memory file, at most 16 MiB at once"},
                     "");
    }
    if (!write->waiting.empty()) {
        return reply({Errc::kBusy, 0, "the bytes before these are not taken yet"}, "");
    }
    const auto taken = bytes_.take(write->content, request.descriptor.get(), wanted->bytes,
                                   [&] { cut_chunk(wanted->write, *write); });
    if (!taken.ok()) {
        write->failed = outcome_of(taken.error());
        return reply(write->failed, "");
    }
    // The next come when there is room.
    if (bytes_.on_the_way() > options_.on_the_way) {
        write->waiting.push_back(reply);
        return;
    }
    reply({}, "");
}

void Writes::commit(const DataRequest& request, const Reply& reply) {
    const auto wanted = data_fixed<DataWriteEnd>(request.message.payload);
    if (!wanted) return reply({Errc::kInvalid, 0, "the request is malformed"}, "");
    Write* const write = find(wanted->write, request.connection);
    if (write == nullptr) return reply({Errc::kNotFound, 0, "no such file is being written"}, "");
    write->is_asked_commit = true;
    if (write->failed.code == Errc::kOk && !write->content.tail.empty())
        cut_chunk(wanted->write, *write);
    write->waiting.push_back(reply);
    if (write->failed.code != Errc::kOk) return fail(wanted->write, *write, write->failed);
    if (write->is_back) return publish_back(wanted->write, *write);
    go_on(wanted->write, *write);
}

void Writes::abort(const DataRequest& request, const Reply& reply) {
    const auto wanted = data_fixed<DataWriteEnd>(request.message.payload);
    if (!wanted) return reply({Errc::kInvalid, 0, "the request is malformed"}, "");
    Write* const write = find(wanted->write, request.connection);
    if (write == nullptr) return reply({Errc::kNotFound, 0, "no such file is being written"}, "");
    answer(*write, {Errc::kClosed, 0, "the file was aborted"});
    write->waiting.push_back(reply);
    give_up(wanted->write, *write);
}

void Writes::end_connection(std::uint64_t connection) {
    std::vector<std::uint64_t> its;
    for (auto& [id, write] : writes_) {
        if (write.connection == connection) its.push_back(id);
    }
    for (const auto id : its) {
        Write& write = writes_.at(id);
        write.connection = 0;
        write.waiting.clear();
        // What was asked to be committed is.
        if (!write.is_asked_commit && !write.is_over) give_up(id, write);
    }
}

// --- bytes ---

// What was collected becomes a chunk: in the cache, where it has room, and on its way to the silo.
void Writes::cut_chunk(std::uint64_t id, Write& write) {
    if (!bytes_.cut(write.content)) write.is_back = false;
    FAULT_POINT("data.write.cached");
    if (!write.is_back) send_chunks(id, write);
}

void Writes::send_chunks(std::uint64_t id, Write& write) {
    if (!write.is_begun || write.is_over) return;
    for (; write.sent < write.content.chunks.size(); ++write.sent) {
        const auto bytes = bytes_.bytes_of(write.content.chunks[write.sent]);
        workers_[write.silo]->append(id, bytes.data(), bytes.size(), add_step(id, Kind::kAppend));
    }
}

void Writes::go_on(std::uint64_t id, Write& write) {
    if (!write.is_begun || write.is_over) return;
    send_chunks(id, write);
    if (!write.is_asked_commit || write.is_committing ||
        write.written < write.content.chunks.size()) {
        return;
    }
    write.is_committing = true;
    workers_[write.silo]->commit(id, add_step(id, Kind::kCommit));
}

// --- results ---

void Writes::took(const Written& written) {
    const auto found = steps_.find(written.tag);
    FABRIC_CHECK(found != steps_.end());
    const Step step = found->second;
    steps_.erase(found);
    const std::uint64_t id = step.write;
    const auto write = writes_.find(id);
    FABRIC_CHECK(write != writes_.end());
    switch (step.kind) {
        case Kind::kAppend:
            return took_append(id, write->second, written);
        case Kind::kCommit:
            return took_commit(id, write->second, written);
        case Kind::kAbort:
            return took_abort(id, write->second, written);
        case Kind::kBegin:
            break;
    }
    Write& begun = write->second;
    if (begun.is_over) return;
    if (!written.ok()) return fail(id, begun, outcome_of_step(written));
    begun.is_begun = true;
    if (begun.file != 0) return go_on(id, begun);
    answer(begun, {}, data_payload(DataCreateReply{id}));
}

void Writes::took_append(std::uint64_t id, Write& write, const Written& written) {
    WrittenChunk& chunk = write.content.chunks[write.written++];
    // Until the silo has the whole file it may have to be read again.
    const bool is_needed = write.file != 0 || write.is_over;
    if (!is_needed) {
        bytes_.let_go(chunk);
        answer_waiting();
    }
    if (write.is_over) return;
    if (!written.ok()) {
        if (write.is_asked_commit) return fail(id, write, outcome_of_step(written));
        // The next request hears of it.
        if (write.failed.code == Errc::kOk) write.failed = outcome_of_step(written);
        return;
    }
    go_on(id, write);
}

// The lines without a name become the file's.
const KnownFile* Writes::publish(Write& write, const FileFacts& facts) {
    const auto seen = parts_.files.see(write.silo, write.name.path, facts, Clock::now());
    if (!seen.ok()) {
        fabricshm::log(fabricshm::LogLevel::kWarning, "%s", describe(seen.error()).c_str());
        return nullptr;
    }
    const KnownFile* const file = *seen;
    // What was asked for before its bytes were there is no sign that they have left.
    bool is_settled = true;
    for (std::size_t chunk = 0; chunk < write.content.chunks.size(); ++chunk) {
        if (parts_.fills.is_under_way(file->first_line + chunk)) is_settled = false;
    }
    bytes_.hand_over(write.content, *file);
    const auto& made = parts_.spec.silos[write.silo].made;
    if (made != nullptr && is_settled) made->settle(write.name.path, facts);
    FAULT_POINT("data.write.published");
    parts_.listings.expire(write.silo);
    return file;
}

void Writes::publish_back(std::uint64_t id, Write& write) {
    const auto logged = log_.answered(write.name.token);
    const FileFacts facts{write.content.bytes,
                          {{kUnwrittenVersion, now_ns(), write.name.token, id}}};
    const KnownFile* const file = logged.ok() ? publish(write, facts) : nullptr;
    if (file == nullptr) {
        // As "through": the silo has to have it first.
        write.is_back = false;
        return go_on(id, write);
    }
    write.file = file->id;
    unwritten_[write.silo][write.name.path] = facts;
    answer(write, {});
    go_on(id, write);
}

void Writes::took_commit(std::uint64_t id, Write& write, const Written& written) {
    write.is_committing = false;
    if (!written.ok()) return fail(id, write, outcome_of_step(written));
    if (write.file != 0) {
        unwritten_[write.silo].erase(write.name.path);
        parts_.files.confirm(write.file, written.facts);
        parts_.listings.expire(write.silo);
    } else {
        const bool is_published = publish(write, written.facts) != nullptr;
        // Its lines are the file's now.
        if (is_published) {
            for (WrittenChunk& chunk : write.content.chunks) chunk.line = kNoLine;
        }
    }
    ++stats_.committed;
    answer(write, {});
    end(id);
}

// An upload is tried again; whatever else is given up.
void Writes::fail(std::uint64_t id, Write& write, const RequestOutcome& outcome) {
    stats_.last_failure = outcome.text;
    if (write.file != 0) {
        ++stats_.failed_uploads;
        fabricshm::log(fabricshm::LogLevel::kWarning, "upload of %s: %s",
                       printable(write.name.path).c_str(), outcome.text.c_str());
    }
    write.failed = outcome;
    answer(write, outcome);
    give_up(id, write);
}

void Writes::free_name(std::uint64_t id, const Write& write) {
    const auto name = names_.find({write.silo, write.name.path});
    if (name != names_.end() && name->second == id) names_.erase(name);
}

void Writes::give_up(std::uint64_t id, Write& write) {
    write.is_over = true;
    // What it leaves in the silo has its token, and is in no other's way: the next writer of the
    // name need not wait until that is gone, which takes as long as the silo likes.
    if (write.file == 0) free_name(id, write);
    if (write.is_aborting) return;
    write.is_aborting = true;
    workers_[write.silo]->abort(id, add_step(id, Kind::kAbort));
}

void Writes::took_abort(std::uint64_t id, Write& write, const Written& written) {
    if (!written.ok()) {
        fabricshm::log(fabricshm::LogLevel::kWarning, "what was written of %s is left: %s",
                       printable(write.name.path).c_str(), written.reason.c_str());
    } else if (write.file == 0 && write.is_logged) {
        log_.end(write.name.token);
    }
    if (write.file == 0 || write.failed.code == Errc::kExists) {
        if (write.file != 0) {
            // Another writer, past this service, has taken the name: there is no way for it.
            unwritten_[write.silo].erase(write.name.path);
            parts_.files.forget(write.file);
            parts_.listings.expire(write.silo);
            log_.end(write.name.token);
            const std::string path =
                parts_.spec.silos[write.silo].at + "/" + printable(write.name.path);
            ++stats_.lost_count;
            if (stats_.lost.size() < kShownLost) stats_.lost.push_back(path);
        }
        ++stats_.aborted;
        answer(write, {});
        return end(id);
    }
    // The record of this attempt goes when the next one has begun its own.
    write.is_cleared = written.ok();
    write.sent = write.written = 0;
    write.is_begun = write.is_over = write.is_aborting = false;
    write.failed = {};
    write.retry = Clock::now() + options_.retry_pause;
}

void Writes::answer(Write& write, const RequestOutcome& outcome, const std::string& payload) {
    for (const Reply& reply : std::exchange(write.waiting, {})) reply(outcome, payload);
}

void Writes::end(std::uint64_t id) {
    Write& write = writes_.at(id);
    bytes_.release(write.content, write.file == 0);
    if (!write.is_over && write.is_logged) log_.end(write.name.token);
    free_name(id, write);
    writes_.erase(id);
}

// Bytes that were taken are answered when others have found room; errors at once.
void Writes::answer_waiting() {
    for (auto& [id, write] : writes_) {
        const bool waits =
            !write.waiting.empty() && write.is_begun && !write.is_over && !write.is_asked_commit;
        if (!waits) continue;
        const bool has_failed = write.failed.code != Errc::kOk;
        if (has_failed || bytes_.on_the_way() <= options_.on_the_way) answer(write, write.failed);
    }
}

void Writes::tick(TimePoint now) {
    answer_waiting();
    std::vector<std::uint64_t> due;
    for (const auto& [id, write] : writes_) {
        if (write.retry != fabricshm::kNoWait && write.retry <= now) due.push_back(id);
    }
    for (const auto id : due) {
        Write& write = writes_.at(id);
        write.retry = fabricshm::kNoWait;
        const std::uint64_t before = write.name.token;
        begin(id, write);
        // Not before the next attempt has a record: a kill in between would hide the loss.
        if (write.is_cleared && write.name.token != before) log_.end(before);
    }
}

WriteDesk::Stats Writes::stats() const {
    Stats stats = stats_;
    for (const auto& [id, write] : writes_) {
        if (write.file == 0) {
            ++stats.open;
            continue;
        }
        ++stats.pending;
        stats.pending_bytes += write.content.bytes;
    }
    return stats;
}

}  // namespace fabricd
